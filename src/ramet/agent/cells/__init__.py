"""asyncio for code cells: what the interpreter lacks, built from what it has."""

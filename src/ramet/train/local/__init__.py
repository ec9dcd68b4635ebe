"""Learning in this process, with torch."""

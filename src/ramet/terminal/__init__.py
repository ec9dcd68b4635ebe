"""Terminal output: live views, tables, and what commands print."""

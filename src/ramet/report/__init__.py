"""Run directories as a page people look at: tables, pictures, and the trees behind every number."""

"""Number puzzles."""

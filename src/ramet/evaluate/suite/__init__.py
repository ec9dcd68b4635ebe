"""Pinned suites: the same tasks, budgets, methods and seeds for every model, and a card of the result."""

"""A page about run directories: tables, plots, and the trees behind every number."""

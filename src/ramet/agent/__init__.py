"""The runtime: one node's turns, and the tree they form."""

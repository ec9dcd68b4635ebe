"""Learning from trees: rows, trie packing, log-probs, losses. Nothing here sees text."""

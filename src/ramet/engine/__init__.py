"""Engines: tokens in, tokens and log-probs out."""

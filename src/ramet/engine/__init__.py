"""Engines: prompt tokens in, sampled tokens and log-probs out."""

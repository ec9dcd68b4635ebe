"""Questions that take several hops."""

"""Questions that need several hops."""

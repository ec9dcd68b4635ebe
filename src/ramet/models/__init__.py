"""Models on this machine: finding, loading and running them."""

"""Models on this machine: where they are, how they are loaded, how they attend."""

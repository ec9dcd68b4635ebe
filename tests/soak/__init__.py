"""Long runs under random faults: `make soak`. See docs/reliability.md."""

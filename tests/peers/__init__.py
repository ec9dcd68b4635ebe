"""Real verifiers and inspect_ai: `make test-peers` runs these, each in an environment that has the package."""

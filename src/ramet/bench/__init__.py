"""Speed measurements, next to other frameworks in the same run."""

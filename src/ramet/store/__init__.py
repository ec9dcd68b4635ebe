"""Run directories: settings, metrics and trees of every run, as files anyone can read."""

from ramet.store.run_dir import RunDir, query, read_trees, slug

__all__ = ["RunDir", "query", "read_trees", "slug"]

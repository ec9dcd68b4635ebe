"""Run directories: the settings, metrics and trees of a run, as files in open formats."""

from ramet.store.run_dir import RunDir, query, read_trees, slug

__all__ = ["RunDir", "query", "read_trees", "slug"]

"""Run directories: the settings, metrics and trees of a run, as files in open formats."""

from ramet.store.run_dir import RunDir, read_trees, slug
from ramet.store.sql import query

__all__ = ["RunDir", "query", "read_trees", "slug"]

"""The credit of the trees that a page shows. It is computed step by step, and that of the newest steps is kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from ramet.credit import Credits
from ramet.train.stored_credit import step_credits, tree_credit
from ramet.view.catalog import read_config, read_meta
from ramet.view.index import Index

KEPT_STEPS = 6


class CreditCache:
    """Credits of the steps that were looked at last."""

    def __init__(self) -> None:
        self._steps: OrderedDict[tuple[str, int], Credits | str] = OrderedDict()
        self._lock = threading.Lock()

    def of_tree(self, index: Index, tree: str) -> dict[str, Any]:
        """Credit by node index, or one line that says why there is none."""
        if read_meta(index.run).get("kind") != "train":
            return {"nodes": {}, "why": ""}
        config = read_config(index.run)
        return tree_credit(config, self._of_step(config, Path(index.file_of(tree))), tree)

    def _of_step(self, config: dict[str, Any], file: Path) -> Credits | str:
        key = (str(file), file.stat().st_mtime_ns)
        with self._lock:
            if key not in self._steps:
                self._steps[key] = step_credits(config, file)
                while len(self._steps) > KEPT_STEPS:
                    self._steps.popitem(last=False)
            self._steps.move_to_end(key)
            return self._steps[key]

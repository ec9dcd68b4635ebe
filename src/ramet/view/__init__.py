"""A local page over run directories: runs, training curves, evaluations and trees, also while they are written.

`start` serves it in a thread of this process; `ramet view`, `ramet run --view` and `ramet train --view` call it.
"""

from ramet.view.server import Viewer, start

__all__ = ["Viewer", "start"]

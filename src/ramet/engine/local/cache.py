"""Which tokens' keys and values lie where, and who may read them.

Memory is cut into pages of a few tokens. Pages form a tree by content: the path from the root to a page spells the text
it stands behind, so every text that begins the same way finds the same pages. A page that only begins the same way is
copied and continued: no token is ever computed twice because of where a page ends.

The tree is salted: pages computed by other weights are another tree. Nobody looks there again, and they go first.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

Ids = tuple[int, ...]


class Page:
    """A place in memory and its tokens. `ready` of them have been computed, or will be by the step being planned."""

    __slots__ = ("children", "ids", "issued", "keepers", "number", "parent", "ready", "touched", "users")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ids: Ids = ()
        self.ready = 0
        self.issued = -1  # the step that computed the newest of them
        self.parent: Page | None = None  # None: not in the tree
        self.children: list[Page] = []  # sorted by ids
        self.users = 0  # running sequences that read it
        self.keepers = 0  # waiting nodes that will come back for it
        self.touched = 0

    def closest(self, ids: Ids) -> tuple[Page | None, int]:
        """The child with the longest common beginning, and its length. In sorted order it is a neighbour."""
        at = bisect_left(self.children, ids, key=_ids)
        best, longest = None, 0
        for child in self.children[max(0, at - 1) : at + 1]:
            length = _common(child.ids, ids)
            if length > longest:
                best, longest = child, length
        return best, longest


def _ids(page: Page) -> Ids:
    return page.ids


def _common(left: Ids, right: Ids) -> int:
    for length, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return length
    return min(len(left), len(right))


@dataclass(slots=True)
class Match:
    """How much of a text is known. `awaited`: more will be once somebody else's step has run, so better wait for it."""

    pages: list[Page] = field(default_factory=list[Page])
    begun: Page | None = None  # a page to copy `begun_tokens` from
    begun_tokens: int = 0
    awaited: bool = False


class PrefixCache:
    """Pages by content, with reference counts and eviction.

    Example:
        cache = PrefixCache(pages=64, size=16)
        match = cache.match((1, 2, 3), salt=0, step=1)
    """

    def __init__(self, *, pages: int, size: int) -> None:
        self.size = size
        self.total = pages
        self.evicted = 0
        self.idle = 0  # in the tree, read by nobody
        self._free = list(range(pages - 1, -1, -1))
        self._roots: dict[Hashable, Page] = {}
        self._leaves: list[tuple[bool, int, int, Page]] = []  # idle ones, the first to go first; checked when taken
        self._order = itertools.count()
        self._clock = 0

    @property
    def available(self) -> int:
        return len(self._free) + self.idle

    def root(self, salt: Hashable) -> Page:
        root = self._roots.get(salt)
        if root is None:
            self._roots = {key: page for key, page in self._roots.items() if page.children}
            root = self._roots[salt] = Page(-1)
            root.ready = self.size
        return root

    def match(self, ids: Sequence[int], *, salt: Hashable, step: int) -> Match:
        """What is known of all but the last token: that one has to be computed, to say what follows it."""
        found, node, at, limit = Match(), self.root(salt), 0, len(ids) - 1
        while at < limit:
            page, common = node.closest(tuple(ids[at : at + self.size]))
            common = min(common, limit - at)
            if page is None or not common:
                break
            if page.ready < common:
                found.awaited = True
                break
            if common < self.size:
                # A copy is made before the step runs, so it cannot hold what the step computes.
                found.awaited = page.issued >= step
                found.begun, found.begun_tokens = page, common
                break
            found.pages.append(page)
            node, at = page, at + self.size
        return found

    def hold(self, pages: Sequence[Page]) -> None:
        """Somebody reads these from now on."""
        for page in pages:
            if page.users == 0 and page.parent is not None:
                self.idle -= 1
            page.users += 1

    def take(self, number: int) -> list[Page] | None:
        """That many empty pages, held; None when there are not so many, and nothing has changed."""
        if number > self.available:
            return None
        while len(self._free) < number:
            self._evict()
        taken = [Page(self._free.pop()) for _ in range(number)]
        self.hold(taken)
        return taken

    def link(self, page: Page, ids: Ids, *, after: Page, ready: int) -> Page:
        """Put a page into the tree; returns it, or the one that already says the same and more."""
        at = bisect_left(after.children, ids, key=_ids)
        if at < len(after.children) and after.children[at].ids[: len(ids)] == ids:
            return after.children[at]
        page.ids, page.ready, page.parent = ids, ready, after
        after.children.insert(at, page)
        if page.users == 0:
            self.idle += 1
            self._offer(page)
        return page

    def unlink(self, page: Page) -> None:
        """Take a page without children out of the tree."""
        parent = page.parent
        if parent is None:
            return
        siblings = parent.children
        at = bisect_left(siblings, page.ids, key=_ids)
        while siblings[at] is not page:
            at += 1
        del siblings[at]
        page.parent = None
        if page.users == 0:
            self.idle -= 1
        self._offer(parent)

    def drop(self, pages: Sequence[Page]) -> None:
        """Somebody is done with these: what is in the tree stays until room is needed, the rest is free."""
        self._clock += 1
        for page in reversed(pages):
            page.users -= 1
            page.touched = self._clock
            if page.users:
                continue
            if page.parent is None:
                self._free.append(page.number)
            else:
                self.idle += 1
                self._offer(page)

    def keep(self, pages: Sequence[Page], by: int) -> None:
        """A waiting node will come back for these (1), or will not any more (-1)."""
        for page in pages:
            page.keepers += by
            self._offer(page)

    def _offer(self, page: Page) -> None:
        if page.users == 0 and page.parent is not None and not page.children:
            heapq.heappush(self._leaves, (page.keepers > 0, page.touched, next(self._order), page))

    def _evict(self) -> None:
        while True:
            kept, touched, _, page = heapq.heappop(self._leaves)
            stale = page.users or page.parent is None or page.children
            if not stale and (kept, touched) == (page.keepers > 0, page.touched):
                break
        self.unlink(page)
        self._free.append(page.number)
        self.evicted += 1

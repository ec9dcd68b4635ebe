"""The prefix cache: which page holds the keys and values of which tokens.

Memory is cut into pages of a few tokens. Pages form a tree by content: the path from the root to a page spells the text
up to and including it, so texts with a common prefix share pages. When the prefix ends inside a page, that page is
copied and continued, so page boundaries never cause a token to be computed twice.

Trees are salted: each version of the weights has its own tree. Trees of old versions are never matched again, and their
pages are evicted first.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

OUTDATED = 4  # entries of the heap of pages to evict, per page of memory: with more, outdated ones are dropped

Ids = tuple[int, ...]


class Page:
    """A page of memory and its tokens. `ready` of them are computed, or will be by the step being planned."""

    __slots__ = ("by_ids", "children", "computed_in", "ids", "last_used", "number", "parent", "pins", "ready", "users")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ids: Ids = ()
        self.ready = 0
        self.computed_in = -1  # the step that computed the newest token
        self.parent: Page | None = None  # None: not in the tree
        self.children: list[Page] = []  # sorted by ids
        self.by_ids: dict[Ids, Page] = {}  # the same children
        self.users = 0  # running requests that use it
        self.pins = 0  # nodes between two turns that will need it again
        self.last_used = 0

    def closest(self, ids: Ids) -> tuple[Page | None, int]:
        """The child with the longest common prefix, and its length. In sorted order it is a neighbour of `ids`."""
        same = self.by_ids.get(ids)  # most pages are looked up whole
        if same is not None:
            return same, len(ids)
        at = bisect_left(self.children, ids, key=_ids)
        best, longest = None, 0
        for child in self.children[max(0, at - 1) : at + 1]:
            length = _common(child.ids, ids)
            if length > longest:
                best, longest = child, length
        return best, longest


def _ids(page: Page) -> Ids:
    return page.ids


Candidate = tuple[bool, int, int, Page]  # pinned, last used, order of arrival; a smaller one is evicted first


def _is_current(entry: Candidate) -> bool:
    """Whether the page can be evicted, and has not been used or pinned since."""
    pinned, last_used, _, page = entry
    stale = page.users or page.parent is None or page.children
    return not stale and (pinned, last_used) == (page.pins > 0, page.last_used)


def _common(left: Ids, right: Ids) -> int:
    for length, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return length
    return min(len(left), len(right))


@dataclass(slots=True)
class Match:
    """The cached prefix of a text. `pending`: a step in progress computes more of it, so the request should wait."""

    pages: list[Page] = field(default_factory=list[Page])
    partial: Page | None = None  # a page to copy `partial_tokens` from
    partial_tokens: int = 0
    pending: bool = False


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
        self.idle = 0  # pages in the tree that no running request uses
        self._free = list(range(pages - 1, -1, -1))
        self._roots: dict[Hashable, Page] = {}
        self._candidates: list[Candidate] = []  # a heap of idle leaves; may have outdated entries
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
        """The cached prefix of all tokens but the last, which is always computed: sampling needs its logits."""
        found, node, at, limit = Match(), self.root(salt), 0, len(ids) - 1
        size, pages = self.size, found.pages
        while at + size <= limit:  # whole pages first: most of a prompt is found here
            page = node.by_ids.get(tuple(ids[at : at + size]))
            if page is None or page.ready < size:
                break
            pages.append(page)
            node, at = page, at + size
        while at < limit:
            page, common = node.closest(tuple(ids[at : at + self.size]))
            common = min(common, limit - at)
            if page is None or not common:
                break
            if page.ready < common:
                found.pending = True
                break
            if common < self.size:
                # Pages are copied before the step runs, so a copy lacks what the same step computes.
                found.pending = page.computed_in >= step
                found.partial, found.partial_tokens = page, common
                break
            found.pages.append(page)
            node, at = page, at + self.size
        return found

    def acquire(self, pages: Sequence[Page]) -> None:
        """Count one more user of each page."""
        for page in pages:
            if page.users == 0 and page.parent is not None:
                self.idle -= 1
            page.users += 1

    def allocate(self, number: int) -> list[Page] | None:
        """That many empty pages with one user each; None, with nothing changed, when there are fewer."""
        if number > self.available:
            return None
        while len(self._free) < number:
            self._evict()
        pages = [Page(self._free.pop()) for _ in range(number)]
        self.acquire(pages)
        return pages

    def link(self, page: Page, ids: Ids, *, after: Page, ready: int) -> Page:
        """Add a page to the tree; returns it, or the existing page that begins with the same tokens."""
        at = bisect_left(after.children, ids, key=_ids)
        if at < len(after.children) and after.children[at].ids[: len(ids)] == ids:
            return after.children[at]
        page.ids, page.ready, page.parent = ids, ready, after
        after.children.insert(at, page)
        after.by_ids[ids] = page
        if page.users == 0:
            self.idle += 1
            self._add_candidate(page)
        return page

    def unlink(self, page: Page) -> None:
        """Remove a page without children from the tree."""
        parent = page.parent
        if parent is None:
            return
        siblings = parent.children
        at = bisect_left(siblings, page.ids, key=_ids)
        while siblings[at] is not page:
            at += 1
        del siblings[at], parent.by_ids[page.ids]
        page.parent = None
        if page.users == 0:
            self.idle -= 1
        self._add_candidate(parent)

    def release(self, pages: Sequence[Page]) -> None:
        """Count one user less of each page. Unused pages in the tree stay until evicted; others are free at once."""
        self._clock += 1
        for page in reversed(pages):
            page.users -= 1
            page.last_used = self._clock
            if page.users:
                continue
            if page.parent is None:
                self._free.append(page.number)
            else:
                self.idle += 1
                self._add_candidate(page)

    def pin(self, pages: Sequence[Page], by: int) -> None:
        """Pin (1) or unpin (-1) pages: pinned pages are evicted last."""
        for page in pages:
            page.pins += by
            if not page.children:  # of a chain of pages, only the last can be evicted
                self._add_candidate(page)

    def _add_candidate(self, page: Page) -> None:
        if page.users == 0 and page.parent is not None and not page.children:
            heapq.heappush(self._candidates, (page.pins > 0, page.last_used, next(self._order), page))
            if len(self._candidates) > OUTDATED * self.total:
                self._drop_outdated()

    def _drop_outdated(self) -> None:
        """Keep the first entry of each page that can be evicted. A page that can be again gets another entry."""
        first: dict[Page, Candidate] = {}
        for entry in filter(_is_current, self._candidates):
            first[entry[3]] = min(entry, first.get(entry[3], entry))
        self._candidates = list(first.values())
        heapq.heapify(self._candidates)

    def _evict(self) -> None:
        entry = heapq.heappop(self._candidates)
        while not _is_current(entry):
            entry = heapq.heappop(self._candidates)
        page = entry[3]
        self.unlink(page)
        self._free.append(page.number)
        self.evicted += 1

"""Numbers of a server as text for Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ramet.types import Tree

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Histogram:
    """Seconds by upper bound."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[sum(seconds > bound for bound in SECONDS)] += 1
        self.total += seconds


class Metrics:
    """Counters of requests and trees. They hold no text of a client and no name of a key."""

    def __init__(self) -> None:
        self.requests: Counter[Labels] = Counter()
        self.seconds: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.trees: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.nodes = 0
        self.calls = 0
        self.dollars = 0.0
        self.store_errors = 0

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        self.requests[("endpoint", endpoint), ("status", str(status))] += 1
        self.seconds[endpoint].add(seconds)

    def tree(self, tree: Tree) -> None:
        used = tree.usage
        self.trees[str(tree.root.stop)] += 1
        self.nodes += len(tree.nodes)
        self.calls += used.calls
        self.dollars += used.dollars
        self.tokens.update(
            generated=used.tokens, lost=used.lost_tokens, prompt=used.prompt_tokens, cached=used.cached_tokens
        )

    def text(self, *, running: int, waiting: int) -> str:
        """All numbers in the text format of Prometheus, version 0.0.4."""
        stops = {(("stop", stop),): number for stop, number in self.trees.items()}
        kinds = {(("kind", kind),): number for kind, number in self.tokens.items()}
        lines = [
            *_family("ramet_requests_total", "counter", "Requests by endpoint and HTTP status.", self.requests),
            *_family("ramet_trees_total", "counter", "Trees by why their root ended.", stops),
            *_family("ramet_tokens_total", "counter", "Tokens of all trees by kind.", kinds),
            *_family("ramet_nodes_total", "counter", "Nodes of all trees.", {(): self.nodes}),
            *_family("ramet_engine_calls_total", "counter", "Calls of the model.", {(): self.calls}),
            *_family(
                "ramet_cost_dollars_total", "counter", "Dollars, by the prices of the budget.", {(): self.dollars}
            ),
            *_family("ramet_store_errors_total", "counter", "Writes of trees that failed.", {(): self.store_errors}),
            *_family("ramet_trees_running", "gauge", "Trees that run now.", {(): running}),
            *_family("ramet_requests_waiting", "gauge", "Requests that wait for a place.", {(): waiting}),
            *self._histograms(),
        ]
        return "\n".join(lines) + "\n"

    def _histograms(self) -> Iterator[str]:
        name = "ramet_request_seconds"
        yield f"# HELP {name} Seconds from the request to the end of its answer."
        yield f"# TYPE {name} histogram"
        for endpoint, histogram in self.seconds.items():
            below = 0
            for bound, count in zip((*map(str, SECONDS), "+Inf"), histogram.counts, strict=True):
                below += count
                yield f'{name}_bucket{{endpoint="{endpoint}",le="{bound}"}} {below}'
            yield f'{name}_sum{{endpoint="{endpoint}"}} {histogram.total:.6f}'
            yield f'{name}_count{{endpoint="{endpoint}"}} {below}'


def _family(name: str, kind: str, about: str, values: Mapping[Labels, float]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        listed = ",".join(f'{key}="{word}"' for key, word in labels)
        yield f"{name}{{{listed}}} {value}" if listed else f"{name} {value}"

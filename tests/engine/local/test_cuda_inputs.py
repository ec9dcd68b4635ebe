"""The numbers that describe a step to a GPU are those of its requests, whatever ran in their slots before."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.engine.local.cuda_inputs import ROWS, Inputs, Key, Layout, Updates, key_of, round_up
from ramet.engine.local.request import Request, Sampling
from ramet.engine.local.sampling import keys
from ramet.engine.local.scheduler import Chunk, Step
from tests.engine.local.simulated import SimulatedEngine
from tests.engine.local.test_scheduling import play

WIDTH, PADDING_PAGE = 100, 7777


def expected(step: Step) -> dict[str, list[Any]]:
    """The used part of every input, written down request by request."""
    rows = [(-1, request.planned - 1, request.slot) for request in step.decodes]
    picks, blocks = list(range(len(rows))), []
    for chunk in step.chunks:
        for first in range(chunk.start, chunk.end, ROWS):
            blocks += [len(rows) + first - chunk.start, min(ROWS, chunk.end - first)]
        rows += [(chunk.request.ids[at], at, chunk.request.slot) for at in range(chunk.start, chunk.end)]
        picks += [len(rows) - 1] if chunk.samples else []
    sampling = step.sampling
    noise = keys([each.sampling.seed for each in sampling], [each.draws - 1 for each in sampling])
    return {
        "counts": [len(step.decodes), len(blocks) // 2, len(step.copies)],
        "ids": [token for token, _, _ in rows],
        "positions": [position for _, position, _ in rows],
        "slots": [slot for _, _, slot in rows],
        "picks": picks,
        "sampled_slots": [request.slot for request in sampling],
        "keys": noise.view(np.int32).reshape(-1).tolist(),
        "temperature": [request.sampling.temperature for request in sampling],
        "blocks": blocks,
        "copies": [page for copy in step.copies for page in copy],
    }


PADDING = {"ids": 0, "positions": 0, "slots": None, "picks": 0, "sampled_slots": None, "temperature": 1.0}


class Checked(SimulatedEngine):
    """Writes every step as for a GPU, into an array with numbers of the step before, and compares it."""

    def __init__(self, **limits: Any) -> None:
        super().__init__(**limits)
        self.inputs = Inputs(max_batch=limits["max_batch"], table_width=WIDTH, padding_page=PADDING_PAGE)
        self.array = np.zeros(1, dtype=np.int32)
        self.tables: dict[int, int] = {}  # as the device has them

    def compute(self, step: Step) -> list[int]:
        if step:
            self._check(step)
        return super().compute(step)

    def _check(self, step: Step) -> None:
        updates = self.inputs.updates(step)
        layout = Layout(key_of(step, step.sampling, len(updates)))
        self.array = np.resize(self.array, layout.size)
        self.inputs.write(step, updates, layout, self.array)
        part = layout.parts(self.array)
        self.tables |= zip(part["update_at"].tolist(), part["update_to"].tolist(), strict=True)
        assert self.tables.pop(self.inputs.padding_slot * WIDTH) == PADDING_PAGE
        for request in [*step.decodes, *(chunk.request for chunk in step.chunks)]:
            table = [self.tables[request.slot * WIDTH + place] for place in range(len(request.pages))]
            assert table == [page.number for page in request.pages]
        for name, values in expected(step).items():
            assert part[name][: len(values)].tolist() == values, name
            if name in PADDING:
                padding = self.inputs.padding_slot if PADDING[name] is None else PADDING[name]
                assert (part[name][len(values) :] == padding).all(), name


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32), lag=st.sampled_from([0, 1]), keep_cache=st.booleans())
def test_the_inputs_of_every_step_are_those_of_its_requests(seed: int, lag: int, keep_cache: bool) -> None:
    play(seed=seed, size=4, lag=lag, tightness=1.5, keep_cache=keep_cache, make=Checked)


def test_a_prompt_and_two_tokens_after_it_by_hand() -> None:
    sampling = Sampling(max_tokens=9, temperature=0.5, top_p=0.75, top_k=3, seed=-1)
    request = Request(ids=[4, 5, 6], sampling=sampling)
    inputs, layout = Inputs(max_batch=2, table_width=10, padding_page=90), Layout(Key(4, 4, 1, 2, True))
    array = np.full(layout.size, 55, dtype=np.int32)
    part = layout.parts(array)
    request.slot, request.planned, request.draws = 1, 3, 1
    inputs.write(Step(chunks=[Chunk(request, 0, 3, True)]), Updates([10], [31]), layout, array)
    assert part["counts"].tolist() == [0, 1, 0]
    assert part["ids"].tolist() == [4, 5, 6, 0]
    assert part["positions"].tolist() == [0, 1, 2, 0]
    assert part["slots"].tolist() == [1, 1, 1, 2]
    assert part["picks"].tolist() == [2, 0, 0, 0]
    assert part["blocks"].tolist() == [0, 3]
    assert part["sampled_slots"].tolist() == [1, 2, 2, 2]
    assert part["temperature"].tolist() == [0.5, 1, 1, 1]
    assert part["top_p"].tolist() == [0.75, 1, 1, 1]
    assert part["top_k"].tolist() == [3, 0, 0, 0]
    assert part["update_at"].tolist() == [10, 20]  # then the table of the padding slot
    assert part["update_to"].tolist() == [31, 90]
    for token in (1, 2):
        request.planned, request.draws = request.planned + 1, request.draws + 1
        inputs.write(Step(decodes=[request]), Updates(), layout, array)
        assert part["counts"].tolist() == [1, 0, 0]
        assert part["ids"].tolist() == [-1, 0, 0, 0]  # sampled by the step before, and still on the device
        assert part["positions"].tolist() == [2 + token, 0, 0, 0]
        assert part["slots"].tolist() == [1, 2, 2, 2]
        assert part["keys"][:2].view(np.uint32).tolist() == keys([2**64 - 1], [token])[0].tolist()


def test_sizes_are_rounded_up_to_those_that_graphs_are_captured_for() -> None:
    assert [round_up(count, (1, 4, 8)) for count in (0, 1, 2, 8, 9, 17)] == [1, 1, 4, 8, 16, 32]
    request = Request(ids=[1] * 100, sampling=Sampling(max_tokens=1))
    assert key_of(Step(decodes=[request] * 5), [request] * 5, 3) == Key(8, 8, 0, 512, False)
    prompt = Step(decodes=[request] * 5, chunks=[Chunk(request, 0, 100, True)])
    assert key_of(prompt, [request] * 6, 3) == Key(128, 32, 4 + 32 + 1, 8192, False)

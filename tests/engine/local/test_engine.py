"""The engine from the outside: requests, nodes, new weights, failures."""

from __future__ import annotations

import math
import os
import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from ramet import Budget, run
from ramet.engine.local import LocalEngine
from ramet.engine.local.cpu import CpuRunner, Results
from ramet.engine.local.scheduler import Step
from ramet.engine.scripted import WordTokenizer
from ramet.errors import ConfigError, EngineError
from ramet.tokens.render import TokenRenderer
from ramet.types import Completion, Meter, Prompt
from tests.engine.local.models import VOCABULARY, ask, largest_difference, make, texts
from tests.waiting import PATIENCE_S


class Letters:
    """A tokenizer with 211 letters, the last of which ends a turn."""

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        return [210 if control and letter == "§" else ord(letter) % 210 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join("§" if i == 210 else chr(i + 210 * (i < 32)) for i in ids)

    vocab_size = 211

    def is_control(self, token: int) -> bool:
        return token == 210


async def until(fact: Callable[[], bool]) -> None:
    """Wait for a condition that another thread fulfils."""
    with anyio.fail_after(PATIENCE_S):
        while not fact():
            await anyio.to_thread.run_sync(threading.Event().wait, 0.001)


def prompt(*ids: int, node_id: str = "") -> Prompt:
    return Prompt(messages=(), ids=ids or (1, 2, 3), node_id=node_id)


ENDLESS = 60_000  # tokens: a request that runs until it is cancelled


def roomy(**sizes: int) -> LocalEngine:
    """An engine with a window for endless requests."""
    return LocalEngine(make(max_position_embeddings=ENDLESS + 1000), cache_tokens=ENDLESS + 1000, **sizes)


R = TypeVar("R", bound=CpuRunner)


def use_runner(engine: LocalEngine, kind: type[R]) -> R:
    """Replace the runner of an engine by a subclass with the same state."""
    runner = kind.__new__(kind)
    runner.__dict__.update(vars(engine.runner))
    engine.runner = runner
    return runner


# New weights.


def change(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)


def test_after_an_update_the_cache_of_the_old_weights_is_not_used() -> None:
    """Pitfall 4: a cache that survives an update of the weights."""
    model, prompts = make(), texts(12)
    with LocalEngine(model, max_batch=8) as engine:
        first = ask(engine, prompts)
        change(model)
        assert engine.publish() == 1
        second = ask(engine, prompts)
        assert largest_difference(model, prompts, second) < 1e-4
        assert {answer.policy_version for answer in first} == {0}
        assert {answer.policy_version for answer in second} == {1}


def test_without_the_salt_a_cache_of_old_weights_would_be_used() -> None:
    model, prompts = make(), texts(12)
    with LocalEngine(model, max_batch=8) as engine:
        ask(engine, prompts)
        change(model)
        engine.publish()
        engine.scheduler.salt = 0
        stale = ask(engine, prompts)
        assert largest_difference(model, prompts, stale) > 0.05


def test_while_an_engine_is_paused_no_step_runs_and_then_requests_go_on_with_the_same_tokens() -> None:
    with LocalEngine(make()) as engine:
        meter, answers = Meter(), list[Completion]()

        def pause() -> None:
            with engine.paused():
                steps = engine.stats.steps
                time.sleep(0.01)
                assert engine.stats.steps == steps

        async def sampling() -> None:
            answers.append(await engine.sample(prompt(1, 2, 3), max_tokens=100, seed=3, meter=meter))

        async def main() -> None:
            async with anyio.create_task_group() as tasks:
                with engine.paused():
                    tasks.start_soon(sampling)
                    await anyio.sleep(0.05)
                    assert meter.tokens == engine.stats.steps == 0
                while not answers:
                    await anyio.to_thread.run_sync(pause)

        anyio.run(main)
        undisturbed = anyio.run(partial(engine.sample, prompt(1, 2, 3), max_tokens=100, seed=3))
    assert answers[0].token_ids == undisturbed.token_ids
    assert answers[0].policy_version == 0


class Stoppable(CpuRunner):
    """Once `stopping` is set, samples a token outside the vocabulary, which ends the request."""

    stopping = False

    def launch(self, step: Step) -> Results:
        results = super().launch(step)
        return (lambda: ([VOCABULARY] * len(step.sampling), results()[1])) if self.stopping else results


def test_a_running_request_continues_with_the_new_weights_and_a_new_cache() -> None:
    """Pitfall 5: weights that change while a request is being sampled."""
    before = [1, 2, 3, 4, 5]

    async def main() -> tuple[tuple[int, ...], tuple[float, ...], int]:
        meter = Meter()
        answer = None

        async def sampling() -> None:
            nonlocal answer
            answer = await engine.sample(
                prompt(*before), max_tokens=ENDLESS, seed=3, stop_tokens=(VOCABULARY,), meter=meter
            )

        async with anyio.create_task_group() as group:
            group.start_soon(sampling)
            await until(lambda: meter.tokens >= 20)
            with engine.updating():
                change(engine.model)
                at_update = meter.tokens
            await until(lambda: meter.tokens >= at_update + 50)
            runner.stopping = True
        assert answer is not None
        assert answer.policy_version == 0
        return answer.token_ids[:-1], answer.logprobs[:-1], at_update

    with roomy(max_batch=2) as engine:
        runner = use_runner(engine, Stoppable)
        ids, logprobs, at_update = anyio.run(main)
    with torch.no_grad():
        plain = engine.model(torch.tensor([[*before, *ids]])).logits[0, 4:-1].log_softmax(-1)
    plain = plain.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)
    difference = (plain - torch.tensor(logprobs)).abs()
    assert float(difference[at_update + 1 :].max()) < 1e-4  # sampled with the new weights
    assert float(difference[:at_update].max()) > 0.01  # sampled with the old weights


def test_a_node_that_keeps_its_cache_reads_old_keys_and_values_with_the_new_weights() -> None:
    """The reference computes the text up to the update with the old weights, the rest with the new ones."""
    model = make()
    first, more = texts(1)[0], [7, 8, 9]

    def turn(ids: list[int]) -> Completion:
        asked = Prompt(messages=(), ids=tuple(ids), node_id="a")
        return anyio.run(partial(engine.sample, asked, max_tokens=6, seed=5, stop_tokens=()))

    with LocalEngine(model, max_batch=2, keep_cache=True) as engine:
        before = turn(first)
        read = [*first, *before.token_ids[:-1]]  # the last token of a turn is read by the next one
        with torch.no_grad():
            cache = model(torch.tensor([read]), use_cache=True).past_key_values
        change(model)
        assert engine.publish() == 1
        after = turn([*first, *before.token_ids, *more])
    assert after.cached_tokens == len(read)
    assert after.policy_version == 1
    new = [before.token_ids[-1], *more, *after.token_ids]
    with torch.no_grad():
        mixed = model(torch.tensor([new]), past_key_values=cache).logits[0, len(more) : -1].log_softmax(-1)
    expected = mixed.gather(1, torch.tensor(after.token_ids).unsqueeze(1)).squeeze(1)
    assert float((expected - torch.tensor(after.logprobs)).abs().max()) < 1e-4


class Counting(CpuRunner):
    """Counts steps, and those that overlap with an update of the weights."""

    updating = False
    steps = 0
    overlaps = 0

    def launch(self, step: Step) -> Results:
        self.steps += 1
        self.overlaps += self.updating
        results = super().launch(step)
        self.overlaps += self.updating
        return results


def test_weights_change_between_steps_and_not_during_one() -> None:
    with LocalEngine(make(), max_batch=8) as engine:
        runner = use_runner(engine, Counting)

        def train() -> None:
            for number in range(1, 11):
                while runner.steps < 3 * number:
                    time.sleep(0.001)
                with engine.updating():
                    runner.updating = True
                    change(engine.model)
                    runner.updating = False

        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        answers = ask(engine, texts(8), max_tokens=40)
        thread.join(60)
        assert not thread.is_alive()
        assert all(len(answer.token_ids) == 40 for answer in answers)
        assert runner.steps >= 40
        assert runner.overlaps == 0
        assert engine.policy_version == 10


# Reproducibility.


def test_repeating_the_same_requests_gives_the_same_bits() -> None:
    model, prompts = make(), texts(40)

    def once() -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        with LocalEngine(model, max_batch=8, chunk=64, cache_tokens=640) as engine:
            first = ask(engine, prompts, max_tokens=lambda place: 5 + place % 17)
            again = [(*prompts[place], *answer.token_ids, 7) for place, answer in enumerate(first)]
            return [(answer.token_ids, answer.logprobs) for answer in (*first, *ask(engine, again))]

    assert once() == once()


def test_a_request_without_a_seed_is_random() -> None:
    with LocalEngine(make(), max_batch=8) as engine:
        answers = ask(engine, [[1, 2, 3]] * 8, seed=None)
    assert len({answer.token_ids for answer in answers}) > 1


# Stopping.


def test_a_stop_token_ends_the_completion_and_is_part_of_it() -> None:
    with LocalEngine(make(), max_batch=8) as engine:
        free = ask(engine, [[1, 2, 3]], max_tokens=30)[0]
        end = free.token_ids[7]
        stopped = ask(engine, [[1, 2, 3]], max_tokens=30, stop_tokens=(end,))[0]
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(end) + 1]
    assert stopped.finish == "stop"
    assert free.finish == "length"


def test_a_stop_string_ends_the_completion_with_the_token_that_completes_it() -> None:
    with LocalEngine(make(), renderer=TokenRenderer(Letters()), max_batch=8) as engine:
        free = ask(engine, [[1, 2, 3]], max_tokens=30)[0]
        mark = Letters().decode(list(free.token_ids[5:8]))
        stopped = ask(engine, [[1, 2, 3]], max_tokens=30, stop=(mark, "never sampled"))[0]
    assert stopped.token_ids == free.token_ids[:8]
    assert stopped.text.endswith(mark)
    assert stopped.finish == "stop"


def test_stop_tokens_are_those_of_the_chat_format_and_of_the_model() -> None:
    model = make(eos_token_id=[9, 11])
    with LocalEngine(model, renderer=TokenRenderer(WordTokenizer())) as engine:
        assert engine.stop_tokens == {engine.renderer.end_of_turn, 9, 11}  # pyright: ignore


def test_a_completion_ends_at_the_window() -> None:
    with LocalEngine(make(), window=40) as engine:
        answer = ask(engine, [[5] * 30], max_tokens=100)[0]
    assert len(answer.token_ids) == 10
    assert answer.finish == "length"


# Cancelling.


async def cancel_after_some_tokens(engine: LocalEngine) -> int:
    """Cancel a request that is being sampled; returns the number of tokens its meter counted."""
    meter = Meter()
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: engine.sample(prompt(), max_tokens=ENDLESS, stop_tokens=(), meter=meter))
        await until(lambda: meter.tokens >= 5)
        group.cancel_scope.cancel()
    return meter.tokens


def test_the_meter_of_a_cancelled_request_has_the_ids_that_an_uncancelled_one_samples() -> None:
    meter = Meter()

    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: engine.sample(prompt(), max_tokens=ENDLESS, stop_tokens=(), seed=3, meter=meter))
            await until(lambda: meter.tokens >= 5)
            group.cancel_scope.cancel()

    async def whole(tokens: int) -> Completion:
        return await engine.sample(prompt(), max_tokens=tokens, stop_tokens=(), seed=3)

    with roomy(max_batch=1) as engine:
        anyio.run(main)
        assert meter.partial is not None
        received = meter.partial()
        again = anyio.run(whole, received.num_tokens)
    assert received.num_tokens == len(received.token_ids) == len(received.logprobs) >= 5
    assert received.token_ids == again.token_ids
    assert received.text == again.text


def test_a_cancelled_request_frees_its_pages_and_its_meter_has_its_cost() -> None:
    async def main() -> int:
        tokens = await cancel_after_some_tokens(engine)
        await until(lambda: engine.idle)
        return tokens

    with roomy(max_batch=1) as engine:
        assert 5 <= anyio.run(main) < ENDLESS
        cache = engine.scheduler.cache
        assert cache.available == cache.total
        assert len(ask(engine, texts(3))) == 3


def test_an_engine_works_after_an_event_loop_has_ended() -> None:
    with roomy(max_batch=1) as engine:
        for _ in range(3):
            anyio.run(cancel_after_some_tokens, engine)
        assert len(ask(engine, texts(3))) == 3


def test_a_node_that_ends_while_the_engine_is_idle_loses_its_pins_and_its_cache() -> None:
    async def main() -> None:
        await engine.sample(prompt(node_id="tree/0"), max_tokens=3)
        await until(lambda: engine._thread is None)  # it has waited a second for more
        assert [*scheduler.pinned] == [*scheduler._salts] == ["tree/0"]
        engine.ended("tree/0")

    with roomy(keep_cache=True) as engine:
        scheduler = engine.scheduler
        anyio.run(main)
        assert not scheduler.pinned
        assert not scheduler._salts


def test_closing_fails_running_requests_with_a_clear_error() -> None:
    async def main() -> None:
        meter = Meter()

        async def sampling() -> None:
            with pytest.raises(EngineError, match="the engine was closed"):
                await engine.sample(prompt(), max_tokens=ENDLESS, stop_tokens=(), meter=meter)

        async with anyio.create_task_group() as group:
            group.start_soon(sampling)
            await until(lambda: meter.tokens > 0)
            await anyio.to_thread.run_sync(engine.close)

    engine = roomy()
    anyio.run(main)
    with pytest.raises(EngineError, match="the engine was closed"):
        anyio.run(lambda: engine.sample(prompt(), max_tokens=4))


def test_requests_cancelled_at_random_times_free_all_pages() -> None:
    async def main() -> int:
        rng, completed = random.Random(1), 0

        async def one() -> None:
            nonlocal completed
            with anyio.move_on_after(rng.choice([0.0, 0.01, 0.05, math.inf])):
                await engine.sample(prompt(rng.randrange(9), 2), max_tokens=rng.randrange(1, 30), stop_tokens=())
                completed += 1

        async with anyio.create_task_group() as group:
            for _ in range(150):
                group.start_soon(one)
                await anyio.sleep(rng.choice([0.0, 0.0, 0.003]))
        await until(lambda: engine.idle)
        return completed

    with LocalEngine(make(), max_batch=8) as engine:
        assert 0 < anyio.run(main) < 150
        cache = engine.scheduler.cache
        assert cache.available == cache.total


# Failures.


def test_a_failed_step_fails_all_current_and_later_requests() -> None:
    async def main() -> None:
        for _ in range(2):
            with pytest.raises(EngineError, match="the engine failed: broken device") as caught:
                await engine.sample(prompt(), max_tokens=4)
            assert isinstance(caught.value.__cause__, ValueError)  # with the original traceback

    engine, _ = cramped(broken=True)
    anyio.run(main)


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        (None, "needs token ids"),
        ((), "needs a non-empty prompt"),
        ((1,) * 600, "a prompt of 600 tokens does not fit the window of 512"),
        ((1, VOCABULARY), "outside this model's vocabulary of 211"),
        (array("i", [1, VOCABULARY]), "outside this model's vocabulary of 211"),
        (array("i", [1, -1]), "outside this model's vocabulary of 211"),
    ],
)
def test_an_invalid_request_fails_with_the_reason_and_the_engine_continues(
    ids: Sequence[int] | None, fault: str
) -> None:
    async def main() -> None:
        with pytest.raises(EngineError, match=fault):
            await engine.sample(Prompt(messages=(), ids=ids), max_tokens=4)

    with LocalEngine(make()) as engine:
        anyio.run(main)
        assert len(ask(engine, texts(2))) == 2


def test_ids_of_another_process_come_as_an_array_and_sample_the_same() -> None:
    async def main() -> list[Completion]:
        prompts = [Prompt(messages=(), ids=ids) for ids in ((1, 2, 3), array("i", [1, 2, 3]))]
        return [await engine.sample(one, max_tokens=8, seed=4, stop_tokens=()) for one in prompts]

    with LocalEngine(make()) as engine:
        first, second = anyio.run(main)
    assert first.token_ids == second.token_ids


def test_a_prompt_too_long_for_the_cache_fails_and_the_engine_continues() -> None:
    async def main() -> None:
        with pytest.raises(EngineError, match="does not fit the cache of 64: raise cache_tokens"):
            await engine.sample(prompt(*[1] * 80), max_tokens=4)

    with LocalEngine(make(), cache_tokens=64) as engine:
        anyio.run(main)
        assert len(ask(engine, [[1, 2]])) == 1


class Cramped(CpuRunner):
    """Has memory for `room` tokens per step; the next `failures` steps run out of memory."""

    room = 10_000
    failures = 0
    broken = False

    def launch(self, step: Step) -> Results:
        if self.broken:
            raise ValueError("broken device")
        tokens = len(step.decodes) + sum(chunk.end - chunk.start for chunk in step.chunks)
        if tokens > self.room or self.failures:
            self.failures = max(0, self.failures - 1)
            raise torch.OutOfMemoryError("no room")
        return super().launch(step)


def cramped(**sizes: int) -> tuple[LocalEngine, Cramped]:
    engine = LocalEngine(make(), max_batch=8, chunk=512)
    runner = use_runner(engine, Cramped)
    vars(runner).update(sizes)
    return engine, runner


def test_out_of_memory_makes_steps_smaller_and_changes_no_token() -> None:
    prompts = texts(20)
    engine, _ = cramped(room=100)
    with engine, LocalEngine(make(), max_batch=8) as reference:
        answers = ask(engine, prompts)
        assert engine.scheduler.chunk < 512
        assert [a.token_ids for a in answers] == [a.token_ids for a in ask(reference, prompts)]


def test_persistent_out_of_memory_fails_one_request_at_a_time() -> None:
    async def main() -> tuple[list[str], int]:
        faults: list[str] = []
        done: list[int] = []

        async def one(first: int) -> None:
            try:
                done.append(len((await engine.sample(prompt(first, 2), max_tokens=5, stop_tokens=())).token_ids))
            except EngineError as error:
                faults.append(str(error))

        async with anyio.create_task_group() as group:
            for first in range(4):
                group.start_soon(one, first)
        return faults, len(done)

    engine, runner = cramped(failures=4)
    engine.scheduler.chunk = 64
    with engine:
        faults, done = anyio.run(main)
        assert faults == ["out of memory: give the engine a smaller cache_tokens or max_batch"] * len(faults)
        assert len(faults) == 4 - done > 0
        assert runner.failures == 0
        assert len(ask(engine, texts(3))) == 3


def test_a_cache_larger_than_memory_is_refused_with_its_size() -> None:
    with pytest.raises(ConfigError, match=r"not enough memory for a cache of 100,000,000,000 tokens \(\d+\.\d GiB\)"):
        LocalEngine(make(), cache_tokens=100_000_000_000)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc, which only Linux has")
def test_a_cache_takes_memory_only_where_it_is_used() -> None:
    model, before = make(), resident_bytes()
    with LocalEngine(model) as engine:
        ask(engine, texts(4))
        pool = engine.runner.pool
        assert pool.nbytes > 700 * 2**20
        assert resident_bytes() - before < pool.nbytes / 4


def resident_bytes() -> int:
    """Memory that this process takes up."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_an_unsupported_model_is_refused_with_the_reason() -> None:
    sizes = {"hidden_size": 32, "vocab_size": 50, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
    with pytest.raises(
        ConfigError, match="MistralForCausalLM: it has a sliding window; supported are decoders like Llama"
    ):
        LocalEngine(MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=8)))
    with pytest.raises(ConfigError, match="BloomForCausalLM: it does not use the attention interface of transformers"):
        LocalEngine(BloomForCausalLM(BloomConfig(hidden_size=32, vocab_size=50, n_layer=1, n_head=2)))
    with pytest.raises(ConfigError, match="Linear: not a Hugging Face model"):
        LocalEngine(torch.nn.Linear(2, 2))  # pyright: ignore


@pytest.mark.parametrize(
    ("argument", "fault"),
    [({"max_batch": 0}, "max_batch"), ({"cache_tokens": 0}, "cache_tokens"), ({"window": 9_999}, "from 2 to 512"),
     ({"top_p": 0.0}, "top_p"), ({"top_k": -1}, "top_k"), ({"chunk": 0}, "chunk"), ({"dtype": "float32"}, "dtype")],
)  # fmt: skip
def test_an_invalid_argument_is_named_in_the_error(argument: dict[str, float], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        LocalEngine(make(), **argument)  # pyright: ignore


def test_a_model_with_unusual_sizes_runs() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=20, intermediate_size=12, num_hidden_layers=1, num_attention_heads=1, vocab_size=30,
        max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    prompts = [[1], [2, 3], [4, 5, 6]]
    with LocalEngine(model) as engine:
        assert largest_difference(model, prompts, ask(engine, prompts)) < 1e-4


# Trees.


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_trees_run_under_asyncio_and_trio(backend: str) -> None:
    model = make(max_position_embeddings=4096)
    with LocalEngine(model, renderer=TokenRenderer(Letters())) as engine:
        tree = anyio.run(lambda: run("hello", engine=engine, budget=Budget(tokens=60, window=4000)), backend=backend)
        ask(engine, [[1]])
    assert 0 < tree.usage.tokens <= 60
    assert not engine.scheduler.pinned, "the pages of a node are still pinned"
    sampled = [piece for node in tree.nodes for piece in node.pieces if piece.sampled]
    assert all(len(piece.token_ids) == len(piece.logprobs) > 0 for piece in sampled)


def test_prefill_work_is_the_number_of_unique_prefix_tokens_on_a_tree_of_fifty_nodes() -> None:
    system = [(7 * place) % 200 for place in range(45)]
    prompts_seen: list[tuple[int, ...]] = []
    sampled_after: list[tuple[tuple[int, ...], int]] = []

    async def node(path: tuple[int, ...], children: list[int]) -> None:
        text = (*system, *path, 201)
        for turn in range(2):
            prompts_seen.append(text)
            answer = await engine.sample(
                Prompt(messages=(), ids=text, node_id=str(path)), max_tokens=9, seed=turn, stop_tokens=()
            )
            sampled_after.append((text, 8))  # the ninth token is sampled, but never computed
            text = (*text, *answer.token_ids, 202, turn)
            if turn == 0:
                async with anyio.create_task_group() as group:
                    for child in range(children[0] if children else 0):
                        group.start_soon(node, (*path, child, child + 50), children[1:])
        done.append(path)
        computed.update(text[:end] for end in range(len(text) - 1 - 9, len(text) - 2))

    done: list[tuple[int, ...]] = []
    computed: set[tuple[int, ...]] = set()
    with LocalEngine(make(), max_batch=16, chunk=96) as engine:
        anyio.run(node, (1,), [7, 6])
        assert len(done) == 1 + 7 + 42 == 50
        prefixes = {text[:end] for text in prompts_seen for end in range(1, len(text) + 1)}
        # sampled tokens are computed while decoding, all but the last
        second = [text for text in prompts_seen if 202 in text]
        own = sum(8 for _ in second)
        assert engine.stats.prefill_tokens == len(prefixes) - own
        assert engine.stats.evicted_pages == engine.stats.preemptions == 0

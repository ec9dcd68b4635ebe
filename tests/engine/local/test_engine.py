"""The engine as others see it: requests, nodes, new weights, trouble."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

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
from ramet.types import Meter, Prompt
from tests.engine.local.models import VOCABULARY, ask, farthest, make, texts


class Letters:
    """A tokenizer of 211 letters, the last of which ends a turn."""

    def encode(self, text: str, *, control: bool = False) -> list[int]:
        return [210 if control and letter == "§" else ord(letter) % 210 for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join("§" if i == 210 else chr(i + 210 * (i < 32)) for i in ids)

    def is_control(self, token: int) -> bool:
        return token == 210


async def until(fact: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about."""
    with anyio.fail_after(60):
        while not fact():
            await anyio.to_thread.run_sync(threading.Event().wait, 0.001)


def prompt(*ids: int, node_id: str = "") -> Prompt:
    return Prompt(messages=(), ids=ids or (1, 2, 3), node_id=node_id)


# New weights.


def change(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)


def test_after_new_weights_nothing_computed_by_the_old_ones_is_used() -> None:
    """Pitfall 4: a cache that outlives the weights it was computed with."""
    model, prompts = make(), texts(12)
    with LocalEngine(model, max_batch=8) as engine:
        first = ask(engine, prompts)
        change(model)
        assert engine.publish() == 1
        second = ask(engine, prompts)
        assert farthest(model, prompts, second) < 1e-4
        assert {answer.policy_version for answer in first} == {0}
        assert {answer.policy_version for answer in second} == {1}


def test_without_the_salt_a_cache_of_old_weights_would_be_used() -> None:
    model, prompts = make(), texts(12)
    with LocalEngine(model, max_batch=8) as engine:
        ask(engine, prompts)
        change(model)
        engine.publish()
        engine._scheduler.salt = 0
        stale = ask(engine, prompts)
        assert farthest(model, prompts, stale) > 0.05


def test_a_request_under_way_goes_on_with_the_new_weights_from_a_fresh_cache() -> None:
    """Pitfall 5: weights that go while somebody still samples from them."""
    model = make()
    before = [1, 2, 3, 4, 5]

    async def main() -> tuple[tuple[int, ...], tuple[float, ...], int]:
        meter = Meter()
        answer = None

        async def sampling() -> None:
            nonlocal answer
            answer = await engine.sample(prompt(*before), max_tokens=300, seed=3, stop_tokens=(), meter=meter)

        async with anyio.create_task_group() as group:
            group.start_soon(sampling)
            await until(lambda: meter.tokens >= 20)
            with engine.updating():
                change(model)
                told = meter.tokens
        assert answer is not None
        assert answer.policy_version == 0
        return answer.token_ids, answer.logprobs, told

    with LocalEngine(model, max_batch=2) as engine:
        ids, logprobs, told = anyio.run(main)
    with torch.no_grad():
        plain = model(torch.tensor([[*before, *ids]])).logits[0, 4:-1].log_softmax(-1)
    plain = plain.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1)
    far = (plain - torch.tensor(logprobs)).abs()
    assert float(far[told + 1 :].max()) < 1e-4  # sampled by the weights there are now
    assert float(far[:told].max()) > 0.01  # and the beginning by those there were


def test_weights_change_between_steps_and_not_during_one() -> None:
    model, prompts = make(), texts(8)
    with LocalEngine(model, max_batch=8) as engine:
        done = threading.Event()
        seen: list[bool] = []

        def trainer() -> None:
            while not done.wait(0.02):
                with engine.updating():
                    seen.append(engine._resting)

        thread = threading.Thread(target=trainer)
        thread.start()
        answers = ask(engine, prompts, max_tokens=40)
        done.set()
        thread.join()
        assert all(len(answer.token_ids) == 40 for answer in answers)
        assert seen
        assert all(seen)
        assert engine.policy_version == len(seen)


# Repetition.


def test_the_same_requests_again_give_the_same_bits() -> None:
    model, prompts = make(), texts(40)

    def once() -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        with LocalEngine(model, max_batch=8, chunk=64, cache_tokens=640) as engine:
            first = ask(engine, prompts, max_tokens=lambda place: 5 + place % 17)
            again = [(*prompts[place], *answer.token_ids, 7) for place, answer in enumerate(first)]
            return [(answer.token_ids, answer.logprobs) for answer in (*first, *ask(engine, again))]

    assert once() == once()


def test_a_request_without_a_seed_is_drawn_anew_each_time() -> None:
    with LocalEngine(make(), max_batch=8) as engine:
        answers = ask(engine, [[1, 2, 3]] * 8, seed=None)
    assert len({answer.token_ids for answer in answers}) > 1


# Stopping.


def test_a_stop_token_ends_the_answer_and_is_part_of_it() -> None:
    with LocalEngine(make(), max_batch=8) as engine:
        free = ask(engine, [[1, 2, 3]], max_tokens=30)[0]
        end = free.token_ids[7]
        stopped = ask(engine, [[1, 2, 3]], max_tokens=30, stop_tokens=(end,))[0]
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(end) + 1]
    assert stopped.finish == "stop"
    assert free.finish == "length"


def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it() -> None:
    with LocalEngine(make(), renderer=TokenRenderer(Letters()), max_batch=8) as engine:
        free = ask(engine, [[1, 2, 3]], max_tokens=30)[0]
        mark = Letters().decode(list(free.token_ids[5:8]))
        stopped = ask(engine, [[1, 2, 3]], max_tokens=30, stop=(mark, "never said"))[0]
    assert stopped.token_ids == free.token_ids[:8]
    assert stopped.text.endswith(mark)
    assert stopped.finish == "stop"


def test_turns_end_with_the_tokens_of_the_chat_format_and_of_the_model() -> None:
    model = make(eos_token_id=[9, 11])
    with LocalEngine(model, renderer=TokenRenderer(WordTokenizer())) as engine:
        assert engine._stops == {engine.renderer.end_of_turn, 9, 11}  # pyright: ignore


def test_a_text_that_reaches_the_window_ends_there() -> None:
    with LocalEngine(make(), window=40) as engine:
        answer = ask(engine, [[5] * 30], max_tokens=100)[0]
    assert len(answer.token_ids) == 10
    assert answer.finish == "length"


# Cancelling.


def test_a_cancelled_request_leaves_nothing_behind_and_its_meter_tells_what_it_cost() -> None:
    async def main() -> int:
        meter = Meter()
        with anyio.move_on_after(0.3):
            await engine.sample(prompt(), max_tokens=400, stop_tokens=(), meter=meter)
        await until(lambda: not (engine._scheduler.running or engine._waiters))
        return meter.tokens

    with LocalEngine(make(), max_batch=1) as engine:
        assert 0 < anyio.run(main) < 400
        cache = engine._scheduler.cache
        assert cache.available == cache.total
        assert len(ask(engine, texts(3))) == 3


def test_an_event_loop_that_ends_takes_its_requests_with_it() -> None:
    async def walk_away() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: engine.sample(prompt(), max_tokens=400, stop_tokens=()))
            await anyio.sleep(0.05)
            group.cancel_scope.cancel()

    with LocalEngine(make(), max_batch=1) as engine:
        for _ in range(3):
            anyio.run(walk_away)
        assert len(ask(engine, texts(3))) == 3


def test_closing_ends_what_is_under_way_with_a_clear_error() -> None:
    async def main() -> None:
        async with anyio.create_task_group() as group:

            async def sampling() -> None:
                with pytest.raises(EngineError, match="the engine was closed"):
                    await engine.sample(prompt(), max_tokens=400, stop_tokens=())

            group.start_soon(sampling)
            await anyio.sleep(0.1)
            await anyio.to_thread.run_sync(engine.close)

    engine = LocalEngine(make())
    anyio.run(main)
    with pytest.raises(EngineError, match="the engine was closed"):
        anyio.run(lambda: engine.sample(prompt(), max_tokens=4))


def test_requests_that_come_and_go_at_any_moment_leave_nothing_behind() -> None:
    async def main() -> int:
        rng, whole = random.Random(1), 0

        async def one() -> None:
            nonlocal whole
            with anyio.move_on_after(rng.choice([0.0, 0.01, 0.05, 9.0])):
                await engine.sample(prompt(rng.randrange(9), 2), max_tokens=rng.randrange(1, 30), stop_tokens=())
                whole += 1

        async with anyio.create_task_group() as group:
            for _ in range(150):
                group.start_soon(one)
                await anyio.sleep(rng.choice([0.0, 0.0, 0.003]))
        await until(lambda: not (engine._scheduler.running or engine._scheduler.waiting or engine._waiters))
        return whole

    with LocalEngine(make(), max_batch=8) as engine:
        assert 0 < anyio.run(main) < 150
        cache = engine._scheduler.cache
        assert cache.available == cache.total


# Trouble.


def test_a_step_that_fails_for_good_says_why_to_all_and_to_those_who_come_later() -> None:
    async def main() -> None:
        for _ in range(2):
            with pytest.raises(EngineError, match="the engine failed: the bits have gone") as caught:
                await engine.sample(prompt(), max_tokens=4)
            assert isinstance(caught.value.__cause__, ValueError)  # with the trace of where it happened

    engine, _ = cramped(broken=True)
    anyio.run(main)


@pytest.mark.parametrize(
    ("ids", "fault"),
    [
        (None, "takes token ids"),
        ((), "needs a prompt"),
        ((1,) * 600, "a prompt of 600 tokens does not fit the window of 512"),
        ((1, VOCABULARY), "outside this model's vocabulary of 211"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why_and_the_engine_goes_on(
    ids: tuple[int, ...] | None, fault: str
) -> None:
    async def main() -> None:
        with pytest.raises(EngineError, match=fault):
            await engine.sample(Prompt(messages=(), ids=ids), max_tokens=4)

    with LocalEngine(make()) as engine:
        anyio.run(main)
        assert len(ask(engine, texts(2))) == 2


def test_a_prompt_too_long_for_the_cache_says_so_and_the_engine_goes_on() -> None:
    async def main() -> None:
        with pytest.raises(EngineError, match="does not fit the cache of 64: raise cache_tokens"):
            await engine.sample(prompt(*[1] * 80), max_tokens=4)

    with LocalEngine(make(), cache_tokens=64) as engine:
        anyio.run(main)
        assert len(ask(engine, [[1, 2]])) == 1


class Cramped(CpuRunner):
    """Memory for no more than a few tokens at once, and on bad days for none."""

    room = 10_000
    hopeless = 0
    broken = False

    def launch(self, step: Step) -> Results:
        if self.broken:
            raise ValueError("the bits have gone")
        tokens = len(step.decodes) + sum(chunk.end - chunk.start for chunk in step.chunks)
        if tokens > self.room or self.hopeless:
            self.hopeless = max(0, self.hopeless - 1)
            raise torch.OutOfMemoryError("no room")
        return super().launch(step)


def cramped(**sizes: int) -> tuple[LocalEngine, Cramped]:
    engine = LocalEngine(make(), max_batch=8, chunk=512)
    runner = Cramped.__new__(Cramped)
    runner.__dict__.update(vars(engine.runner), **sizes)
    engine.runner = runner
    return engine, runner


def test_out_of_memory_makes_steps_smaller_and_answers_stay_the_same() -> None:
    prompts = texts(20)
    engine, _ = cramped(room=100)
    with engine, LocalEngine(make(), max_batch=8) as roomy:
        answers = ask(engine, prompts)
        assert engine._scheduler.chunk < 512
        assert [a.token_ids for a in answers] == [a.token_ids for a in ask(roomy, prompts)]


def test_out_of_memory_that_does_not_pass_fails_one_request_at_a_time() -> None:
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

    engine, runner = cramped(hopeless=4)
    engine._scheduler.chunk = 64
    with engine:
        faults, done = anyio.run(main)
        assert faults == ["out of memory: give the engine a smaller cache_tokens or max_batch"] * len(faults)
        assert len(faults) == 4 - done > 0
        assert runner.hopeless == 0
        assert len(ask(engine, texts(3))) == 3


def test_a_cache_larger_than_memory_is_refused_with_its_size() -> None:
    with pytest.raises(ConfigError, match=r"no memory for a cache of 100,000,000,000 tokens \(\d+\.\d GiB\)"):
        LocalEngine(make(), cache_tokens=100_000_000_000)


def test_a_model_that_cannot_be_run_here_is_refused_with_the_reason() -> None:
    sizes = {"hidden_size": 32, "vocab_size": 50, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
    with pytest.raises(ConfigError, match="MistralForCausalLM: it has a sliding window; decoders like Llama"):
        LocalEngine(MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=8)))
    with pytest.raises(ConfigError, match="BloomForCausalLM: it does not use the attention interface of transformers"):
        LocalEngine(BloomForCausalLM(BloomConfig(hidden_size=32, vocab_size=50, n_layer=1, n_head=2)))
    with pytest.raises(ConfigError, match="Linear: not a Hugging Face model"):
        LocalEngine(torch.nn.Linear(2, 2))  # pyright: ignore


@pytest.mark.parametrize(
    ("knob", "fault"),
    [({"max_batch": 0}, "max_batch"), ({"cache_tokens": 0}, "cache_tokens"), ({"window": 9_999}, "from 2 to 512"),
     ({"top_p": 0.0}, "top_p"), ({"top_k": -1}, "top_k"), ({"chunk": 0}, "chunk"), ({"dtype": "float32"}, "dtype")],
)  # fmt: skip
def test_a_knob_that_makes_no_sense_is_named(knob: dict[str, float], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        LocalEngine(make(), **knob)  # pyright: ignore


def test_small_odd_models_run_too() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=20, intermediate_size=12, num_hidden_layers=1, num_attention_heads=1, vocab_size=30,
        max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    prompts = [[1], [2, 3], [4, 5, 6]]
    with LocalEngine(model) as engine:
        assert farthest(model, prompts, ask(engine, prompts)) < 1e-4


# Trees.


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_trees_run_on_it_under_either_event_loop(backend: str) -> None:
    model = make(max_position_embeddings=4096)
    with LocalEngine(model, renderer=TokenRenderer(Letters())) as engine:
        tree = anyio.run(lambda: run("hello", engine=engine, budget=Budget(tokens=60, window=4000)), backend=backend)
        ask(engine, [[1]])
    assert 0 < tree.usage.tokens <= 60
    assert not engine._scheduler._parked, "a node's pages are still kept for it"
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
            sampled_after.append((text, 8))  # the ninth token has been sampled, and never been read
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
        # what was sampled is computed while it is sampled, all but its last token
        second = [text for text in prompts_seen if 202 in text]
        own = sum(8 for _ in second)
        assert engine.stats.prefill_tokens == len(prefixes) - own
        assert engine.stats.evicted_pages == engine.stats.preemptions == 0

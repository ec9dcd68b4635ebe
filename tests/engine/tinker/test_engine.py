"""The engine on the Tinker API: chunks, stops, seeds, versions, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest

from ramet.config import load
from ramet.engine.scripted import WordTokenizer
from ramet.engine.settings import EngineConfig
from ramet.engine.tinker.calls import CHECK_EVERY_S, Calls
from ramet.engine.tinker.engine import TinkerEngine, Version, chunk_seed, chunk_size
from ramet.engine.tinker.limits import Limits, choose_window, read_limits
from ramet.engine.tinker.remote import RemoteEngine
from ramet.engine.tinker.sdk import api_key, check_address
from ramet.engine.tinker.service import Sampled
from ramet.errors import ConfigError, EngineError
from ramet.inputs.settings import RunConfig
from ramet.tokens.render import TokenRenderer
from ramet.types import Completion, Message, Meter, Prompt
from tests.conftest import in_virtual_time
from tests.engine.tinker.scripted import SilentService

IDS = (1, 2, 3)
Answer = Callable[[int], Sampled]


@dataclass
class Server:
    """Gives the next of these ids, as many as are asked for; `answer` replaces that."""

    ids: Sequence[int] = range(10, 200)
    stop_at: int | None = None
    answer: Answer | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def sample(self, token_ids: Sequence[int], **how: Any) -> Sampled:
        self.asked.append({"ids": tuple(token_ids), **how})
        await anyio.lowlevel.checkpoint()
        if self.answer is not None:
            return self.answer(how["max_tokens"])
        begin = len(token_ids) - len(IDS)
        ids = tuple(self.ids[begin : begin + how["max_tokens"]])
        if self.stop_at in ids:
            ids = ids[: ids.index(self.stop_at) + 1]
        return Sampled(token_ids=ids, logprobs=(-1.0,) * len(ids), stopped=self.stop_at in ids)


def engine(server: Server, *, number: int = 4, **more: Any) -> TinkerEngine:
    tokenizer = WordTokenizer()
    tokenizer.encode(" ".join(f"w{n}" for n in range(100)))

    async def current() -> Version:
        return Version(sampler=server, number=number)

    calls = Calls(SilentService(), deadline_s=60)  # pyright: ignore[reportArgumentType]
    given = {"window": 1000, "chunk": 8, "vocabulary": 200, **more}
    return TinkerEngine(calls, current, renderer=TokenRenderer(tokenizer), **given)


def sample(server: Server, *, ids: Sequence[int] | None = IDS, **how: Any) -> Completion:
    made = {name: how.pop(name) for name in ("window", "chunk", "vocabulary", "stop_ids") if name in how}
    prompt = Prompt(messages=(Message(role="user", content="?"),), ids=ids)
    return in_virtual_time(partial(engine(server, **made).sample, prompt, **{"max_tokens": 20, **how}))


def test_tokens_come_in_chunks_and_every_chunk_sees_those_before_it() -> None:
    server, meter = Server(), Meter()
    done = sample(server, seed=3, meter=meter)
    assert done.token_ids == tuple(range(10, 30))
    assert (done.num_tokens, done.finish, done.policy_version, meter.tokens) == (20, "length", 4, 20)
    assert [one["max_tokens"] for one in server.asked] == [8, 8, 4]
    assert server.asked[1]["ids"] == (*IDS, *range(10, 18))
    assert len({one["seed"] for one in server.asked}) == 3  # the same one would draw the same numbers again


def test_the_same_seed_asks_for_the_same_numbers() -> None:
    servers = Server(), Server()
    for server in servers:
        sample(server, seed=3)
    assert servers[0].asked == servers[1].asked


@pytest.mark.parametrize(("left", "chunk", "asked"), [(100, 32, 32), (31, 32, 16), (1, 32, 1), (31, None, 31)])
def test_sizes_are_the_chunk_or_a_power_of_two(left: int, chunk: int | None, asked: int) -> None:
    assert chunk_size(left, chunk) == asked


def test_seeds_are_what_servers_take() -> None:
    seeds = [chunk_seed(7, place) for place in range(0, 1000, 10)]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert all(one != other for one, other in pairwise(seeds))


def test_a_turn_ends_at_a_stop_token() -> None:
    server = Server(stop_at=13)
    done = sample(server, stop_ids=[13])
    assert (done.token_ids, done.finish) == ((10, 11, 12, 13), "stop")
    assert 13 in server.asked[0]["stop_ids"]


def test_a_stop_text_cuts_the_turn_and_what_was_generated_behind_it_is_paid_for() -> None:
    """Ids 2k are words w<k>, ids 2k + 1 spaces, in the order in which they were first seen."""
    server = Server()
    tokenizer = engine(server).renderer.tokenizer
    mark = tokenizer.decode([12])
    done = sample(server, stop=[mark])
    assert done.text.endswith(mark)
    assert done.token_ids[-1] == 12
    assert len(done.logprobs) == len(done.token_ids) == 3
    assert (done.num_tokens, done.finish) == (8, "stop")  # the whole chunk
    assert len(server.asked) == 1


def test_a_stop_text_before_a_stop_token_of_the_same_chunk_cuts_the_turn_too() -> None:
    mark = engine(Server()).renderer.tokenizer.decode([12])
    done = sample(Server(stop_at=15), stop=[mark], stop_ids=[15])
    assert (done.token_ids, done.num_tokens, done.finish) == ((10, 11, 12), 6, "stop")


def test_the_window_bounds_the_completion() -> None:
    assert sample(Server(), window=10).num_tokens == 7


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"ids": None}, "needs token ids"),
        ({"ids": ()}, "needs token ids"),
        ({"ids": (1, 200)}, "outside this model's vocabulary of 200"),
        ({"ids": (-1, 2)}, "outside this model's vocabulary of 200"),
        ({"window": 3}, "a prompt of 3 tokens does not fit the window of 3"),
        ({"max_tokens": 0}, "max_tokens >= 1"),
    ],
)
def test_what_a_server_would_answer_with_nonsense_is_not_asked(how: dict[str, Any], message: str) -> None:
    server = Server()
    with pytest.raises(EngineError, match=message):
        sample(server, **how)
    assert server.asked == []


@pytest.mark.parametrize(
    ("ids", "logprobs", "stopped", "message"),
    [
        ((), (), True, "0 tokens where 1 to 8"),
        (range(9), [-1.0] * 9, False, "9 tokens where 1 to 8"),
        ((5,), (), True, "1 tokens and 0 log-probs"),
        ((5,), (float("nan"),), True, "not finite"),
        ((500,), (-1.0,), True, "outside the vocabulary of 200"),
        ((5,), (-1.0,), False, "1 of 8 tokens and no reason"),
    ],
)
def test_a_server_that_breaks_the_contract_is_one_line(
    ids: Sequence[int], logprobs: Sequence[float], stopped: bool, message: str
) -> None:
    broken = Sampled(token_ids=tuple(ids), logprobs=tuple(logprobs), stopped=stopped)
    with pytest.raises(EngineError, match=message):
        sample(Server(answer=lambda asked: broken))


def test_a_completion_keeps_the_version_it_began_with() -> None:
    """Another version is published between its chunks."""
    old, new = Server(), Server()
    versions = [Version(sampler=old, number=1)]
    made = engine(old)

    async def current() -> Version:
        return versions[-1]

    def publish(asked: int) -> Sampled:
        versions.append(Version(sampler=new, number=2))
        return Sampled(token_ids=(5,) * asked, logprobs=(-1.0,) * asked, stopped=False)

    old.answer = publish
    made = TinkerEngine(made.calls, current, renderer=made.renderer, window=99, chunk=8, vocabulary=200)
    prompt = Prompt(messages=(Message(role="user", content="?"),), ids=IDS)
    done = in_virtual_time(partial(made.sample, prompt, max_tokens=16))
    assert (done.policy_version, len(old.asked), len(new.asked)) == (1, 2, 0)


def test_a_server_that_is_gone_is_found_out_within_seconds_and_then_at_once() -> None:
    service = SilentService()
    calls = Calls(service, deadline_s=3600)  # pyright: ignore[reportArgumentType]

    async def work() -> tuple[float, float]:
        began = anyio.current_time()
        service.gone = True
        for _ in range(2):
            with pytest.raises(EngineError, match="nothing answers at http://silent"):
                await calls.run("sample", anyio.sleep_forever)
            if calls.lost is not None and _ == 0:
                first = anyio.current_time() - began
        return first, anyio.current_time() - began - first

    first, second = in_virtual_time(work)
    assert first == pytest.approx(CHECK_EVERY_S)
    assert second == 0


def test_a_call_ends_at_its_deadline_while_the_server_is_there() -> None:
    calls = Calls(SilentService(), deadline_s=60)  # pyright: ignore[reportArgumentType]

    async def work() -> float:
        with pytest.raises(EngineError, match="optim_step: the server did not answer within 60 s"):
            await calls.run("optim_step", anyio.sleep_forever)
        return anyio.current_time()

    began = in_virtual_time(_now)
    assert in_virtual_time(work) - began == pytest.approx(60)


async def _now() -> float:
    return anyio.current_time()


def test_a_key_is_needed_beyond_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    assert api_key("http://127.0.0.1:8123").startswith("tml-")
    with pytest.raises(ConfigError, match="set the environment variable TINKER_API_KEY"):
        api_key("https://example.org/tinker")
    monkeypatch.setenv("TINKER_API_KEY", "tml-mine")
    assert api_key("https://example.org/tinker") == "tml-mine"


@pytest.mark.parametrize("address", ["", "127.0.0.1:8123", "ftp://x", "http://"])
def test_an_address_that_is_none_is_one_line(address: str) -> None:
    with pytest.raises(ConfigError, match="is an address like"):
        check_address(address)


def test_a_password_in_an_address_is_refused() -> None:
    with pytest.raises(ConfigError, match="contains a password"):
        check_address("http://me:secret@host")


def test_a_tinker_path_chooses_its_engine_and_needs_a_tokenizer() -> None:
    flags = {"engine.model": "tinker://a/weights/b", "engine.base_url": "http://127.0.0.1:8123"}
    config = load(RunConfig, flags=flags).engine
    assert config.kind == "tinker"
    with pytest.raises(ConfigError, match="needs the tokenizer of its base model"):
        RemoteEngine(config)
    with pytest.raises(ConfigError, match=r"engine\.device is for engine\.kind=local, and this is tinker"):
        EngineConfig(kind="tinker", device="cpu")


def test_limits_come_from_the_files_of_a_model(tmp_path: Path) -> None:
    assert read_limits(tmp_path) == Limits()
    (tmp_path / "config.json").write_text(
        '{"text_config": {"vocab_size": 9, "max_position_embeddings": 64}, "eos_token_id": 2}'
    )
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    assert read_limits(tmp_path) == Limits(window=64, vocabulary=9, stop_ids=(2, 5))
    assert choose_window(None, 64, None) == 64
    assert choose_window(32, 64) == 32
    with pytest.raises(ConfigError, match="at most 64 tokens; got 65"):
        choose_window(65, 64)

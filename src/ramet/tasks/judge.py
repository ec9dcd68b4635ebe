"""Verdicts from a judge model: bounded in size, limited in cost, cached by content.

A judge never ends a run. A server that fails, replies that cannot be parsed and limits that are reached leave a node
without a verdict; it is then graded as if there were no judge, and counted.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio

from ramet.agent.reading import off_loop
from ramet.agent.task_groups import task_group
from ramet.engine.settings import JudgeConfig
from ramet.errors import EngineError
from ramet.interfaces import Caching, Engine, Windowed
from ramet.tasks.judge_cache import Entry, JudgeCache
from ramet.tasks.judge_text import instructions, read_verdict, report, shorten
from ramet.types import Completion, Judgement, Judging, Message, Meter, Node, Prompt, Tree, Verdict

RETRY_TEMPERATURE = 0.7  # the first try is greedy; another one must be able to differ
FILE = "judge.jsonl"  # of a run directory
REPLY_BYTES = 4000  # of a reply, kept with its verdict
SCALES = (1.0, 0.5, 0.25, 0.125, 0.0625)  # of all sizes, until the report fits the judge's window


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a judge is asked about one node."""

    key: str
    text: str
    prompt: Prompt
    size: int  # tokens of the prompt; without a tokenizer an upper bound
    model: str


class Judge:
    """Asks an engine for verdicts on nodes.

    Example:
        Judge(HttpEngine("http://127.0.0.1:8000/v1", model="bigger-model"))

    `model` names the judge in its verdicts; a policy in training has another name after every update, because its
    verdicts may change. `failed_root` is the score of a root for which the judge gave no verdict; with None it has
    none.
    """

    def __init__(
        self,
        engine: Engine,
        config: JudgeConfig | None = None,
        *,
        model: Callable[[], str] | str = "judge",
        cache: JudgeCache | None = None,
        failed_root: float | None = None,
    ) -> None:
        self.engine = engine
        self.config = config or JudgeConfig()
        self.cache = JudgeCache(most=self.config.cache) if cache is None else cache
        self.failed_root = failed_root
        self._model = model
        self._system = instructions(self.config)
        self._reserved_calls = 0  # of calls in flight
        self._reserved_tokens = 0
        self._asking: dict[str, anyio.Event] = {}

    @property
    def prompt_hash(self) -> str:
        """Identifies the judge's instructions."""
        return _hash(self._system)[:12]

    async def verdict(self, node: Node, tree: Tree) -> Verdict | None:
        """None when no verdict could be reached."""
        return (await self.verdicts([node], tree))[0]

    async def verdicts(self, nodes: Sequence[Node], tree: Tree) -> list[Verdict | None]:
        """A verdict on each node, asked for in parallel. Costs are added to `tree.judging`.

        Which nodes the limits of the tree allow is decided before the first call, for the most that all tries can
        cost. So it depends on the tree alone, and a resumed run judges the same nodes.
        """
        counts = tree.judging = tree.judging or Judging()
        found: list[Verdict | None] = [None] * len(nodes)

        async def judge(place: int, question: Question) -> None:
            found[place] = await self._verdict(question, counts)

        questions = self._admit(nodes, tree, counts)
        try:
            async with task_group() as group:
                for place, question in questions.items():
                    group.start_soon(judge, place, question)
        finally:
            self.cache.write()
        return [self._or_failed(verdict, node) for verdict, node in zip(found, nodes, strict=True)]

    def _or_failed(self, verdict: Verdict | None, node: Node) -> Verdict | None:
        if verdict is not None or node.parent is not None or self.failed_root is None:
            return verdict
        return Verdict(score=self.failed_root, how="judge", reason="the judge gave no verdict")

    def _admit(self, nodes: Sequence[Node], tree: Tree, counts: Judging) -> dict[int, Question]:
        """The questions that the limits of one tree allow, by place."""
        config = self.config
        calls, tokens = _limit(config.tree_calls), _limit(config.tree_tokens)
        questions: dict[int, Question] = {}
        for place, node in enumerate(nodes):
            question = self._question(node, tree)
            if question is None:
                counts.failed += 1
                continue
            worst = config.tries * (question.size + config.max_tokens)
            if config.tries > calls or worst > tokens:
                counts.capped += 1
                continue
            calls, tokens = calls - config.tries, tokens - worst
            questions[place] = question
        return questions

    def _question(self, node: Node, tree: Tree) -> Question | None:
        """The largest report on a node that fits the judge's window; None if none does."""
        window = self.engine.window if isinstance(self.engine, Windowed) else None
        model = self._model if isinstance(self._model, str) else self._model()
        for scale in SCALES:
            text = report(node, tree, self.config, scale=scale)
            piece = self.engine.renderer.open(self._system, text)
            size = self.engine.renderer.size(piece)
            if window is None or size + self.config.max_tokens <= window:
                key = _hash("\0".join((model, self._system, text)))
                prompt = Prompt(
                    messages=(Message("system", self._system), Message("user", text)),
                    ids=piece.token_ids if self.engine.renderer.exact else None,
                    node_id=f"judge-{key[:16]}/0",  # a tree of its own: verdicts share no prefix worth a queue
                    goal=text,
                )
                return Question(key=key, text=text, prompt=prompt, size=size, model=model)
        return None

    async def _verdict(self, question: Question, counts: Judging) -> Verdict | None:
        """The verdict from the cache, from a call of another tree that is in flight, or from a call."""
        while (asking := self._asking.get(question.key)) is not None:
            await asking.wait()
        known = self.cache.get(question.key)
        if known is not None:
            counts.cached += 1
            counts.nodes += known.verdict is not None
            counts.failed += known.verdict is None
            return known.verdict
        done = self._asking[question.key] = anyio.Event()
        try:
            return await self._ask(question, counts)
        finally:
            del self._asking[question.key]
            done.set()

    async def _ask(self, question: Question, counts: Judging) -> Verdict | None:
        """Ask until a reply can be parsed, a limit is reached or no try is left."""
        reached = True  # whether the judge answered every time: only then would it say the same again
        for attempt in range(self.config.tries):
            if not self._within_limits(question):
                counts.capped += 1
                return None
            try:
                completion = await self._sample(question, attempt, counts)
            except EngineError:
                reached = False
                continue
            verdict = await off_loop(partial(read_verdict, completion.text))
            if verdict is not None:
                verdict = self._signed(verdict, question, completion)
                self.cache.add(question.key, Entry(verdict=verdict))
                counts.nodes += 1
                return verdict
        if reached and self.failed_root is not None:  # else no verdict ends the run, and another run may do better
            self.cache.add(question.key, Entry(verdict=None))
        counts.failed += 1
        return None

    def _signed(self, verdict: Verdict, question: Question, completion: Completion) -> Verdict:
        reply = shorten(completion.text, REPLY_BYTES)
        origin = Judgement(model=question.model, prompt=self.prompt_hash, key=question.key, reply=reply)
        return replace(verdict, judgement=origin)

    def _within_limits(self, question: Question) -> bool:
        """Whether one more call keeps the whole run within its limits, whatever the reply."""
        config, cache = self.config, self.cache
        worst = question.size + config.max_tokens
        return cache.calls + self._reserved_calls < _limit(
            config.calls
        ) and cache.tokens + self._reserved_tokens + worst <= _limit(config.tokens)

    async def _sample(self, question: Question, attempt: int, counts: Judging) -> Completion:
        """One reply. Calls that fail or are cancelled are counted too."""
        meter, began = Meter(), time.monotonic()
        worst = question.size + self.config.max_tokens
        prompt = generated = 0
        self._reserved_calls += 1
        self._reserved_tokens += worst
        try:
            completion = await self.engine.sample(
                question.prompt,
                max_tokens=self.config.max_tokens,
                temperature=RETRY_TEMPERATURE if attempt else 0.0,
                seed=attempt,
                meter=meter,
            )
            prompt = question.size if completion.prompt_tokens is None else completion.prompt_tokens
            generated = completion.num_tokens
        except BaseException:
            prompt, generated = question.size if meter.tokens else 0, meter.tokens
            raise
        finally:
            self._reserved_calls -= 1
            self._reserved_tokens -= worst
            self.cache.spend(calls=1, tokens=prompt + generated)
            counts.calls += 1
            counts.tokens += prompt + generated
            counts.generated += generated
            counts.seconds += time.monotonic() - began
            if isinstance(self.engine, Caching):
                self.engine.ended(question.prompt.node_id)
        return completion


def open_judge(
    engine: Engine,
    config: JudgeConfig,
    *,
    run: Path | None = None,
    model: Callable[[], str] | None = None,
    failed_root: float | None = None,
) -> Judge:
    """The judge of a run directory, which keeps its verdicts there."""
    cache = JudgeCache(None if run is None else run / FILE, most=config.cache)
    return Judge(engine, config, model=model or config.model, cache=cache, failed_root=failed_root)


def _limit(value: int | None) -> float:
    return float("inf") if value is None else value


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

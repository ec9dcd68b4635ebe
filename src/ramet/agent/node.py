"""One node: reserve, sample, act, and at the end always a word.

Every turn is paid for before it is sampled. A node stops thinking while it can still afford to answer: when tokens,
money, window, turns or time come to their end it is asked once more, out of its reserve, for the best it has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from ramet.agent.limits import Limits
from ramet.agent.spawn import admit, report
from ramet.agent.transcript import Transcript
from ramet.agent.wording import cut, report_text
from ramet.budget import Ledger
from ramet.errors import EngineError, EngineInterrupted
from ramet.interfaces import Child, HostFunction, Outcome, Report, Request, Result, Session
from ramet.types import Completion, Meter, Node, Piece, Refusal, State, Stop, Turn

if TYPE_CHECKING:
    from ramet.agent.tree import TreeRun

TRIES = 3  # calls that may break off in the middle before the node gives up
TIME_RESERVE = 0.1  # share of a node's time kept back for its answer


@dataclass(slots=True, kw_only=True)
class Step:
    """A turn about to be taken: the message that opens it, and how much may be said."""

    message: str
    piece: Piece | None
    size: int  # of the window, with the message
    closing: Stop | None
    cap: int = 0
    only: bool = False  # the node has one turn in all


def _until(deadline: float) -> AbstractContextManager[object]:
    """A scope that ends at the deadline; none at all, which is cheaper, when there is no deadline."""
    return anyio.CancelScope(deadline=deadline) if deadline < math.inf else nullcontext()


class NodeRun:
    """Runs one node. To its dialect's session it is the `Host`."""

    def __init__(
        self,
        tree: TreeRun,
        node: Node,
        ledger: Ledger,
        *,
        deadline: float,
        context: Mapping[str, str],
        text: object = None,
        returns: object = None,
    ) -> None:
        self.tree = tree
        self.node = node
        self.ledger = ledger
        self.deadline = deadline  # by then it has ended
        self.soft = deadline  # by then its children have ended, and it is asked for its answer
        self.context = context
        self.text = text
        self.returns = returns
        self.transcript = Transcript(node, tree.engine.renderer, tree.tree.id)
        self.limits = Limits(tree.budget, ledger, node, closing_size=tree.closing_size)
        self.closing: Stop | None = None
        self.clock = 0  # tokens on the longest chain of dependent work so far
        self.num_children = 0
        self.loans: list[tuple[Node, Ledger]] = []
        self._results: list[Result] = []  # what the next message will tell

    # What a session asks of its host.

    @property
    def functions(self) -> Mapping[str, HostFunction]:
        return self.tree.world.functions

    @property
    def reads_texts(self) -> bool:
        return self.node.parent is not None or self.ledger.depth < 1

    @property
    def result_bytes(self) -> int:
        return self.tree.budget.result_bytes

    @property
    def output_bytes(self) -> int:
        return self.tree.budget.output_bytes

    def admit(self, requests: Sequence[Request], *, beside: int = 0) -> list[Child | Refusal]:
        return admit(self, requests, beside=beside)

    async def run_all(self, requests: Sequence[Request]) -> list[Report]:
        admitted = self.admit(requests)
        reports: list[Report | None] = [None] * len(admitted)

        async def run(i: int, child: Child) -> None:
            reports[i] = await child.run()

        self.node.state = State.WAITING
        async with anyio.create_task_group() as group:
            for i, child in enumerate(admitted):
                if isinstance(child, Refusal):
                    reports[i] = Report(goal=child.goal, error=child.reason)
                else:
                    group.start_soon(run, i, child, name="clone")
        self.node.state = State.ACTING
        return [report for report in reports if report is not None]

    def child(self, node: Node, loan: Ledger, *, context: Mapping[str, str], text: object, returns: object) -> NodeRun:
        """A clone with its own window and ledger, which ends before our own reserve of time begins."""
        return NodeRun(self.tree, node, loan, deadline=self.soft, context=context, text=text, returns=returns)

    # The life of a node.

    def open(self, *, missing: Sequence[str] = ()) -> None:
        """Fill the window with what the node starts from."""
        tree = self.tree
        user = tree.dialect.opening(self, missing=missing)
        if tree.show_budget:
            user = f"{user}\n\n{tree.left(self)}"
        self.transcript.open(tree.system(child=self.node.parent is not None, depth=self.ledger.depth), user)

    async def run(self) -> None:
        """Until it has answered, or cannot any more. Only cancellation from outside leaves as an exception."""
        node = self.node
        node.started_s = self.tree.now()
        session = self.tree.dialect.session(self)
        if self.deadline < math.inf:
            self.soft = self.deadline - TIME_RESERVE * (self.deadline - self.tree.clock())
        try:
            with _until(self.deadline):
                why = await self._work(session)
                if why is not None:
                    await self._turn(self._last(why), session)
        except EngineError as error:
            node.stop, node.error = Stop.ERROR, str(error)
        finally:
            self._end()

    async def _work(self, session: Session) -> Stop | None:
        """Turns until the node is done (None), or must be asked for its answer (why)."""
        with _until(self.soft):
            while self.node.stop is None:
                step = self._next()
                if isinstance(step, Stop):
                    return step
                await self._turn(step, session)
            return None
        self._results = self._salvage()
        return Stop.DEADLINE

    def _salvage(self) -> list[Result]:
        """What came back of the turn that time cut short: every child it started, answered or not."""
        if self.node.state is State.SAMPLING or not self.node.turns:
            return self._results  # nothing was under way but the model's own words
        number, children = len(self.node.turns), self.node.turns[-1].children
        reports = [report(self.tree.tree.nodes[index]) for index in children]
        return [
            Result(f"clone {number}.{i}", report_text(one, limit=self.result_bytes))
            for i, one in enumerate(reports, start=1)
        ]

    async def _turn(self, step: Step, session: Session) -> None:
        """Tell what came back, sample, act."""
        node, closing = self.node, step.closing
        if closing is not None:
            self.closing = node.stop = closing
        if step.cap < 1:
            node.stop = node.stop or Stop.BUDGET
            return
        if step.piece is not None:
            self.transcript.give(step.message, step.piece)
        self._results = []
        started = self.tree.now()
        completion = await self._sample(step.cap)
        text = self.transcript.say(completion)
        turn = Turn(
            tokens=completion.num_tokens,
            finish=completion.finish,
            started_s=started,
            sampled_s=self.tree.now(),
            closing=closing,
        )
        node.turns.append(turn)
        node.state = State.ACTING
        if closing is not None or step.only:
            outcome = await session.close(text)
            if step.only:
                complete = completion.finish == "stop" and outcome.answer is not None
                node.stop = Stop.ANSWERED if complete else Stop.TURNS
        else:
            outcome = await session.act(text, finish=completion.finish)
        self._apply(outcome, turn)

    def _apply(self, outcome: Outcome, turn: Turn) -> None:
        turn.repairs += outcome.repairs
        turn.faults += outcome.faults
        self._results += outcome.results
        if outcome.done:
            self.node.answer, self.node.value = outcome.answer, outcome.value
            self.node.stop = self.node.stop or Stop.ANSWERED

    def _end(self) -> None:
        """Whatever happened: a reason on the node, every loan settled."""
        node = self.node
        if node.stop is None:
            late = self.tree.clock() >= self.deadline
            node.stop = Stop.DEADLINE if late else Stop.CANCELLED
        for child, loan in self.loans:
            if child.stop is None:  # admitted, and cancelled before it could start
                child.stop, child.state, child.ended_s = node.stop, State.ENDED, self.tree.now()
            loan.repay()
        node.state = State.ENDED
        node.ended_s = self.tree.now()
        node.usage.critical_path_tokens = self.clock
        if self.tree.watcher is not None:
            self.tree.watcher.ended(node)
        if self.tree.cache is not None:
            self.tree.cache.ended(self.transcript.node_id)

    # Sampling, paid in advance.

    async def _sample(self, cap: int) -> Completion:
        """One completion of at most `cap` tokens. Calls that break off are paid for and tried again."""
        for attempt in range(1, TRIES + 1):
            try:
                return await self._pay_and_sample(cap)
            except EngineInterrupted:
                cap, _ = self.limits.cap(self.transcript.size, closing=self.closing is not None)
                if attempt == TRIES or cap < 1:
                    raise
        raise AssertionError("unreachable")

    async def _pay_and_sample(self, cap: int) -> Completion:
        node, usage, prices = self.node, self.node.usage, self.tree.budget.prices
        prompt = self.transcript.prompt(closing=self.closing is not None)
        size = self.transcript.size
        meter = node.meter = Meter()
        node.state = State.SAMPLING
        with self.ledger.hold(tokens=cap, money=prices.worst(prompt=size, generated=cap)) as hold:
            usage.calls += 1
            try:
                completion = await self.tree.sample(prompt, max_tokens=cap, seed=self._seed(), meter=meter)
            except EngineError:
                spent = min(cap, meter.tokens)
                cost = self._count(prompt=size if spent else 0, cached=0, generated=spent)
                hold.settle(tokens=spent, money=cost)
                raise
            except BaseException:
                # Cancelled: what was seen is counted, what was not seen is paid for all the same.
                self._count(prompt=size, cached=0, generated=min(cap, meter.tokens))
                usage.lost_tokens += cap - min(cap, meter.tokens)
                raise
            if completion.num_tokens > cap:
                self._count(prompt=size, cached=0, generated=completion.num_tokens)
                raise EngineError(
                    f"the engine generated {completion.num_tokens} tokens where {cap} were allowed: "
                    "no budget can hold with it"
                )
            prompt_tokens = completion.prompt_tokens or size
            cached = min(prompt_tokens, completion.cached_tokens)
            cost = self._count(prompt=prompt_tokens, cached=cached, generated=completion.num_tokens)
            hold.settle(tokens=completion.num_tokens, money=min(cost, hold.money))
        return completion

    def _count(self, *, prompt: int, cached: int, generated: int) -> int:
        """Book what a call used; returns what it cost."""
        usage = self.node.usage
        cost = self.tree.budget.prices.cost(prompt=prompt, cached=cached, generated=generated)
        usage.tokens += generated
        usage.prompt_tokens += prompt
        usage.cached_tokens += cached
        usage.cost += cost
        usage.peak_window = max(usage.peak_window, prompt + generated)
        self.node.meter = Meter()
        self.clock += generated
        return cost

    def _seed(self) -> int | None:
        return self.tree.seed_for(self.node.path, len(self.node.turns))

    # What the node is told.

    def _next(self) -> Step | Stop:
        """The next ordinary turn, or the limit that leaves room for nothing but the answer."""
        turns, allowed = len(self.node.turns), self.tree.budget.turns
        if allowed == 1 and not turns:
            return self._only()
        if turns >= allowed - 1:
            return Stop.TURNS
        step = self._step(None)
        cap, why = self.limits.cap(step.size, closing=False)
        if cap < self.limits.reserve and why is Stop.WINDOW and self._results:
            # Shorter results may still leave room for a turn of thinking.
            room = self.limits.room(self.transcript.size, closing=False)
            step = self._fitting(room, closing=None, floor=64) or step
            cap, why = self.limits.cap(step.size, closing=False)
        step.cap = cap
        return step if cap >= self.limits.reserve else why

    def _only(self) -> Step:
        """The turn of a node that has just one: whatever it says is its answer, and nobody needs to tell it so."""
        step = self._step(None)
        step.only, self.closing = True, Stop.TURNS
        step.cap, _ = self.limits.cap(step.size, closing=True)
        return step

    def _last(self, why: Stop) -> Step:
        """The turn in which it answers, whatever it takes to make room for that."""
        room = self.limits.room(self.transcript.size, closing=True)
        step = self._fitting(room, closing=why, floor=0)
        if step is None:
            self._results = [Result("note", f"{len(self._results)} results do not fit here")]
            step = self._fitting(room, closing=why, floor=0)
        if step is None:
            self._results = []
            step = self._step(why)
        step.cap, _ = self.limits.cap(step.size, closing=True)
        if len(self.node.turns) >= self.tree.budget.turns:
            step.cap = 0
        return step

    def _step(self, closing: Stop | None) -> Step:
        """The one message between two turns: results, what is left, and the call to answer."""
        tree, transcript = self.tree, self.transcript
        parts = [tree.dialect.results(self._results)] if self._results else []
        if tree.show_budget and (parts or closing):
            parts.append(tree.left(self))
        if closing is not None:
            parts.append(tree.dialect.closing(closing))
        if not parts:
            return Step(message="", piece=None, size=transcript.size, closing=closing)
        message = "\n\n".join(parts)
        piece = transcript.reply(message)
        size = transcript.size + transcript.renderer.size(piece)
        return Step(message=message, piece=piece, size=size, closing=closing)

    def _fitting(self, room: int, *, closing: Stop | None, floor: int) -> Step | None:
        """The step with results shortened, all alike, as little as makes it fit. None when nothing does."""
        whole, most = self._results, self.transcript.size + room

        def shortened(limit: int) -> Step:
            self._results = [Result(result.label, cut(result.text, limit)) for result in whole]
            return self._step(closing)

        step = self._step(closing)
        if step.size <= most:
            return step
        low, high = floor, max((len(result.text.encode()) for result in whole), default=0)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if shortened(middle).size <= most else (low, middle - 1)
        step = shortened(low)
        if step.size <= most:
            return step
        self._results = whole
        return None

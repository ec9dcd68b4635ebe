"""One node, from its first prompt to its answer.

A node is opened (its window is filled), then takes turns: read results, pay, sample, act. Every turn is paid for
before it is sampled. When tokens, money, window, turns or time run short, the node is asked once for its answer, out
of a reserve that ordinary turns cannot use. At the end it has a stop reason and all its loans are repaid.

A call that a deadline or an interrupt cancels leaves what had been received: a cut turn, which the closing call reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import anyio

from ramet.agent.cut_turns import best_answer
from ramet.agent.goals import text_size
from ramet.agent.limits import Limits, Repeats, Speed
from ramet.agent.spawn import admit, report_child
from ramet.agent.steps import Step, Steps
from ramet.agent.task_groups import task_group
from ramet.agent.toolcalls import act
from ramet.agent.transcript import Transcript, received_by
from ramet.agent.wording import as_text, report_text, shorten
from ramet.budget import Budget, Ledger
from ramet.errors import EngineError, EngineInterrupted, Lasting, tried
from ramet.interfaces import Child, HostFunction, Outcome, Report, Request, Result, Session
from ramet.types import Completion, Meter, Node, Prompt, Refusal, State, Stop, Turn

if TYPE_CHECKING:
    from ramet.agent.tree import TreeRun

MAX_ATTEMPTS = 3  # engine calls per turn, when they are interrupted
TIME_RESERVE = 0.1  # share of a node's time kept for its answer
ANSWER_TIME = 0.75  # share of the time left that tokens of the closing call may take; the rest is for its prompt
SHORTEST_ANSWER = 16  # tokens; the closing call may have as many, however little time is left


class NodeRun:
    """Runs one node. To its dialect's session it is the `Host`."""

    def __init__(
        self,
        tree_run: TreeRun,
        node: Node,
        ledger: Ledger,
        *,
        deadline: float,
        context: Mapping[str, str],
        text: object = None,
        returns: object = None,
        path_tokens: int | None = None,
    ) -> None:
        self.tree_run = tree_run
        self.node = node
        self.ledger = ledger
        self.deadline = deadline  # the node ends by then
        self.answer_deadline = deadline  # its children end by then, and it is asked for its answer
        self.context = context
        self.text = text
        self.returns = returns
        self.text_size = text_size(context, text)
        self.engine = tree_run.engine_of(node)
        self.transcript = Transcript(node, self.engine.renderer, tree_run.tree.id)
        self.path_tokens = path_tokens  # the most that `critical_path` may become; None: no limit
        self.limits = Limits(
            tree_run.budget,
            ledger,
            node,
            window=tree_run.window_of(node),
            closing_size=tree_run.closing_size(self.engine.renderer),
            path_left=self._path_left,
        )
        self.steps = Steps(self)
        self.repeats = Repeats()
        self.speed = Speed()
        self.received: Completion | None = None  # by the call that was cancelled
        self.lasting_error: Lasting | None = None  # of the engine
        self.closing: Stop | None = None
        self.critical_path = 0  # tokens on the longest chain of dependent work so far
        self.num_children = 0
        self.loans: list[tuple[Node, Ledger]] = []

    # The life of a node.

    def open(self, *, missing: Sequence[str] = ()) -> None:
        """Fill the window with the system prompt, the goal and its texts. `missing`: context keys without a text."""
        self._restrict()
        tree_run = self.tree_run
        self.node.texts = self.context if self.text is None else {**self.context, "context": as_text(self.text)}
        user = tree_run.dialect.opening(self, missing=missing)
        if tree_run.options.show_budget:
            user = f"{user}\n\n{tree_run.remaining(self)}"
        override = tree_run.options.message_override
        if override is not None and override.at(self.node.path, 0):
            user = override.text
        child, depth = self.node.parent is not None, self.ledger.depth
        system = tree_run.system_prompt(child=child, depth=depth)
        tools = tree_run.tools(child=child, depth=depth)
        self.transcript.open(system, user, tools=tools)

    async def run(self) -> None:
        """Take turns until the node has answered or a limit ends it. Raises only when cancelled from outside."""
        node = self.node
        node.started_s = self.tree_run.now()
        session = self.tree_run.dialect.session(self)
        if self.deadline < math.inf:
            self.answer_deadline = self.deadline - TIME_RESERVE * (self.deadline - self.tree_run.clock())
        try:
            with _until(self.deadline):
                why = await self._work(session)
                if why is not None:
                    await self._turn(self.steps.last(why), session)
        except EngineError as error:
            node.stop, node.error, self.lasting_error = Stop.ERROR, str(error), error.lasting
        finally:
            self._settle(session)
            self._end()

    async def _work(self, session: Session) -> Stop | None:
        """Ordinary turns. None when the node has ended, else the limit for which it must answer now."""
        with _until(self.answer_deadline):
            while self.node.stop is None:
                self._restrict()
                step = self.steps.next()
                if isinstance(step, Stop):
                    return step
                await self._turn(step, session)
            return None
        self._report_children()
        return Stop.DEADLINE

    def _restrict(self) -> None:
        """From the turn on that a fork names, the node is one that cannot delegate."""
        restriction = self.tree_run.options.restriction
        if restriction is not None and restriction.forbids_delegation(self.node.path, len(self.node.turns)):
            self.ledger.depth = 0

    async def _turn(self, step: Step, session: Session) -> None:
        """Give the message, sample, act."""
        node, closing = self.node, step.closing
        if step.only:
            self.closing = Stop.TURNS
        if closing is not None:
            self.closing = node.stop = closing
        if step.cap < 1:
            node.stop = node.stop or Stop.BUDGET
            return
        if step.piece is not None:
            self.transcript.append(step.messages, step.piece)
        self.steps.results = []
        started = self.tree_run.now()
        try:
            completion = await self._sample(step.cap)
        finally:
            self._keep_cut_turn(step, started=started)
        text = self.transcript.record(completion)
        turn = Turn(
            tokens=completion.num_tokens,
            finish=completion.finish,
            started_s=started,
            sampled_s=self.tree_run.now(),
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
            outcome = await act(session, text, completion)
            self.repeats.add(text if outcome.action is None else outcome.action, outcome.results)
        self._apply(outcome, turn)

    def _keep_cut_turn(self, step: Step, *, started: float) -> None:
        """If the call was cancelled, what it brought is a turn."""
        received, self.received = self.received, None
        if received is None:
            return
        self.transcript.record(received, most=step.cap)
        turn = Turn(
            tokens=received.num_tokens,
            finish="cut",
            started_s=started,
            sampled_s=self.tree_run.now(),
            closing=step.closing,
        )
        self.node.turns.append(turn)

    def _settle(self, session: Session) -> None:
        """Set the stop reason. If time was up, or the call for the answer was cut off, choose the answer."""
        node, late = self.node, self.tree_run.clock() >= self.deadline
        if node.stop is None:
            node.stop = Stop.DEADLINE if late else Stop.CANCELLED
        if node.stop in (Stop.ANSWERED, Stop.ERROR):
            return
        cut_off = self.closing is not None and (late or (bool(node.turns) and node.turns[-1].finish == "cut"))
        if cut_off or node.stop is Stop.DEADLINE:
            node.answer = best_answer(node, self.tree_run.tree.nodes, session)

    def _apply(self, outcome: Outcome, turn: Turn) -> None:
        turn.repairs += outcome.repairs
        turn.faults += outcome.faults
        self.steps.results += outcome.results
        if outcome.done:
            self.node.answer, self.node.value = outcome.answer, outcome.value
            self.node.stop = self.node.stop or Stop.ANSWERED

    def _report_children(self) -> None:
        """After the answer deadline cut a turn short: report every child it started, answered or not."""
        if self.node.state is State.SAMPLING or not self.node.turns:
            return  # only the node's own completion was cut short
        number, children = len(self.node.turns), self.node.turns[-1].children
        reports = [report_child(self.tree_run.tree.nodes[index]) for index in children]
        self.steps.results = [
            Result(f"clone {number}.{i}", report_text(child, limit=self.result_bytes))
            for i, child in enumerate(reports, start=1)
        ]
        self.steps.results = shorten(self.steps.results, self.budget.max_result_chars)

    def _end(self) -> None:
        """Repay every loan, inform the engine and the world. Runs in every case."""
        node, tree_run = self.node, self.tree_run
        for child, loan in self.loans:
            if child.stop is None:  # admitted, and cancelled before it started
                child.stop, child.state, child.ended_s = node.stop, State.ENDED, tree_run.now()
            loan.repay()
        node.state = State.ENDED
        node.ended_s = tree_run.now()
        node.usage.critical_path_tokens = self.critical_path
        tree_run.ended(self.transcript.node_id, self.engine)
        tree_run.notify("ended", node)

    # Sampling, paid in advance.

    async def _sample(self, cap: int) -> Completion:
        """One completion of at most `cap` tokens. An interrupted call is paid for and retried."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await self._pay_and_sample(cap)
            except EngineInterrupted as error:
                cap, _ = self.limits.cap(self.transcript.size, closing=self.closing is not None)
                if attempt == MAX_ATTEMPTS or cap < 1:
                    raise EngineInterrupted(f"{error} ({tried(attempt)})") from error
        raise AssertionError("unreachable")

    async def _pay_and_sample(self, cap: int) -> Completion:
        node, usage, prices = self.node, self.node.usage, self.limits.prices
        prompt = self.transcript.prompt(
            closing=self.closing is not None, tokens=self.ledger.tokens, keys=tuple(self.context)
        )
        size = self.transcript.size
        meter = node.meter = Meter()
        node.state = State.SAMPLING
        with self.ledger.hold(tokens=cap, money=prices.worst(prompt=size, generated=cap)) as hold:
            usage.calls += 1
            began = self.tree_run.clock()
            try:
                completion = await self._ask(prompt, cap, meter)
            except EngineError:
                spent = min(cap, meter.tokens)
                cost = self._count(prompt=size if spent else 0, cached=0, generated=spent)
                hold.settle(tokens=spent, money=cost)
                raise
            except BaseException:
                # Cancelled: metered tokens are counted, and the rest of the cap is paid for all the same.
                self.received = received_by(meter, cap)
                tokens = min(cap, meter.tokens)
                self._time(tokens, began)
                self._count(prompt=size, cached=0, generated=tokens)
                usage.lost_tokens += cap - tokens
                raise
            self._time(completion.num_tokens, began)
            if completion.num_tokens > cap:
                self._count(prompt=size, cached=0, generated=completion.num_tokens)
                raise EngineError(
                    f"the engine generated {completion.num_tokens} tokens where {cap} were allowed: "
                    "no budget can hold with it"
                )
            prompt_tokens = completion.prompt_tokens or size
            cached = min(prompt_tokens, completion.cached_tokens)
            received = max(completion.num_tokens, meter.tokens)  # more, if a server had to be cut off
            cost = self._count(prompt=prompt_tokens, cached=cached, generated=received)
            paid = min(cost, hold.money)
            hold.settle(tokens=completion.num_tokens, money=paid)
            # A server may send more than it was asked for, or count more tokens in a prompt than it was taken to have.
            self.ledger.charge(tokens=received - completion.num_tokens, money=cost - paid)
        return completion

    async def _ask(self, prompt: Prompt, cap: int, meter: Meter) -> Completion:
        tree_run = self.tree_run
        seed = tree_run.seed_for(self.node.path, len(self.node.turns))
        stop, temperature = tree_run.dialect.stop, tree_run.options.temperature
        return await self.engine.sample(
            prompt, max_tokens=cap, stop=stop, temperature=temperature, seed=seed, meter=meter
        )

    def _count(self, *, prompt: int, cached: int, generated: int) -> int:
        """Add a call to the node's usage; return its cost."""
        usage = self.node.usage
        cost = self.limits.prices.cost(prompt=prompt, cached=cached, generated=generated)
        usage.tokens += generated
        usage.prompt_tokens += prompt
        usage.cached_tokens += cached
        usage.cost += cost
        usage.peak_window = max(usage.peak_window, prompt + generated)
        self.node.meter = Meter()
        self.critical_path += generated
        return cost

    def _time(self, tokens: int, began: float) -> None:
        seconds = self.tree_run.clock() - began
        self.speed.add(tokens, seconds)
        self.tree_run.speed_of(self.engine).add(tokens, seconds)

    @property
    def tokens_in_time(self) -> float:
        """The most tokens of a closing call that fit the time left, at the speed of this node's calls or the tree's."""
        speed = self.speed if self.speed.is_known else self.tree_run.speed_of(self.engine)
        if self.deadline == math.inf or not speed.is_known:
            return math.inf
        left = max(0.0, self.deadline - self.tree_run.clock())
        return max(SHORTEST_ANSWER, int(speed.tokens * ANSWER_TIME * left / speed.seconds))

    # What the dialect's session and its children need of the node.

    def make_child(
        self, node: Node, loan: Ledger, *, context: Mapping[str, str], text: object, returns: object
    ) -> NodeRun:
        """A clone with its own window and ledger. It ends before this node's time reserve begins."""
        return NodeRun(
            self.tree_run,
            node,
            loan,
            deadline=self.answer_deadline,
            context=context,
            text=text,
            returns=returns,
            path_tokens=self.limits.child_path(),
        )

    def _path_left(self) -> int | None:
        return None if self.path_tokens is None else self.path_tokens - self.critical_path

    @property
    def functions(self) -> Mapping[str, HostFunction]:
        return self.tree_run.world.functions

    @property
    def reads_texts(self) -> bool:
        return self.node.parent is not None or self.ledger.depth < 1

    @property
    def result_bytes(self) -> int:
        return self.tree_run.budget.result_bytes

    @property
    def output_bytes(self) -> int:
        return self.tree_run.budget.output_bytes

    @property
    def budget(self) -> Budget:
        return self.tree_run.budget

    def admit(self, requests: Sequence[Request], *, awaited: int = 0) -> list[Child | Refusal]:
        return admit(self, requests, awaited=awaited)

    async def run_all(self, requests: Sequence[Request]) -> list[Report]:
        admitted = self.admit(requests)
        reports: list[Report | None] = [None] * len(admitted)

        async def run(i: int, child: Child) -> None:
            reports[i] = await child.run()

        self.node.state = State.WAITING
        async with task_group() as group:
            for i, child in enumerate(admitted):
                if isinstance(child, Refusal):
                    reports[i] = Report(goal=child.goal, error=child.reason, refused=child.kind)
                else:
                    group.start_soon(run, i, child, name="clone")
        self.node.state = State.ACTING
        return [report for report in reports if report is not None]


def _until(deadline: float) -> AbstractContextManager[object]:
    """A cancel scope that ends at the deadline. Without a deadline there is no scope, which is cheaper."""
    return anyio.CancelScope(deadline=deadline) if deadline < math.inf else nullcontext()

"""One node: reserve, sample, act, and at the end always a word.

Every turn is paid for before it is sampled. A node stops thinking while it can still afford to answer: when tokens,
money, window, turns or time come to their end it is asked once more, out of its reserve, for the best it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import anyio

from ramet.agent.transcript import Transcript
from ramet.agent.words import cut
from ramet.budget import Ledger
from ramet.errors import EngineError, EngineInterrupted
from ramet.interfaces import Child, HostFunction, Outcome, Report, Request, Result
from ramet.types import Completion, Meter, Node, Refusal, State, Stop, Turn

if TYPE_CHECKING:
    from ramet.agent.tree import TreeRun

TRIES = 3  # calls that may break off in the middle before the node gives up
TIME_RESERVE = 0.1  # share of a node's time kept back for its answer


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
        self.closing: Stop | None = None
        self.clock = 0  # tokens on the longest chain of dependent work so far
        self.num_children = 0
        self.loans: list[tuple[Node, Ledger]] = []
        self._results: list[Result] = []  # what the next message will tell
        self._session = tree.dialect.session(self)

    # What a session asks of its host.

    @property
    def functions(self) -> Mapping[str, HostFunction]:
        return self.tree.world.functions

    @property
    def result_bytes(self) -> int:
        return self.tree.budget.result_bytes

    @property
    def output_bytes(self) -> int:
        return self.tree.budget.output_bytes

    def admit(self, requests: Sequence[Request]) -> list[Child | Refusal]:
        from ramet.agent.spawn import admit

        return admit(self, requests)

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
                    group.start_soon(run, i, child)
        self.node.state = State.ACTING
        return [report for report in reports if report is not None]

    # The life of a node.

    def open(self, *, missing: Sequence[str] = ()) -> None:
        """Fill the window with what the node starts from."""
        tree = self.tree
        user = tree.dialect.opening(self, missing=missing)
        if tree.show_budget:
            user = f"{user}\n\n{tree.left(self)}"
        self.transcript.open(tree.system(child=self.node.parent is not None, depth=self.ledger.depth), user)

    @property
    def smallest_window(self) -> int:
        """Tokens of context it needs to think one turn and then answer."""
        return self.transcript.size + self.tree.closing_size + 2 * self.reserve

    @property
    def smallest_money(self) -> int:
        """What that costs at most."""
        size, tail, kept = self.transcript.size, self.tree.closing_size, self.reserve
        worst = self.tree.budget.prices.worst
        return worst(prompt=size, generated=kept) + worst(prompt=size + kept + tail, generated=kept)

    async def run(self) -> None:
        """Until it has answered, or cannot any more. Only cancellation from outside leaves as an exception."""
        node = self.node
        node.started_s = self.tree.now()
        self.soft = self.deadline - TIME_RESERVE * (self.deadline - anyio.current_time())
        try:
            with anyio.CancelScope(deadline=self.deadline):
                why = await self._work()
                if why is not None:
                    await self._turn(why)
        except EngineError as error:
            node.stop, node.error = Stop.ERROR, str(error)
        finally:
            self._end()

    async def _work(self) -> Stop | None:
        """Turns until the node is done (None), or must be asked for its answer (why)."""
        with anyio.CancelScope(deadline=self.soft):
            while self.node.stop is None:
                why = self._why_close()
                if why is not None:
                    return why
                await self._turn(None)
            return None
        return Stop.DEADLINE

    def _why_close(self) -> Stop | None:
        """The limit that leaves room for nothing but the answer, if there is one."""
        budget = self.tree.budget
        turns = len(self.node.turns)
        if turns and turns >= budget.turns - 1:
            return Stop.TURNS
        message = self._message(None)
        cap, why = self._cap(self._size_with(message), closing=False)
        if cap >= self.reserve:
            return None
        # Shorter results may still leave room for a turn of thinking.
        room = self._room(closing=False) if why is Stop.CONTEXT and self._results else 0
        return None if room > 0 and self._shrink(room, closing=None, floor=64) else why

    async def _turn(self, closing: Stop | None) -> None:
        """Tell what came back, sample, act."""
        node = self.node
        self.closing = closing
        if closing is not None:
            node.stop = closing
            self._shrink(self._room(closing=True), closing=closing, floor=0)
        message = self._message(closing)
        cap, _ = self._cap(self._size_with(message), closing=closing is not None)
        if cap < 1:
            return
        if message:
            self.transcript.give(message)
        self._results = []
        started = self.tree.now()
        completion = await self._sample(cap)
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
        if closing is not None:
            outcome = await self._session.close(text)
        else:
            outcome = await self._session.act(text, finish=completion.finish)
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
            late = anyio.current_time() >= self.deadline
            node.stop = Stop.DEADLINE if late else Stop.CANCELLED
        for child, loan in self.loans:
            if child.stop is None:  # admitted, and cancelled before it could start
                child.stop, child.state, child.ended_s = node.stop, State.ENDED, self.tree.now()
            loan.repay()
        node.state = State.ENDED
        node.ended_s = self.tree.now()
        node.usage.critical_path_tokens = self.clock

    # Sampling, paid in advance.

    async def _sample(self, cap: int) -> Completion:
        """One completion of at most `cap` tokens. Calls that break off are paid for and tried again."""
        for attempt in range(1, TRIES + 1):
            try:
                return await self._pay_and_sample(cap)
            except EngineInterrupted:
                cap, _ = self._cap(self.transcript.size, closing=self.closing is not None)
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
                self._count(prompt=size if spent else 0, cached=0, generated=spent)
                hold.settle(tokens=spent, money=prices.cost(prompt=size if spent else 0, cached=0, generated=spent))
                raise
            except BaseException:
                # Cancelled: what was seen is counted, what was not seen is paid for all the same.
                self._count(prompt=size, cached=0, generated=min(cap, meter.tokens))
                usage.lost_tokens += cap - min(cap, meter.tokens)
                raise
            if completion.num_tokens > cap:
                raise EngineError(
                    f"the engine generated {completion.num_tokens} tokens where {cap} were allowed: "
                    "no budget can hold with it"
                )
            prompt_tokens = min(size, completion.prompt_tokens or size)
            used = {
                "prompt": prompt_tokens,
                "cached": min(prompt_tokens, completion.cached_tokens),
                "generated": completion.num_tokens,
            }
            self._count(**used)
            hold.settle(tokens=completion.num_tokens, money=prices.cost(**used))
        return completion

    def _count(self, *, prompt: int, cached: int, generated: int) -> None:
        usage = self.node.usage
        usage.tokens += generated
        usage.prompt_tokens += prompt
        usage.cached_tokens += cached
        usage.cost += self.tree.budget.prices.cost(prompt=prompt, cached=cached, generated=generated)
        usage.peak_context = max(usage.peak_context, prompt + generated)
        self.node.meter = Meter()
        self.clock += generated

    def _seed(self) -> int | None:
        return self.tree.seed_for(self.node.path, len(self.node.turns))

    # How much fits.

    @property
    def reserve(self) -> int:
        return min(self.tree.budget.answer_tokens, max(1, self.node.grant // 2))

    def _cap(self, size: int, *, closing: bool) -> tuple[int, Stop]:
        """The most tokens the next completion may have, with a prompt of `size`, and the limit that says so."""
        budget, prices, kept = self.tree.budget, self.tree.budget.prices, 0 if closing else self.reserve
        tail = 0 if closing else self.tree.closing_size
        limits = [(self.ledger.tokens - kept, Stop.BUDGET), (budget.context - size - tail - kept, Stop.CONTEXT)]
        if budget.node_tokens is not None:
            limits.append((budget.node_tokens - self.node.usage.tokens - kept, Stop.BUDGET))
        if self.ledger.money is not None:
            # This call, and after it one more for the answer, whose prompt holds this one's output.
            after = 0 if closing else prices.worst(prompt=size + tail, generated=kept)
            left = self.ledger.money - prices.worst(prompt=size, generated=0) - after
            each = prices.worst(prompt=0 if closing else 1, generated=1)
            limits.append((left // each if each else (0 if left < 0 else self.ledger.tokens), Stop.BUDGET))
        return min(limits, key=lambda limit: limit[0])

    def _room(self, *, closing: bool) -> int:
        """Tokens the next message may have, so that the turn after it still has its reserve."""
        budget, prices = self.tree.budget, self.tree.budget.prices
        kept = self.reserve if closing else 2 * self.reserve + self.tree.closing_size
        room = budget.context - self.transcript.size - kept
        if self.ledger.money is not None and prices.worst(prompt=1, generated=0):
            left = self.ledger.money - prices.worst(prompt=self.transcript.size, generated=self.reserve)
            room = min(room, left // prices.worst(prompt=1, generated=0))
        return room

    # What the node is told.

    def _message(self, closing: Stop | None) -> str:
        """The one message between two turns: results, what is left, and the call to answer."""
        parts = [self.tree.dialect.results(self._results)] if self._results else []
        if self.tree.show_budget and (parts or closing):
            parts.append(self.tree.left(self))
        if closing is not None:
            parts.append(self.tree.dialect.closing(closing))
        return "\n\n".join(parts)

    def _size_with(self, message: str) -> int:
        transcript = self.transcript
        return transcript.size + (transcript.renderer.size(transcript.reply(message)) if message else 0)

    def _shrink(self, room: int, *, closing: Stop | None, floor: int) -> bool:
        """Shorten results, all alike, until the message fits. Says whether it does."""
        whole, before = self._results, self.transcript.size
        if self._size_with(self._message(closing)) - before <= room:
            return True
        low, high = floor, max((len(result.text.encode()) for result in whole), default=0)
        while low < high:  # the longest that fits
            middle = (low + high + 1) // 2
            self._results = [Result(result.label, cut(result.text, middle)) for result in whole]
            fits = self._size_with(self._message(closing)) - before <= room
            low, high = (middle, high) if fits else (low, middle - 1)
        self._results = [Result(result.label, cut(result.text, low)) for result in whole]
        if self._size_with(self._message(closing)) - before <= room:
            return True
        self._results = [Result("note", f"{len(whole)} results do not fit here")] if closing else whole
        if closing is not None and self._size_with(self._message(closing)) - before > room:
            self._results = []
        return False

"""Admission: every child of a call is granted or refused before any of them starts.

A refusal is text the parent reads; it says what was wrong or which limit was reached. Nothing is dropped in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.agent.returns import parse_type
from ramet.agent.wording import as_text, cut
from ramet.budget import shares
from ramet.errors import MalformedAction
from ramet.interfaces import Child, Report, Request
from ramet.types import Node, Refusal

if TYPE_CHECKING:
    from ramet.agent.node import NodeRun


@dataclass(slots=True, kw_only=True)
class Plan:
    """A child as asked for, checked and rendered, before anything is lent."""

    goal: str
    context: dict[str, str]
    missing: tuple[str, ...]
    text: object
    returns: object
    tokens: int | None


@dataclass(slots=True, kw_only=True)
class Admitted:
    """A child with its loan in hand."""

    parent: NodeRun
    run_: NodeRun
    missing: tuple[str, ...]
    starts_at: int  # the parent's clock when it was admitted

    async def run(self) -> Report:
        child, parent = self.run_, self.parent
        try:
            await child.run()
        finally:
            child.ledger.repay()
            parent.clock = max(parent.clock, self.starts_at + child.clock)
        return report(child.node, missing=self.missing)


def report(node: Node, *, missing: tuple[str, ...] = ()) -> Report:
    """What a parent learns of a child that has ended."""
    return Report(
        goal=node.goal, answer=node.answer, value=node.value, stop=node.stop, error=node.error, missing=missing
    )


def admit(parent: NodeRun, requests: Sequence[Request], *, beside: int = 0) -> list[Child | Refusal]:
    """Check all, then lend to all, then hand them back ready to start.

    `beside` counts others whose answers are still awaited: each may be followed by another clone, whose share is kept.
    """
    plans = _plans(parent, requests)
    wanted = [plan for plan in plans if isinstance(plan, Plan)]
    budget = parent.tree.budget
    lendable = parent.ledger.tokens - budget.answer_tokens
    asked = [plan.tokens for plan in wanted]
    granted = iter(shares(lendable, asked, least=budget.smallest_grant, parent_share=budget.parent_share))
    decided: list[Plan | Refusal] = []
    tokens: list[int] = []
    for plan in plans:
        grant = next(granted) if isinstance(plan, Plan) else 0
        if isinstance(plan, Plan) and not grant:
            plan = Refusal(goal=plan.goal, reason=_too_little(plan, lendable, budget.smallest_grant))
        decided.append(plan)
        tokens.append(grant)
    children = _start_all(parent, decided, tokens, lendable, beside)
    if parent.node.turns:
        turn = parent.node.turns[-1]
        turn.refusals += [child for child in children if isinstance(child, Refusal)]
        turn.children += [child.run_.node.index for child in children if isinstance(child, Admitted)]
    return [*children]


def _too_little(plan: Plan, lendable: int, least: int) -> str:
    if plan.tokens is not None and plan.tokens < least:
        return f"{plan.tokens} tokens are too few to answer with: ask for {least} or more"
    return f"not enough tokens: {max(0, lendable)} can be lent, and each clone needs {least} or more"


def _plans(parent: NodeRun, requests: Sequence[Request]) -> list[Plan | Refusal]:
    """What is wrong with each request by itself, and which limits the batch runs into."""
    budget, ledger = parent.tree.budget, parent.ledger
    plans: list[Plan | Refusal] = []
    per_call: Counter[int] = Counter()
    nodes = ledger.nodes
    for request in requests:
        goal = cut(as_text(request.goal), 200)
        per_call[request.call] += 1
        try:
            if parent.closing is not None:
                raise MalformedAction("this is the final turn: nothing can be started any more")
            if ledger.depth < 1:
                raise MalformedAction("clones at this depth cannot delegate: do it yourself")
            if per_call[request.call] > budget.children:
                raise MalformedAction(f"one call starts at most {budget.children} clones")
            if nodes < 1:
                raise MalformedAction(f"no clones left of {budget.nodes - 1}: do it yourself")
            plans.append(_plan(parent, request))
            nodes -= 1
        except MalformedAction as fault:
            plans.append(Refusal(goal=goal, reason=str(fault)))
    return plans


def _plan(parent: NodeRun, request: Request) -> Plan:
    if not isinstance(request.goal, str) or not request.goal.strip():
        raise MalformedAction(f"a goal is a text that says what to do, not {cut(repr(request.goal), 60)}")
    tokens = request.tokens
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
        raise MalformedAction(f"tokens is a whole number from 1 up, not {cut(repr(tokens), 60)}")
    if request.returns is not None:
        parse_type(request.returns)
    found, missing = look_up(parent.context, request.context)
    return Plan(
        goal=request.goal.strip(),
        context=found,
        missing=missing,
        text=request.text,
        returns=request.returns,
        tokens=tokens,
    )


def look_up(context: Mapping[str, str], keys: Sequence[object]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Texts by key: exactly, then without regard to case and spaces. Keys that do not exist are named.

    Example:
        look_up({"Ada Lovelace": "..."}, ["ada  lovelace", "Bob"])  # ({"Ada Lovelace": "..."}, ("Bob",))
    """
    loose = {_squeeze(key): key for key in context}
    found: dict[str, str] = {}
    missing: list[str] = []
    for wanted in map(str, keys):
        key = wanted if wanted in context else loose.get(_squeeze(wanted))
        if key is None:
            missing.append(cut(wanted, 60))
        else:
            found[key] = context[key]
    return found, tuple(missing)


def _squeeze(key: str) -> str:
    return "".join(key.split()).casefold()


def _start_all(
    parent: NodeRun, decided: Sequence[Plan | Refusal], tokens: Sequence[int], lendable: int, beside: int
) -> list[Admitted | Refusal]:
    """Lend to every plan that was granted tokens: nodes alike, money in proportion to tokens."""
    num = sum(isinstance(plan, Plan) for plan in decided)
    spare = (parent.ledger.nodes - num) // (num + beside) if num else 0
    money = _lendable_money(parent)
    children: list[Admitted | Refusal] = []
    for plan, grant in zip(decided, tokens, strict=True):
        if isinstance(plan, Refusal):
            children.append(plan)
        else:
            children.append(_lend(parent, plan, grant, nodes=1 + spare, money=money * grant // lendable))
    return children


def _lendable_money(parent: NodeRun) -> int:
    """What is left after the parent has kept enough to pay for its own answer."""
    if parent.ledger.money is None:
        return 0
    prompt = parent.transcript.size + parent.tree.closing_size
    kept = parent.tree.budget.prices.worst(prompt=prompt, generated=parent.limits.reserve)
    return max(0, parent.ledger.money - kept)


def _lend(parent: NodeRun, plan: Plan, tokens: int, *, nodes: int, money: int) -> Admitted | Refusal:
    """Fill the child's window; one that cannot hold its own task is refused and costs nothing."""
    tree = parent.tree
    node = Node(
        index=len(tree.tree.nodes),
        parent=parent.node.index,
        depth=parent.node.depth + 1,
        path=(*parent.node.path, parent.num_children),
        goal=plan.goal,
        grant=tokens,
    )
    loan = parent.ledger.lend(tokens=tokens, nodes=nodes, money=money)
    child = parent.child(node, loan, context=plan.context, text=plan.text, returns=plan.returns)
    child.open(missing=plan.missing)
    reason = _does_not_fit(child)
    if reason is not None:
        loan.repay(started=False)
        return Refusal(goal=cut(plan.goal, 200), reason=reason)
    parent.num_children += 1
    parent.loans.append((node, loan))
    tree.tree.nodes.append(node)
    if tree.watcher is not None:
        tree.watcher.spawned(node)
    return Admitted(parent=parent, run_=child, missing=plan.missing, starts_at=parent.clock)


def _does_not_fit(child: NodeRun) -> str | None:
    window, size = child.tree.budget.window, child.transcript.size
    needed = child.limits.smallest_window(size)
    if needed > window:
        return f"its goal and context need {needed:,} tokens, a window holds {window:,}: hand over less"
    if child.ledger.money is not None and child.ledger.money < child.limits.smallest_money(size):
        return "not enough money is left for another clone"
    return None

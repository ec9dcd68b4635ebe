"""Admission: every child of a call is granted or refused before any of them starts.

A refusal is text for the parent: it names the mistake or the limit. Its `kind` is for counting. No request is dropped
silently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.agent.goals import goal_sizes, impossible_goal, repeated_goal, text_size
from ramet.agent.returns import parse_type
from ramet.agent.values import brief
from ramet.agent.wording import as_text, cut
from ramet.budget import by_size, shares
from ramet.errors import MalformedAction
from ramet.interfaces import Child, Report, Request
from ramet.types import Node, Refusal, clean

if TYPE_CHECKING:
    from ramet.agent.node import NodeRun

NO_CLONES = "no clones left of {}: do it yourself"
LONG_CHAIN = "the chain of work up to here has {} tokens left for a clone, which needs {} or more: do it yourself"
MAX_TOKENS = 10**12  # that a model can ask for; no budget has as many
MAX_MISSING = 32  # unknown context keys that are named


@dataclass(slots=True, kw_only=True)
class Plan:
    """A valid request for a child, before anything is lent."""

    goal: str
    context: dict[str, str]
    missing: tuple[str, ...]
    text: object
    returns: object
    tokens: int | None
    texts: int  # characters of its context and text
    size: float = 0.0


@dataclass(slots=True, kw_only=True)
class Admitted:
    """A child that has its loan and can start."""

    parent: NodeRun
    child: NodeRun
    missing: tuple[str, ...]
    critical_path: int  # the parent's, when the child was admitted

    async def run(self) -> Report:
        child, parent = self.child, self.parent
        try:
            await child.run()
        finally:
            child.ledger.repay()
            parent.critical_path = max(parent.critical_path, self.critical_path + child.critical_path)
        return report_child(child.node, missing=self.missing)


def report_child(node: Node, *, missing: tuple[str, ...] = ()) -> Report:
    """What a parent gets from a child that has ended."""
    return Report(
        goal=node.goal, answer=node.answer, value=node.value, stop=node.stop, error=node.error, missing=missing
    )


def admit(parent: NodeRun, requests: Sequence[Request], *, awaited: int = 0) -> list[Child | Refusal]:
    """Check all requests, then lend to all valid ones, and return them ready to start.

    `awaited` counts children still running: each may be followed by another clone, for which nodes are kept.
    """
    plans = _plans(parent, requests)
    wanted = [plan for plan in plans if isinstance(plan, Plan)]
    budget = parent.tree_run.budget
    lendable = parent.ledger.tokens - budget.answer_tokens
    granted = iter(_shares(parent, wanted, lendable))
    decided: list[Plan | Refusal] = []
    tokens: list[int] = []
    for plan in plans:
        grant = next(granted) if isinstance(plan, Plan) else 0
        if isinstance(plan, Plan) and not grant:
            reason = _too_little(plan, lendable, budget.smallest_grant)
            plan = Refusal(goal=cut(plan.goal, 200), reason=reason, kind="tokens")
        decided.append(plan)
        tokens.append(grant)
    children = _lend_all(parent, decided, tokens, lendable, awaited)
    if parent.node.turns:
        turn = parent.node.turns[-1]
        turn.refusals += [child for child in children if isinstance(child, Refusal)]
        turn.children += [admitted.child.node.index for admitted in children if isinstance(admitted, Admitted)]
    return [*children]


def _shares(parent: NodeRun, plans: Sequence[Plan], lendable: int) -> list[int]:
    """Measure the goals, and split what can be lent among them."""
    budget = parent.tree_run.budget
    sizes = goal_sizes(parent, plans)
    for plan, size in zip(plans, sizes, strict=True):
        plan.size = size
    return shares(
        lendable,
        [plan.tokens for plan in plans],
        least=budget.smallest_grant,
        parent_share=budget.parent_share,
        sizes=sizes if budget.shares == "demand" else None,
    )


def _too_little(plan: Plan, lendable: int, least: int) -> str:
    if plan.tokens is not None and plan.tokens < least:
        return f"{plan.tokens} tokens are too few to answer with: ask for {least} or more"
    return f"not enough tokens: {max(0, lendable)} can be lent, and each clone needs {least} or more"


def _plans(parent: NodeRun, requests: Sequence[Request]) -> list[Plan | Refusal]:
    """Check each request by itself and against the limits of the batch."""
    plans: list[Plan | Refusal] = []
    per_call: Counter[int] = Counter()
    nodes = parent.ledger.nodes
    for request in requests:
        per_call[request.call] += 1
        plan = _check(parent, request, in_call=per_call[request.call], nodes=nodes)
        nodes -= isinstance(plan, Plan)
        plans.append(plan)
    return plans


def _check(parent: NodeRun, request: Request, *, in_call: int, nodes: int) -> Plan | Refusal:
    goal = cut(as_text(request.goal), 200)
    limit = _limit(parent, in_call=in_call, nodes=nodes)
    if limit is not None:
        kind, reason = limit
        return Refusal(goal=goal, reason=reason, kind=kind)
    try:
        plan = _plan(parent, request)
    except MalformedAction as fault:
        return Refusal(goal=goal, reason=str(fault), kind="malformed")
    repeated = repeated_goal(parent, plan.goal, texts=plan.texts)
    if repeated is not None:
        return Refusal(goal=goal, reason=repeated, kind="same_goal")
    impossible = impossible_goal(parent, plan.goal)
    return plan if impossible is None else Refusal(goal=goal, reason=impossible, kind="impossible")


def _limit(parent: NodeRun, *, in_call: int, nodes: int) -> tuple[str, str] | None:
    """The limit that forbids another clone, whatever its goal: kind and reason of the refusal."""
    budget = parent.tree_run.budget
    if parent.closing is not None:
        return "closing", "this is the final turn: nothing can be started any more"
    if parent.ledger.depth < 1:
        return "depth", "clones at this depth cannot delegate: do it yourself"
    if in_call > budget.children:
        return "children", f"one call starts at most {budget.children} clones"
    if nodes < 1:
        return "nodes", NO_CLONES.format(budget.nodes - 1)
    path = parent.limits.child_path()
    if path is not None and path < budget.smallest_grant:
        return "path", LONG_CHAIN.format(max(0, path), budget.smallest_grant)
    return None


def _plan(parent: NodeRun, request: Request) -> Plan:
    if not isinstance(request.goal, str) or not request.goal.strip():
        raise MalformedAction(f"a goal is a text that says what to do, not {cut(brief(request.goal), 60)}")
    tokens = request.tokens
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1):
        raise MalformedAction(f"tokens is a whole number from 1 up, not {cut(brief(tokens), 60)}")
    if request.returns is not None:
        parse_type(request.returns)
    texts, missing = look_up(parent.context, request.context)
    return Plan(
        goal=clean(request.goal.strip()),
        context=texts,
        missing=missing,
        text=request.text,
        returns=request.returns,
        tokens=None if tokens is None else min(tokens, MAX_TOKENS),
        texts=text_size(texts, request.text),
    )


def look_up(context: Mapping[str, str], keys: Sequence[object]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Texts by key, exact or ignoring case and spaces, and the keys that do not exist.

    Example:
        look_up({"Ada Lovelace": "..."}, ["ada  lovelace", "Bob"])  # ({"Ada Lovelace": "..."}, ("Bob",))
    """
    loose = {_squeeze(key): key for key in context}
    texts: dict[str, str] = {}
    missing: list[str] = []
    for given in keys:
        wanted = clean(given) if isinstance(given, str) else brief(given)
        key = wanted if wanted in context else loose.get(_squeeze(wanted))
        if key is None:
            missing.append(cut(wanted, 60))
        else:
            texts[key] = context[key]
    if len(missing) > MAX_MISSING:
        missing[MAX_MISSING:] = [f"and {len(missing) - MAX_MISSING:,} more"]
    return texts, tuple(missing)


def _squeeze(key: str) -> str:
    return "".join(key.split()).casefold()


def _lend_all(
    parent: NodeRun, decided: Sequence[Plan | Refusal], tokens: Sequence[int], lendable: int, awaited: int
) -> list[Admitted | Refusal]:
    """Lend to every plan that was granted tokens: nodes, and money in proportion to tokens."""
    nodes = iter(_node_shares(parent, [plan for plan in decided if isinstance(plan, Plan)], awaited))
    money = _lendable_money(parent)
    children: list[Admitted | Refusal] = []
    for plan, grant in zip(decided, tokens, strict=True):
        if isinstance(plan, Refusal):
            children.append(plan)
        else:
            children.append(_lend(parent, plan, grant, nodes=next(nodes), money=money * grant // lendable))
    return children


def _node_shares(parent: NodeRun, plans: Sequence[Plan], awaited: int) -> list[int]:
    """Nodes for every plan, itself included: equal, or with shares by demand in proportion to the sizes of goals."""
    if not plans:
        return []
    spare = parent.ledger.nodes - len(plans)
    if parent.tree_run.budget.shares == "equal":
        return [1 + spare // (len(plans) + awaited)] * len(plans)
    spare = spare * len(plans) // (len(plans) + awaited)
    return [1 + more for more in by_size(spare, [plan.size for plan in plans], least=0)]


def _lendable_money(parent: NodeRun) -> int:
    """What is left after the parent keeps enough to pay for its own answer."""
    if parent.ledger.money is None:
        return 0
    prompt = parent.transcript.size + parent.limits.closing_size
    kept = parent.limits.prices.worst(prompt=prompt, generated=parent.limits.reserve)
    return max(0, parent.ledger.money - kept)


def _lend(parent: NodeRun, plan: Plan, tokens: int, *, nodes: int, money: int) -> Admitted | Refusal:
    """Lend and fill the child's window. A child whose task does not fit is refused and costs nothing."""
    tree_run = parent.tree_run
    path = (*parent.node.path, parent.num_children)
    restriction = tree_run.options.restriction
    if restriction is not None and restriction.forbids_clone(path):
        parent.num_children += 1  # the clones after it keep their paths
        return Refusal(goal=cut(plan.goal, 200), reason=NO_CLONES.format(tree_run.budget.nodes - 1), kind="nodes")
    node = Node(
        index=len(tree_run.tree.nodes),
        parent=parent.node.index,
        depth=parent.node.depth + 1,
        path=path,
        goal=plan.goal,
        grant=tokens,
        size=plan.size,
    )
    loan = parent.ledger.lend(tokens=tokens, nodes=nodes, money=money)
    child = parent.make_child(node, loan, context=plan.context, text=plan.text, returns=plan.returns)
    child.open(missing=plan.missing)
    misfit = _does_not_fit(child)
    if misfit is not None:
        loan.repay(started=False)
        kind, reason = misfit
        return Refusal(goal=cut(plan.goal, 200), reason=reason, kind=kind)
    parent.num_children += 1
    parent.loans.append((node, loan))
    tree_run.tree.nodes.append(node)
    tree_run.notify("spawned", node)
    return Admitted(parent=parent, child=child, missing=plan.missing, critical_path=parent.critical_path)


def _does_not_fit(child: NodeRun) -> tuple[str, str] | None:
    """The limit that a child's first prompt exceeds: kind and reason of the refusal."""
    window, size = child.limits.window, child.transcript.size
    needed = child.limits.smallest_window(size)
    if needed > window:
        return "window", f"its goal and context need {needed:,} tokens, a window holds {window:,}: hand over less"
    if child.ledger.money is not None and child.ledger.money < child.limits.smallest_money(size):
        return "money", "not enough money is left for another clone"
    return None

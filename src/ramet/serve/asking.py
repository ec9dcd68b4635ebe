"""One request as a tree: what was asked, the tree that answers it, and what the client gets of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ramet.agent.options import TreeOptions
from ramet.agent.toolcalls import call_text, messages_text
from ramet.agent.tree import TreeRun
from ramet.agent.wording import cut
from ramet.budget import Budget
from ramet.draw import one_line
from ramet.errors import BudgetTooSmall, ConfigError
from ramet.interfaces import Dialect, Engine, HostFunction
from ramet.serve.budgets import Limits
from ramet.serve.conversation import KEY, Conversation
from ramet.serve.dialect import served_dialect, unfenced
from ramet.serve.errors import RequestError
from ramet.serve.schema import Schema
from ramet.serve.settings import ServeConfig
from ramet.serve.tools import ToolUse
from ramet.types import Message, Node, Stop, Task, ToolCall, Tree

TOO_LITTLE_MONEY = "too_little_money"  # code of an error: the budget does not pay for one turn
TOO_SMALL_WINDOW = "window_too_small"  # code of an error: the request asks for a window that its prompt does not fit
SHOWN_GOAL = 200  # characters of a goal or an answer in a line of progress
OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request, whichever API it came from."""

    model: str  # as the client wrote it
    conversation: Conversation
    limits: tuple[tuple[str, Limits], ...] = ()  # each with the field it comes from
    context: Mapping[str, str] = field(default_factory=dict[str, str])  # more texts by key
    temperature: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    use: ToolUse = field(default_factory=ToolUse)
    schema: Schema | None = None
    stream: bool = False
    include_usage: bool = False  # at the end of a stream
    echo: Mapping[str, Any] = field(default_factory=dict[str, Any])  # fields that the response repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the client gets of a tree."""

    tree: Tree
    content: str | None
    refusal: str | None = None
    calls: tuple[ToolCall, ...] = ()
    progress: str = ""  # lines about its clones, as a stream reports them

    @property
    def finish(self) -> Literal["stop", "length", "tool_calls"]:
        if self.calls:
            return "tool_calls"
        return "stop" if self.tree.root.stop is Stop.ANSWERED else "length"

    @property
    def details(self) -> dict[str, Any]:
        """What OpenAI's usage has no field for."""
        tree, used = self.tree, self.tree.usage
        return {
            "tree": tree.id,
            "stop": str(tree.root.stop),
            "nodes": len(tree.nodes),
            "depth": tree.depth,
            "calls": used.calls,
            "critical_path_tokens": used.critical_path_tokens,
            "lost_tokens": used.lost_tokens,
            "dollars": used.dollars,
            "seconds": round(tree.seconds, 3),
            "budget": budget_facts(tree.budget),
        }


def budget_facts(budget: Budget) -> dict[str, Any]:
    """The main limits of a budget, as a client can ask for them."""
    names = ("tokens", "nodes", "depth", "seconds", "money", "turns", "window")
    return {name: value for name in names if (value := getattr(budget, name)) is not None}


class ServedWorld:
    """The texts of a request. It reports nodes as they start and end."""

    def __init__(self, context: Mapping[str, str], on_progress: OnProgress | None) -> None:
        self.context = context
        self.functions: Mapping[str, HostFunction] = {}
        self.progress: list[str] = []
        self._on_progress = on_progress

    def spawned(self, node: Node) -> None:
        if node.parent is not None:
            self._say(f"{_label(node)}: {one_line(node.goal, SHOWN_GOAL)}\n")

    def ended(self, node: Node) -> None:
        if node.parent is None:
            return
        result = node.answer if node.answer is not None else node.error or "no answer"
        self._say(f"{_label(node)} {node.stop} ({node.usage.tokens:,} tokens): {one_line(result, SHOWN_GOAL)}\n")

    def _say(self, line: str) -> None:
        self.progress.append(line)
        if self._on_progress is not None:
            self._on_progress(line)


def _label(node: Node) -> str:
    return "clone " + ".".join(str(number + 1) for number in node.path)


class Asked:
    """A request whose tree is about to run."""

    def __init__(
        self,
        ask: Ask,
        *,
        engine: Engine,
        clone_engine: Engine | None,
        dialect: Dialect,
        config: ServeConfig,
        budget: Budget,
        on_progress: OnProgress | None = None,
    ) -> None:
        self.ask = ask
        self.dialect = served_dialect(dialect, ask.conversation, use=ask.use, schema=ask.schema)
        history = ask.conversation.history
        context = {**({KEY: history} if history else {}), **ask.context}
        self._world = ServedWorld(context, on_progress)
        options = TreeOptions(
            engine=engine,
            clone_engine=clone_engine,
            budget=budget,
            dialect=self.dialect,
            world=self._world,
            temperature=config.temperature if ask.temperature is None else ask.temperature,
            seed=config.seed if ask.seed is None else ask.seed,
            show_budget=config.show_budget,
            allow_same_goal=config.allow_same_goal,
            instructions=config.instructions,
            delegate_instructions=config.delegate_instructions,
        )
        task = Task(question=ask.conversation.question, id="serve", context=context)
        try:
            self.run = TreeRun(task, options)
        except BudgetTooSmall as error:
            if error.limit == "money":
                raise RequestError(400, str(error), code=TOO_LITTLE_MONEY) from None
            asked = _narrower(ask.limits, config.budget.window)
            if asked is not None:
                raise RequestError(400, str(error), param=asked, code=TOO_SMALL_WINDOW) from None
            raise RequestError(400, str(error), param="messages", code="context_length_exceeded") from None
        except ConfigError as error:
            raise RequestError(400, str(error), param="messages") from None

    @property
    def tree(self) -> Tree:
        return self.run.tree

    def answer(self) -> Answer:
        """What the client gets, after the tree has ended."""
        return replace(self._answer(), progress="".join(self._world.progress))

    def _answer(self) -> Answer:
        dialect, tree = self.dialect, self.tree
        if dialect.calls:
            calls = [
                ToolCall(id=f"call_{tree.id}_{number}", name=call.name, arguments=call.arguments)
                for number, call in enumerate(dialect.calls)
            ]
            return Answer(tree=tree, content=dialect.content, calls=tuple(calls))
        problem = None if tree.root.stop is Stop.ANSWERED else dialect.problem(tree.answer)
        if problem is not None:
            refusal = f"within its budget the tree gave no answer that matches the schema: {cut(problem, 500)}"
            return Answer(tree=tree, content=None, refusal=refusal)
        content = tree.answer
        if content is not None and self.ask.schema is not None:
            content = unfenced(content)
        return Answer(tree=tree, content=None if content is None else cut_at(content, self.ask.stop))

    @property
    def work(self) -> str:
        """What the root wrote and read after its first message, as it will read it again."""
        return "\n\n".join(map(_text, self.tree.root.messages[2:]))


def _narrower(limits: Sequence[tuple[str, Limits]], window: int) -> str | None:
    """The field in which a request asks for a smaller window than the server allows."""
    asked = [param for param, found in limits if found.get("window", window) < window]
    return next((f"{param}.window" if "." in param else param for param in asked), None)


def _text(message: Message) -> str:
    return "".join([messages_text([message]), *map(call_text, message.calls)])


def cut_at(text: str, stop: tuple[str, ...]) -> str:
    """A text up to the first of the stop sequences.

    Example:
        cut_at("one\\n\\ntwo", ("\\n\\n",))  # "one"
    """
    return text[: min([len(text), *(text.index(mark) for mark in stop if mark in text)])]

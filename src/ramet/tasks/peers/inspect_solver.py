"""ramet as a solver of inspect_ai: a tree of clones under a budget answers each sample.

    inspect eval task.py --solver ramet/tree -S tokens=4000 -S nodes=8 --model openai/gpt-5

All nodes sample from the model that is evaluated, through inspect_ai: its providers, its cache, its limits and its
count of usage apply. What the tree used is in the metadata of the sample, under `ramet`.
"""

# inspect_ai is an extra.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ramet.agent.options import TreeOptions
from ramet.agent.tree import TreeRun
from ramet.budget import Budget
from ramet.config import TEMPERATURE
from ramet.engine.scripted import cut_at_stop
from ramet.errors import ConfigError, EngineError
from ramet.interfaces import HostFunction
from ramet.tasks.peers.inspect import mark_choices, question_of
from ramet.tokens.render import TextRenderer
from ramet.types import Completion, Meter, Prompt, Task, Tree

METADATA = "ramet"  # key of a sample's metadata


def _tree(
    tokens: int = 4000,
    nodes: int = 16,
    depth: int = 3,
    seconds: float | None = None,
    dialect: str = "tools",
    temperature: float = TEMPERATURE,
    window: int | None = None,
    show_budget: bool = False,
) -> Any:
    """A tree of clones within a hard budget. The tools of the sample are functions that its nodes may call."""
    from inspect_ai.model import get_model

    budget = Budget(tokens=tokens, nodes=nodes, depth=depth, seconds=seconds)
    budget = budget if window is None else replace(budget, window=window)

    async def solve(state: Any, generate: Any) -> Any:
        del generate
        options = TreeOptions(
            engine=InspectEngine(get_model()),
            budget=budget,
            dialect=dialect,
            world=Tools(state.tools),
            temperature=temperature,
            show_budget=show_budget,
        )
        question = question_of(state.input, [choice.value for choice in state.choices])
        return _answered(state, await TreeRun(Task(id=str(state.sample_id), question=question), options).run())

    return solve


def _missing(*args: Any, **options: Any) -> Any:
    del args, options
    raise ConfigError("this is a solver of inspect_ai, which is not installed: pip install 'ramet[inspect]'")


def _registered() -> Callable[..., Any]:
    """The solver `ramet/tree`, under the names and with the parameters that inspect_ai knows it by."""
    try:
        from inspect_ai.solver import solver
    except ImportError:
        return _missing
    return solver(name="tree")(_tree)


inspect_solver = _registered()


class Tools:
    """A world whose functions are the tools of a sample."""

    def __init__(self, tools: Sequence[Any]) -> None:
        from inspect_ai.tool import ToolDef

        self.context: Mapping[str, str] = {}
        self.functions: Mapping[str, HostFunction] = {
            defined.name: _function(defined) for defined in (ToolDef(tool) for tool in tools)
        }


def _function(defined: Any) -> HostFunction:
    """A tool as a plain function, with the schema and the description that inspect_ai has for it."""

    async def call(**arguments: Any) -> Any:
        found = defined.tool(**arguments)
        found = await found if inspect.isawaitable(found) else found
        return found if isinstance(found, (str, int, float, bool)) else str(found)

    function: Any = call
    function.__name__, function.__doc__ = defined.name, defined.description
    function.schema = defined.parameters.model_dump(exclude_none=True)
    function.__signature__ = inspect.signature(defined.tool)
    return function


class InspectEngine:
    """Samples from a model of inspect_ai, in text."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.renderer = TextRenderer()

    async def sample(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        stop: Sequence[str] = (),
        temperature: float = 1.0,
        seed: int | None = None,
        meter: Meter | None = None,
    ) -> Completion:
        from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser, GenerateConfig

        kinds = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
        messages = [kinds[message.role](content=message.content) for message in prompt.messages]
        config = GenerateConfig(max_tokens=max_tokens, temperature=temperature, seed=seed, stop_seqs=list(stop) or None)
        output = await self.model.generate(messages, config=config)
        if output.error:
            raise EngineError(f"{self.model}: {output.error}")
        completion = _completion(output, max_tokens, stop)
        if meter is not None:
            meter.tokens = completion.num_tokens
        return completion


def _completion(output: Any, max_tokens: int, stop: Sequence[str]) -> Completion:
    """What was sampled. Usage that is missing or too large is replaced: a token is at least a byte of text."""
    used = output.usage
    whole = cut_at_stop(output.completion, stop)
    text = whole.encode()[: 64 * max_tokens].decode(errors="ignore")  # a provider that ignores the limit
    counted = 0 if used is None else used.output_tokens
    long = output.stop_reason in ("max_tokens", "model_length") or text != whole or counted > max_tokens
    finish: Literal["stop", "length"] = "length" if long else "stop"
    cached = 0 if used is None else used.input_tokens_cache_read or 0
    read = None if used is None or not used.input_tokens else used.input_tokens + cached
    num_tokens = min(max_tokens, counted or len(text.encode()))
    return Completion(text=text, num_tokens=num_tokens, finish=finish, prompt_tokens=read, cached_tokens=cached)


def _answered(state: Any, grown: Tree) -> Any:
    """The state with the answer of the tree, and what the tree used."""
    from inspect_ai.model import ModelOutput, ModelUsage

    answer, used = grown.answer or "", grown.usage
    usage = ModelUsage(
        input_tokens=used.prompt_tokens - used.cached_tokens,
        input_tokens_cache_read=used.cached_tokens,
        output_tokens=used.tokens,
        total_tokens=used.prompt_tokens + used.tokens,
    )
    state.output = ModelOutput.from_content(model=str(state.model), content=answer)
    state.output.usage = usage
    state.messages.append(state.output.message)
    mark_choices(state, answer)
    state.metadata[METADATA] = usage_facts(grown)
    return state


def usage_facts(grown: Tree) -> dict[str, Any]:
    """What a tree used, as plain data."""
    used = grown.usage
    return {
        "answered": grown.answer is not None,
        "stop": str(grown.root.stop),
        "nodes": len(grown.nodes),
        "depth": grown.depth,
        "tokens": used.tokens,
        "lost_tokens": used.lost_tokens,
        "prompt_tokens": used.prompt_tokens,
        "critical_path_tokens": used.critical_path_tokens,
        "calls": used.calls,
        "seconds": grown.seconds,
        "budget_tokens": grown.budget.tokens,
    }

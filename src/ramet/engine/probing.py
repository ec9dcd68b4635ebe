"""Find out, by one short request each, whether a server speaks native tool calling and returns token ids."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio

from ramet.config import AUTO
from ramet.engine.http import HttpEngine
from ramet.engine.wire import WITHOUT_IDS
from ramet.errors import EngineBusy, EngineError
from ramet.interfaces import Engine
from ramet.types import Message, Prompt

LOG = logging.getLogger(__name__)  # of a server that does not call tools
PROBE_TOKENS, PROBE_S = 32, 5.0  # the most that finding out may take
READY: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "ready",
        "description": "Report that you are ready.",
        "parameters": {"type": "object", "properties": {}},
    },
}
ASKED = (Message("system", "You call tools."), Message("user", "Call the tool ready."))


async def calls_tools(engine: Engine, *, explain: bool = False) -> bool:
    """Whether a model calls tools natively: known of its provider, or tried with one short request.

    With `explain`, a line about a server that was tried and did not is logged, with the reason.
    """
    if not isinstance(engine, HttpEngine) or engine.renderer.exact:
        return False
    if engine.provider.native is not None:
        return engine.provider.native
    problem = await _problem(engine)
    if problem is not None and explain:
        LOG.warning("%s makes no native tool calls: %s; the dialect is tools", engine.model, problem)
    return problem is None


async def _problem(engine: HttpEngine) -> str | None:
    """Why a model that was asked for a tool call made none; None if it made one, or was going to."""
    prompt = Prompt(messages=ASKED, ids=None, tools=(READY,))
    with anyio.move_on_after(PROBE_S):
        try:
            completion = await engine.sample(prompt, max_tokens=PROBE_TOKENS, temperature=0.0)
        except EngineError as error:  # whatever is wrong, the first turn will tell; text works with every server
            return str(error)
        still_thinking = completion.finish == "length" and bool(completion.thoughts) and not completion.text
        return None if completion.calls or still_thinking else "it answered in text"
    return f"no answer within {PROBE_S:g} s"


async def check_ids(engine: Engine) -> None:
    """Refuse a server that cannot be used with a tokenizer, before anything depends on it.

    Some answer a request with token ids with an error that looks temporary. It is not if they answer one with text.
    """
    if not isinstance(engine, HttpEngine) or not engine.renderer.exact:
        return
    ids = engine.renderer.open(ASKED[0].content, ASKED[1].content).token_ids
    try:
        with anyio.move_on_after(PROBE_S):
            collected = await engine.try_once(Prompt(messages=ASKED, ids=ids), max_tokens=1)
            collected.completion(renderer=engine.renderer)  # raises where there are no ids
    except EngineBusy as busy:
        if await _answers_text(engine):
            raise EngineError(f"{busy}, to token ids but not to text: {WITHOUT_IDS}") from None


async def _answers_text(engine: HttpEngine) -> bool:
    with anyio.move_on_after(PROBE_S), suppress(EngineError):
        await engine.try_once(Prompt(messages=ASKED, ids=None), max_tokens=1)
        return True
    return False


async def choose_dialect(wanted: str, engines: Sequence[Engine], *, explain: bool = False) -> str:
    """The dialect itself; for `auto`, native if all engines call tools, else tools."""
    if wanted != AUTO:
        return wanted
    for engine in engines:
        if not await calls_tools(engine, explain=explain):
            return "tools"
    return "native"

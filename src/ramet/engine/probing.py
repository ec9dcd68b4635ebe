"""Find out whether a server speaks native tool calling, and choose the dialect by that."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import anyio

from ramet.config import AUTO
from ramet.engine.http import HttpEngine
from ramet.errors import EngineError
from ramet.interfaces import Engine
from ramet.types import Completion, Message, Prompt

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


async def calls_tools(engine: Engine) -> bool:
    """Whether a model calls tools natively: known of its provider, or tried with one short request."""
    if not isinstance(engine, HttpEngine) or engine.renderer.exact:
        return False
    if engine.provider.native is not None:
        return engine.provider.native
    completion: Completion | None = None
    with anyio.move_on_after(PROBE_S), suppress(EngineError):  # whatever is wrong, the first turn will tell
        prompt = Prompt(messages=ASKED, ids=None, tools=(READY,))
        completion = await engine.sample(prompt, max_tokens=PROBE_TOKENS, temperature=0.0)
    if completion is None:  # a server that refuses tools, or is slow: text works with every server
        return False
    still_thinking = completion.finish == "length" and bool(completion.thoughts) and not completion.text
    return bool(completion.calls) or still_thinking


async def choose_dialect(wanted: str, engines: Sequence[Engine]) -> str:
    """The dialect itself; for `auto`, native if all engines call tools, else tools."""
    if wanted != AUTO:
        return wanted
    for engine in engines:
        if not await calls_tools(engine):
            return "tools"
    return "native"

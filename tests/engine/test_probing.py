"""What one short request finds out about a server before anything depends on it."""

from __future__ import annotations

import pytest

from ramet.engine.open import check_named
from ramet.engine.scripted import WordTokenizer
from ramet.errors import EngineError
from ramet.tokens.render import TokenRenderer
from tests.engine.faulty import stream, usage, whole
from tests.engine.test_http import meeting

BROKEN = whole({"error": {"message": "internal"}}, status=500)
TEXT = stream({"choices": [{"delta": {"content": "hi"}, "finish_reason": "stop"}]}, usage(1))
NO_IDS = stream({"choices": [{"text": "hi", "finish_reason": "stop"}]}, usage(1))


@pytest.mark.anyio
async def test_a_server_that_fails_at_token_ids_and_not_at_text_is_refused_without_retries() -> None:
    async with meeting([BROKEN, TEXT], tokenizer=TokenRenderer(WordTokenizer())) as (server, engine):
        with pytest.raises(EngineError, match=r"answered 500: internal, to token ids but not to text: run without"):
            await check_named(engine)
    assert ["prompt" in request.body for request in server.requests] == [True, False]


@pytest.mark.anyio
async def test_a_server_that_returns_no_ids_is_refused() -> None:
    async with meeting([NO_IDS], tokenizer=TokenRenderer(WordTokenizer())) as (server, engine):
        with pytest.raises(EngineError, match="takes token ids but returns none: run without a tokenizer"):
            await check_named(engine)
    assert len(server.requests) == 1


@pytest.mark.anyio
async def test_a_server_that_fails_at_everything_is_left_to_the_retries_of_the_first_turn() -> None:
    async with meeting([BROKEN, BROKEN], tokenizer=TokenRenderer(WordTokenizer())) as (server, engine):
        await check_named(engine)
    assert len(server.requests) == 2


@pytest.mark.anyio
async def test_without_a_tokenizer_nothing_is_asked() -> None:
    async with meeting([]) as (server, engine):
        await check_named(engine)
    assert server.requests == []

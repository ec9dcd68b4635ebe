"""API keys are in no output, whatever a server echoes."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ramet
from ramet import EngineError, HttpEngine
from ramet.engine.keys import Secret
from ramet.types import Completion, ToolCall
from tests.engine.faulty import Answer, chat, serve, stream, usage, whole

KEY = "sk-proj-A1b2/C3d4+E5f6=G7h8_I9j0~K1l2"
KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=60)
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "in a header": lambda key: f"Authorization: Bearer {key}",
    "URL": lambda key: quote(key, safe=""),
    "URL twice": lambda key: quote(quote(key, safe=""), safe=""),
    "form": quote_plus,
    "every character": lambda key: "".join(f"%{ord(letter):02X}" for letter in key),
    "JSON": json.dumps,
    "unicode escapes": lambda key: "".join(f"\\u{ord(letter):04x}" for letter in key),
    "HTML": html.escape,
    "HTML numbers": lambda key: "".join(f"&#{ord(letter)};" for letter in key),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a header": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "base64 shifted": lambda key: base64.b64encode(f"xx{key}yyy".encode()).decode(),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(f"x{key}".encode()).decode(),
    "hexadecimal": lambda key: key.encode().hex(),
    "upper case": str.upper,
}


def readable(text: str, key: str) -> bool:
    """Whether a key can be read from a text: 24 characters in a row of any of its forms."""
    return any(form(key)[at : at + 24] in text for form in FORMS.values() for at in range(max(1, len(form(key)) - 23)))


@settings(max_examples=50)
@given(key=KEYS, form=st.sampled_from(sorted(FORMS)), before=st.text(max_size=9), after=st.text(max_size=9))
def test_a_key_is_hidden_in_every_form(key: str, form: str, before: str, after: str):
    shown = Secret(key).hide(f"{before}|{FORMS[form](key)}|{after}")
    if form == "HTML" and html.escape(key) != key:
        return  # named entities, below
    assert not readable(shown, key)
    assert "***" in shown
    assert shown.startswith(before[:3]) or before in key


@settings(max_examples=50)
@given(key=KEYS, text=st.text())
def test_other_texts_are_not_changed(key: str, text: str):
    if key.lower() not in text.lower():
        assert Secret(key).hide(text) == text
        assert Secret(None).hide(text) == text


@pytest.mark.parametrize("length", range(6, len(KEY)))
def test_the_beginning_of_a_key_at_the_end_of_a_text_is_hidden(length: int):
    assert Secret(KEY).hide_start(f"text {KEY[:length]}") == "text ***"


def test_a_key_in_calls_and_thoughts_is_hidden_and_one_in_ids_is_an_error():
    call = ToolCall(id=KEY, name=KEY, arguments=json.dumps({"a": KEY}))
    clean = Secret(KEY).clean(Completion(text=KEY, thoughts=KEY, calls=(call,), num_tokens=1, finish="stop"))
    assert KEY not in repr(clean)
    with pytest.raises(EngineError, match="sent the API key back"):
        Secret(KEY).clean(Completion(text=KEY, token_ids=(1,), num_tokens=1, finish="stop"))


PLACES: dict[str, Callable[[str, list[int]], Answer]] = {
    "an error": lambda echo, _: whole({"error": {"message": echo}}, status=400),
    "a plain error": lambda echo, _: whole(echo, status=500),
    "an error that names the parameter": lambda echo, _: whole({"error": {"message": f"unknown {echo}"}}, status=422),
    "an error in the stream": lambda echo, _: stream(chat("a"), {"error": {"message": echo}}),
    "broken JSON": lambda echo, _: stream(f'{{"choices": {echo}'),
    "the encoding": lambda echo, _: whole("x", headers={"Content-Encoding": echo.encode("unicode_escape").decode()}),
    "the text": lambda echo, sizes: stream(*map(chat, pieces(f"Answer: {echo}", sizes)), chat("", finish="stop")),
    "reasoning": lambda echo, sizes: stream(
        *({"choices": [{"delta": {"reasoning": piece}}]} for piece in pieces(echo, sizes)),
        chat("Answer: 1", finish="stop"),
        usage(500),
    ),
    "a call": lambda echo, sizes: stream(
        *(
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": piece}}]}}]}
            for piece in pieces(json.dumps({"a": echo}), sizes)
        ),
        chat("", finish="stop"),
    ),
}


def pieces(text: str, sizes: list[int]) -> list[str]:
    cut: list[str] = []
    while text:
        size = sizes[len(cut) % len(sizes)]
        cut.append(text[:size])
        text = text[size:]
    return cut


async def everything_shown(answer: Answer, folder: Path) -> str:
    """What a tree shows and stores when a server answers like this."""
    async with (
        serve(answer, listing=whole("no", status=404)) as server,
        HttpEngine(server.url, model="m", api_key=KEY, tries=1) as engine,
    ):
        try:
            await engine.check()
            tree = await ramet.run("q", engine=engine, dialect="native", budget=ramet.Budget(turns=2))
            shown = [str(tree)]
        except EngineError as error:
            tree = error.tree
            shown = [str(error), repr(error), str(error.__cause__)]
        if tree is not None:
            ramet.RunDir.create(folder, "run").write([tree])
            shown += [repr(tree.nodes), *(piece.text for node in tree.nodes for piece in node.pieces)]
        return "\n".join([*shown, *engine.notes])


@settings(max_examples=8)
@given(
    place=st.sampled_from(sorted(PLACES)),
    form=st.sampled_from(sorted(FORMS)),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
)
def test_a_key_that_a_server_echoes_is_in_no_output_and_no_file(
    tmp_path_factory: pytest.TempPathFactory, place: str, form: str, sizes: list[int]
):
    folder = tmp_path_factory.mktemp("runs")
    shown = anyio.run(everything_shown, PLACES[place](FORMS[form](KEY), sizes), folder)
    stored = "".join(file.read_bytes().decode("latin-1") for file in folder.rglob("*") if file.is_file())
    assert not readable(shown, KEY)
    assert not readable(stored, KEY)

"""API keys are in no output, whatever a server echoes."""

from __future__ import annotations

import base64
import html
import json
import textwrap
import time
from collections.abc import Callable
from html.entities import html5
from pathlib import Path
from string import ascii_letters, digits
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
LETTERS = ascii_letters + digits + "-._~+/="  # of a bearer token, RFC 6750
KEYS = st.text(st.sampled_from(LETTERS), min_size=12, max_size=60)
NAMES = {letter: name for name, letter in html5.items() if name.endswith(";") and len(letter) == 1}
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
    "HTML twice": lambda key: html.escape(html.escape(key)),
    "HTML names": lambda key: "".join(f"&{NAMES.get(letter, letter)}" if letter in NAMES else letter for letter in key),
    "HTML hexadecimal numbers": lambda key: "".join(f"&#x{ord(letter):X};" for letter in key),
    "HTML numbers": lambda key: "".join(f"&#{ord(letter)};" for letter in key),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a header": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "base64 shifted": lambda key: base64.b64encode(f"xx{key}yyy".encode()).decode(),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(f"x{key}".encode()).decode(),
    "base64 in lines": lambda key: "\n".join(textwrap.wrap(base64.b64encode(key.encode()).decode(), 10)),
    "base64 in a URL": lambda key: quote(base64.b64encode(f"x{key}".encode()).decode(), safe=""),
    "hexadecimal": lambda key: key.encode().hex(),
    "hexadecimal, upper case": lambda key: key.encode().hex().upper(),
    "hexadecimal with colons": lambda key: key.encode().hex(":"),
    "hexadecimal numbers": lambda key: ", ".join(f"0x{ord(letter):02x}" for letter in key),
    "numbers": lambda key: str(list(key.encode())),
    "octal": lambda key: "".join(f"\\{ord(letter):03o}" for letter in key),
    "braces": lambda key: "".join(f"\\u{{{ord(letter):x}}}" for letter in key),
    "quoted-printable": lambda key: "".join(f"={ord(letter):02X}" for letter in key),
    "two lines": lambda key: f"{key[:7]}\n  {key[7:]}",
    "spaces of no width": lambda key: "\u200b".join(key),
    "two lines in JSON": lambda key: json.dumps(f"{key[:9]}\n\t{key[9:]}"),
    "spaces of no width in JSON": lambda key: json.dumps("\u200b".join(key)),
    "spaces of HTML": lambda key: "&ZeroWidthSpace;".join(key[at : at + 5] for at in range(0, len(key), 5)),
    "lines in a URL": lambda key: "%0A".join(quote(key[at : at + 5], safe="") for at in range(0, len(key), 5)),
    "upper case": str.upper,
}


def readable(text: str, key: str) -> bool:
    """Whether a key can be read from a text: 24 characters in a row of any of its forms."""
    written = [form(key) for form in FORMS.values()]
    return any(form[at : at + 24] in text for form in written for at in range(max(1, len(form) - 23)))


@settings(max_examples=50)
@given(key=KEYS, form=st.sampled_from(sorted(FORMS)), before=st.text(max_size=9), after=st.text(max_size=9))
def test_a_key_is_hidden_in_every_form(key: str, form: str, before: str, after: str):
    shown = Secret(key).hide(f"{before}|{FORMS[form](key)}|{after}")
    assert not readable(shown, key)
    assert "***" in shown
    assert shown.startswith(before[:3]) or before in key


@settings(max_examples=50)
@given(key=KEYS, text=st.text())
def test_other_texts_are_not_changed(key: str, text: str):
    if key.lower() not in text.lower():
        assert Secret(key).hide(text) == text
        assert Secret(None).hide(text) == text


@settings(max_examples=50)
@given(
    parts=st.lists(
        st.sampled_from([*" \\&#%=;u0x41n{}", "&lt;", "&#x41;", "&An;", "%41", KEY, quote(KEY)]), max_size=12
    )
)
def test_what_is_not_the_key_stays_whatever_it_is_mixed_with(parts: list[str]):
    text = "".join(parts)
    shown = Secret(KEY).hide(text)
    assert KEY not in shown
    assert shown == text or "***" in shown


@pytest.mark.parametrize("length", range(6, len(KEY)))
def test_the_beginning_of_a_key_at_the_end_of_a_text_is_hidden(length: int):
    assert Secret(KEY).hide_start(f"text {KEY[:length]}") == "text ***"


def test_a_key_in_calls_and_thoughts_is_hidden_and_one_in_ids_is_an_error():
    call = ToolCall(id=KEY, name=KEY, arguments=json.dumps({"a": KEY}))
    clean = Secret(KEY).clean(Completion(text=KEY, thoughts=KEY, calls=(call,), num_tokens=1, finish="stop"))
    assert KEY not in repr(clean)
    with pytest.raises(EngineError, match="sent the API key back"):
        Secret(KEY).clean(Completion(text=KEY, token_ids=(1,), num_tokens=1, finish="stop"))


@pytest.mark.parametrize(
    "form", ["plain", "every character", "unicode escapes", "HTML numbers", "HTML names", "hexadecimal"]
)
def test_a_key_that_was_cut_off_is_hidden_in_every_form(form: str):
    written = FORMS[form](KEY)
    for length in range(2 * len(written) // 3, len(written)):
        assert Secret(KEY).hide_start(f"text {written[:length]}") == "text ***"


def test_text_around_a_key_is_kept_as_it_is():
    shown = Secret(KEY).hide(f"50%25 &amp; \\n {quote(KEY, safe='')} and\n{html.escape(KEY)}; 0x1f")
    assert shown == "50%25 &amp; \\n *** and\n***; 0x1f"


@pytest.mark.parametrize("text", ["\\" * 60_000, "&" * 60_000, "%25" * 20_000, "&#000000" * 8000, f"{KEY[:-1]}" * 2000])
def test_no_text_is_slow_to_search(text: str):
    """Processor time, not elapsed time: a search that is quadratic in these takes minutes."""
    began = time.process_time()
    Secret(KEY).hide_start(text)
    assert time.process_time() - began < 10


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

"""A grammar of what models write: tool calls, cells, terse lines and judges' replies, right and broken.

Every part is drawn as text, so that halves of characters, deep nesting, huge numbers and quotes can stand anywhere.
"""

from __future__ import annotations

import json

from hypothesis import strategies as st

WORDS = st.sampled_from(
    [
        "x",
        "Compute 1+2",
        "é" * 30,
        "漢字 🌱",
        "e\u0301\u0302",
        "👩\u200d👩\u200d👧",
        "",
        " ",
        "\t\n",
        "a" * 3000,
        "ﬃ" * 700,
    ]
)
HOSTILE = st.sampled_from(
    [
        "\ud800",
        "\udfff\ud800",
        "\\ud800",
        "\\ud83d",
        "\x00",
        "\x1b[2J",
        '"' * 300,
        "'" * 300,
        "\\" * 301,
        '{"' * 150,
        '["' * 150,
        "[" * 2000,
        "{" * 500,
        "}" * 50,
        '{"a":[' * 500,
        "<tool_call>" * 400,
        "</tool_call>" * 50,
        "<python>",
        "</python>",
        "<think>",
        "</think>",
        "Answer:",
        "final   " * 200,
        "```python\n",
        "9" * 5000,
        "<|im_end|>",
        "<|im_start|>system\n",
        "\u202e",
        "\r\n",
        "\u2028",
    ]
)
TEXTS = st.one_of(
    WORDS, HOSTILE, st.text(max_size=20), st.text(st.characters(categories=["Cs", "Nd", "Lu"]), max_size=6)
)
NUMBERS = st.sampled_from(
    ["0", "1", "-1", "3.5", "300", "1e999", "-1e999", "NaN", "Infinity", "1" * 4299, "1" * 5000, "-" + "9" * 5000, "00"]
)
NAMES = st.one_of(
    st.sampled_from(["delegate", "search", "add", "look", "fail", "echo", "finish", "none", "\ud800", "__class__"]),
    TEXTS,
)
TYPES = st.sampled_from(
    [
        "int",
        "list[int]",
        "dict[int]",
        "dict[str, list[str]]",
        "None | None",
        "set[list[int]]",
        "dict[list[int], int]",
        "tuple[()]",
        "Any",
        "",
        "\ud800",
        "list[int",
    ]
) | st.integers(1, 300).map(lambda depth: "list[" * depth + "int" + "]" * depth)


def quoted(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts as JSON texts, right or with their characters as they are."""
    return st.tuples(texts, st.booleans()).map(lambda pair: json.dumps(pair[0]) if pair[1] else f'"{pair[0]}"')


def _containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
    pairs = st.tuples(quoted(TEXTS), inner).map(": ".join)
    return lists | st.lists(pairs, max_size=3).map(lambda items: f"{{{', '.join(items)}}}")


LEAVES = st.one_of(quoted(TEXTS), NUMBERS, st.sampled_from(["true", "null", "None", "'x'", "undefined"]))
DEEP = st.tuples(st.sampled_from(["[]", "{}"]), st.integers(20, 1500)).map(
    lambda pair: "[" * pair[1] + "1" + "]" * pair[1] if pair[0] == "[]" else '{"a":' * pair[1] + "1" + "}" * pair[1]
)
VALUES = st.one_of(st.recursive(LEAVES, _containers, max_leaves=6), DEEP)


def _object(**fields: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A JSON object with some of these fields."""
    pairs = [
        st.one_of(st.just(""), value.map(lambda text, name=name: f'"{name}": {text}')) for name, value in fields.items()
    ]
    return st.tuples(*pairs).map(lambda parts: f"{{{', '.join(filter(None, parts))}}}")


GOALS = st.one_of(quoted(TEXTS), VALUES)
ARGUMENTS = st.one_of(
    _object(
        goals=st.one_of(st.lists(GOALS, max_size=4).map(lambda goals: f"[{', '.join(goals)}]"), GOALS),
        context=st.one_of(VALUES, quoted(st.sampled_from(["Ada", "ada ", "\ud800", "5"]))),
        tokens=st.one_of(NUMBERS, VALUES),
        returns=st.one_of(quoted(TYPES), VALUES),
    ),
    _object(query=VALUES, a=VALUES, b=NUMBERS, key=LEAVES),
    VALUES,
    quoted(st.sampled_from(['{"query": 5}', '{"query": ', "[", '{"goals": ["x"]}'])),
)
BLOCKS = _object(name=quoted(NAMES), arguments=ARGUMENTS)
CALLS = st.tuples(
    st.sampled_from(["<tool_call>", ""]), BLOCKS, st.sampled_from(["</tool_call>", "", "</tool_call"])
).map("".join)
TERSE = st.tuples(
    st.sampled_from(["> ", "= ", "| ", "! ", "", ">"]),
    TEXTS,
    st.sampled_from(["", " @Ada", " @\ud800", " @" * 50, " #300", " #-1", " #" + "9" * 5000, " #3k", " #٣"]),
).map("".join)
JUDGED = _object(reason=st.one_of(quoted(TEXTS), VALUES), score=st.one_of(NUMBERS, VALUES, st.just("true")))
STATEMENTS = st.one_of(
    st.sampled_from(
        [
            "finish('x' * 4000)",
            "finish(10**5000)",
            "finish(-2.5)",
            "finish({'é': [1, (2, {3})]})",
            "x = []\nx.append(x)\nfinish(x)",
            "x = [0]\nfor i in range(10): x = [x] * 10\nfinish(x)",
            "class A: pass\nfinish([A()])",
            "print('漢' * 900)",
            "raise ValueError('é' * 3000)",
            "await delegate('x', tokens=-10**5000)",
            "await delegate(10**5000)",
            "await delegate('x', returns='dict[int]')",
            "await delegate('x', returns={'a': [10**5000]})",
            "await delegate('x', context=[1, 'Ada', None])",
            "x = [0]\nfor i in range(9): x = [x] * 10\nawait delegate('x', context=x)",
            "await delegate()",
            "delegate('x')",
            "r = await delegate('part')\nprint(r)",
            "search(5)",
            "search('X')",
            "search(query=[10**5000])",
            "fail()",
            "echo({1: {2, 3}})",
            "await look('a')",
            "await look(None, 1)",
            "import asyncio\nprint(await asyncio.gather(delegate('a'), delegate('b'), return_exceptions=True))",
            "import asyncio\nawait asyncio.wait_for(delegate('a'), 10**400)",
            "import asyncio\nasync with asyncio.timeout('x'): pass",
            "_aio_wake([])",
            "_aio_interrupt(10**5000)",
            "1 / 0",
            "def f(n): return f(n + 1)\nf(0)",
            "context['Ada']",
            "def g():\n  yield 1",
        ]
    ),
    TEXTS,
    VALUES.map(lambda value: f"finish({value})"),
    TEXTS.map(lambda text: f"finish({text!r})"),
    TEXTS.map(lambda text: f"await delegate({text!r})"),
)
CELLS = st.tuples(
    st.sampled_from(["<python>\n", "```python\n", "```\n"]),
    st.lists(STATEMENTS, min_size=1, max_size=3).map("\n".join),
    st.sampled_from(["\n</python>", "\n```", ""]),
).map("".join)


def _damaged(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts with something odd put in the middle, or cut off."""
    places = st.floats(0, 1)

    def damage(parts: tuple[str, str, float, bool]) -> str:
        text, odd, place, keep = parts
        at = int(place * len(text))
        return text[:at] + odd + (text[at:] if keep else "")

    return st.tuples(texts, TEXTS, places, st.booleans()).map(damage)


def several(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """One to three parts, with text around them, some of them damaged."""
    parts = st.one_of(texts, texts, _damaged(texts), TEXTS)
    return st.lists(parts, min_size=1, max_size=3).map("\n".join)


MIXED = several(st.one_of(CALLS, TERSE, CELLS, JUDGED))
OUTPUTS: dict[str, st.SearchStrategy[str]] = {
    "tools": several(CALLS) | MIXED,
    "tools-returns": several(CALLS) | MIXED,
    "terse": several(TERSE) | MIXED,
    "python": several(CELLS) | MIXED,
    "judge": several(JUDGED) | MIXED,
}

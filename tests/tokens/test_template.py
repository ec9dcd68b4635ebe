"""Chat templates are programs from files: whatever they do, the result is a text, None or one line."""

from __future__ import annotations

import pytest

from ramet import ConfigError
from ramet.tokens.template import MAX_TEMPLATE, render_all

HELLO = [[{"role": "user", "content": "hi"}]]


def test_a_template_renders_each_conversation_or_none():
    template = "{% if messages[0].content == 'no' %}{{ raise_exception('no') }}{% endif %}[{{ messages[0].content }}]"
    assert render_all(template, [*HELLO, [{"role": "user", "content": "no"}]], {}) == ["[hi]", None]


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 // 0 }}",
        "{{ messages[7].content }}{{ messages[0].content.nothing.at.all }}",
        "{{ 'x'.__class__.__mro__ }}{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% for x in %}",
        "{{ range(10 ** 9) | list }}",
    ],
)
def test_a_template_that_fails_gives_none(template: str):
    assert render_all(template, HELLO, {}) == [None]


@pytest.mark.parametrize(
    "template",
    ["{{ 'x' * 10 ** 10 }}", "{{ ('x' * 10 ** 6)[:300000] }}", "{{ '%09999999999d' % 1 }}"],
    ids=["memory", "output", "format"],
)
def test_a_template_that_builds_too_much_is_one_line(template: str):
    with pytest.raises(ConfigError, match=r"^the chat template takes too much memory or time, or writes too much\Z"):
        render_all(template, HELLO, {})


def test_a_template_that_is_too_long_is_refused():
    with pytest.raises(ConfigError, match="at most 1,048,576 are read"):
        render_all("x" * (MAX_TEMPLATE + 1), HELLO, {})

"""Chat templates of models, rendered in a process of their own: a template is a program from a file.

The process has limits on memory, time and output, so that a template that never ends or builds ten gigabytes is one
error. Started as `python -m ramet.tokens.template`, it reads one request from standard input and writes one reply.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn, cast

from ramet.errors import ConfigError

MAX_TEMPLATE = 2**20  # characters
MAX_TEXT = 2**18  # characters of a rendered conversation
MAX_MEMORY = 2**30  # bytes of the process
MAX_SECONDS = 20

Conversation = Sequence[Mapping[str, str]]


def render_all(template: str, conversations: Sequence[Conversation], tokens: Mapping[str, str]) -> list[str | None]:
    """Each conversation with the model's turn opened, or None where the template raises an error."""
    if len(template) > MAX_TEMPLATE:
        raise ConfigError(f"the chat template has {len(template):,} characters; at most {MAX_TEMPLATE:,} are read")
    return list(_rendered(json.dumps([template, [list(map(dict, one)) for one in conversations], dict(tokens)])))


@lru_cache(maxsize=32)
def _rendered(request: str) -> tuple[str | None, ...]:
    command = [sys.executable, "-m", "ramet.tokens.template"]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, text=True, timeout=3 * MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError("the chat template takes too long to render") from None
    if done.returncode != 0:
        missing = "jinja2" in done.stderr and "ModuleNotFoundError" in done.stderr
        if missing:
            raise ConfigError("chat templates need jinja2 and tokenizers: pip install 'ramet[hf]'")
        raise ConfigError("the chat template takes too much memory or time, or writes too much")
    return tuple(json.loads(done.stdout))


def main() -> None:
    """One request, in this process."""
    template, conversations, tokens = json.load(sys.stdin)
    _limit()
    texts = [render(template, conversation, tokens) for conversation in conversations]
    if any(text is not None and len(text) > MAX_TEXT for text in texts):
        sys.exit(3)
    sys.stdout.write(json.dumps(texts))


def _limit() -> None:
    """Let the system end this process when it takes too much memory or time."""
    with suppress(ImportError, OSError, ValueError):  # not every system has such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))


def render(template: str, messages: Conversation, tokens: Mapping[str, str]) -> str | None:
    """The conversation with the model's turn opened, or None when the template raises an error."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=_extensions())

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    environment.filters["tojson"] = to_json
    cast(dict[str, Any], environment.globals).update(raise_exception=refuse, strftime_now=datetime.now().strftime)
    try:
        return environment.from_string(template).render(messages=messages, add_generation_prompt=True, **tokens)
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError):
        return None


def _extensions() -> list[Any]:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        """`{% generation %}` marks assistant text for training in other packages; here only its body is rendered."""

        tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return [Generation, loopcontrols]


if __name__ == "__main__":
    main()

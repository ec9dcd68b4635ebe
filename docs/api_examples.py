"""For the site: the `Example:` part of a docstring is Python code, so it is shown as code."""

import re
import textwrap

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:(?:[ ]{4}.*)?(?:\n|\Z))+)", re.MULTILINE)


class Examples(griffe.Extension):
    """Rewrites docstrings before they are rendered; the source is not touched."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(as_code, obj.docstring.value)


def as_code(found: re.Match[str]) -> str:
    return f"For example\n\n```python\n{textwrap.dedent(found[1]).strip()}\n```\n\n"

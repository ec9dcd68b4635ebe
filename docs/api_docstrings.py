"""For the site: docstrings as the API reference shows them. The source is not touched.

The `Example:` part of a docstring is shown as Python code. The fields of a dataclass are in its signature, with types
and defaults; those with a comment in the source are also listed below it, with that comment. Members of an enumeration
are listed in the same way. Attributes that a constructor sets are left out: its arguments are in the signature.
"""

import io
import re
import textwrap
import tokenize

import griffe

EXAMPLE = re.compile(r"^Example:\n((?:(?:[ ]{4}.*)?(?:\n|\Z))+)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites docstrings before they are rendered."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(as_code, obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **kwargs: object) -> None:
        for module in [pkg, *submodules(pkg)]:
            for cls in module.classes.values():
                if not cls.is_alias:
                    (list_fields if "dataclass" in cls.labels or is_enum(cls) else drop_assigned)(cls)


def as_code(found: re.Match[str]) -> str:
    return f"For example:\n\n```python\n{textwrap.dedent(found[1]).strip()}\n```\n\n"


def submodules(module: griffe.Module) -> list[griffe.Module]:
    inner = [one for one in module.modules.values() if not one.is_alias]
    return [*inner, *(deeper for one in inner for deeper in submodules(one))]


def is_enum(cls: griffe.Class) -> bool:
    return any(str(base).endswith("Enum") for base in cls.bases)


def list_fields(cls: griffe.Class) -> None:
    """Describe the fields in the docstring of their class, and show no headings for them."""
    lines = cls.filepath.read_text(encoding="utf-8").splitlines(keepends=True)
    fields = {name: one for name, one in own_attributes(cls).items() if "property" not in one.labels}
    notes = {name: comment(lines[one.lineno - 1 : one.endlineno]) for name, one in fields.items()}
    if is_enum(cls):
        notes = {name: note or f"`{fields[name].value}`" for name, note in notes.items()}
    rows = [f"    {name}: {note}" for name, note in notes.items() if note and not name.startswith("_")]
    if rows and cls.docstring is not None:
        cls.docstring.value = "\n".join([cls.docstring.value.rstrip(), "", "Attributes:", *rows])
    for name in fields:
        cls.del_member(name)


def drop_assigned(cls: griffe.Class) -> None:
    assigned = [
        name
        for name, one in own_attributes(cls).items()
        if one.value is not None and {"instance-attribute", "class-attribute"} & one.labels == {"instance-attribute"}
    ]
    for name in assigned:
        cls.del_member(name)


def own_attributes(cls: griffe.Class) -> dict[str, griffe.Attribute]:
    return {name: one for name, one in cls.members.items() if isinstance(one, griffe.Attribute)}


def comment(lines: list[str]) -> str:
    """What the comments of a statement say, without those for tools."""
    tokens = tokenize.generate_tokens(io.StringIO(textwrap.dedent("".join(lines))).readline)
    notes = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
    return " ".join(note for note in notes if not note.startswith(("noqa", "pyright")))

"""Arguments of a world's functions are checked before the call, with Python's own words."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest

from ramet.agent.functions import check_arguments


class Chest:
    def put(self, item: str, *, number: int = 1) -> None: ...


def put(item: str, *, number: int = 1) -> None: ...


FUNCTIONS = {"method": Chest().put, "function": put, "partial": partial(put, number=2), "lambda": lambda item: item}
ARGUMENTS: list[dict[str, Any]] = [
    {"item": "a"},
    {"item": "a", "number": 3},
    {},
    {"number": 1},
    {"item": "a", "color": 1},
    {"self": 1, "item": "a"},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_fit_or_fail_as_in_a_call(name: str, arguments: dict[str, Any]) -> None:
    function = FUNCTIONS[name]

    def outcome(check: Any) -> str | None:
        try:
            check()
        except TypeError as error:
            return str(error)
        return None

    expected = outcome(lambda: inspect.signature(function).bind(**arguments))
    assert outcome(lambda: check_arguments(function, arguments)) == expected


def test_another_object_of_the_same_class_is_checked_by_itself() -> None:
    check_arguments(Chest().put, {"item": "a"})
    with pytest.raises(TypeError, match="missing a required argument: 'item'"):
        check_arguments(Chest().put, {})

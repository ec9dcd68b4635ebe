"""What the training process and its players send each other.

A player plays trees; the training process has the engine. Trees and engine calls have numbers, given by the side that
starts them: the training process numbers trees, a player numbers calls. A tree, its attempt and an error travel as
bytes, so that a value that cannot be pickled is an error of that tree alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

from ramet.errors import RametError
from ramet.tokens.render import TokenRenderer
from ramet.train.settings import TrainConfig
from ramet.types import Completion, Prompt

Source = Literal["train", "eval"]  # the taskset of a tree

# To a player.


class Open(NamedTuple):
    """The first message: everything that trees of this run have in common."""

    config: TrainConfig
    renderer: TokenRenderer
    window: int | None  # of the engine
    live: Path | None  # the run directory, if this player writes what its trees do for viewers


class Play(NamedTuple):
    tree: int
    source: Source
    attempt: bytes
    temperature: float


class Cancel(NamedTuple):
    tree: int


class Reply(NamedTuple):
    """The end of a call. Of a cancelled call, what had been received; None if that is nothing."""

    call: int
    result: Completion | RametError | None
    tokens: int  # as metered


# From a player.


class Ready(NamedTuple):
    pass


class Call(NamedTuple):
    tree: int
    call: int
    prompt: Prompt
    max_tokens: int
    stop: tuple[str, ...]
    temperature: float
    seed: int | None


class CancelCall(NamedTuple):
    call: int


class Ended(NamedTuple):
    """A node takes no more turns."""

    node_id: str


class Played(NamedTuple):
    tree: int
    played: bytes


class Failed(NamedTuple):
    tree: int | None  # None: the player could not be opened
    error: bytes

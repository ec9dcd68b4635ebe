"""Render messages to tokens, append-only.

The text of a node grows by pieces: an opening (system prompt and goal), then alternately a sampled piece and a reply.
Nothing is rendered twice, so what a node saw is exactly the concatenation of its pieces, and the ids that are trained
on are the ids that were sampled. Templates that rewrite history (by dropping old thoughts, say) have no effect here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

from ramet.types import Piece

# A chat template wraps each message in a few control tokens. Allowance per message where the server hides them.
HIDDEN_TOKENS_PER_MESSAGE = 16


class Tokenizer(Protocol):
    """Text to ids and back. Only `control` text may become special tokens."""

    def encode(self, text: str, *, control: bool) -> Sequence[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def is_control(self, token: int) -> bool: ...

    @property
    def vocab_size(self) -> int: ...


class Renderer(Protocol):
    """Turns messages into pieces. Each engine has one."""

    @property
    def exact(self) -> bool:
        """Whether pieces have token ids, so that sizes are exact and not upper bounds."""
        ...

    def open(self, system: str, user: str) -> Piece: ...
    def reply(self, user: str, *, after: Piece) -> Piece: ...
    def size(self, piece: Piece) -> int: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def knows(self, ids: Sequence[int]) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """The text a chat template puts around messages.

    Example (ChatML):
        ChatFormat(before_system="<|im_start|>system\\n", before_user="<|im_end|>\\n<|im_start|>user\\n",
                   before_assistant="<|im_end|>\\n<|im_start|>assistant\\n",
                   after_assistant="<|im_end|>\\n<|im_start|>user\\n")
    """

    before_system: str
    before_user: str  # between system and first user message
    before_assistant: str  # between a user message and the model's turn
    after_assistant: str  # between the model's turn and the next user message; has the end-of-turn token
    folds_system: bool = False  # the template has no system role: the system prompt opens the first user message


CHATML = ChatFormat(
    before_system="<|im_start|>system\n",
    before_user="<|im_end|>\n<|im_start|>user\n",
    before_assistant="<|im_end|>\n<|im_start|>assistant\n",
    after_assistant="<|im_end|>\n<|im_start|>user\n",
)


class TokenRenderer:
    """Renders messages as token ids, for engines that take ids."""

    exact = True

    def __init__(self, tokenizer: Tokenizer, chat: ChatFormat = CHATML) -> None:
        self.tokenizer = tokenizer
        self.chat = chat
        # The same system prompts and chat markers occur in every node.
        self._encode = lru_cache(maxsize=512)(self._encode_once)
        self._shared = lru_cache(maxsize=64)(self._system)
        # An engine decodes a completion, and then the transcript of the node that it is for.
        self._decode = lru_cache(maxsize=1024)(self._decode_once)

    def __reduce__(self) -> tuple[Any, ...]:
        """For another process: without what is cached."""
        return type(self), (self.tokenizer, self.chat)

    @cached_property
    def end_of_turn(self) -> int | None:
        """The control token that ends a turn of the model. Some templates have a space before it, some have none."""
        return next(filter(self.tokenizer.is_control, self._encode_once(self.chat.after_assistant, True)), None)

    def open(self, system: str, user: str) -> Piece:
        shared = self._shared(system)
        own = self._piece([(user, False), (self.chat.before_assistant, True)])
        return Piece(sampled=False, text=shared.text + own.text, token_ids=shared.token_ids + own.token_ids)

    def reply(self, user: str, *, after: Piece) -> Piece:
        piece = self._piece([(self.chat.after_assistant, True), (user, False), (self.chat.before_assistant, True)])
        if after.token_ids and after.token_ids[-1] == self.end_of_turn:
            # The model sampled the end-of-turn token itself: do not repeat it.
            rest = piece.token_ids[piece.token_ids.index(after.token_ids[-1]) + 1 :]
            return Piece(sampled=False, text=piece.text, token_ids=rest)
        return piece

    def size(self, piece: Piece) -> int:
        return len(piece.token_ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text without the control token at its end. Models may end a turn with one of several."""
        return self._decode(tuple(ids))

    def _decode_once(self, ids: tuple[int, ...]) -> str:
        if ids and self.tokenizer.is_control(ids[-1]):
            ids = ids[:-1]
        return self.tokenizer.decode(ids)

    def knows(self, ids: Sequence[int]) -> bool:
        """Whether all ids are in the vocabulary."""
        return not ids or (min(ids) >= 0 and max(ids) < self.tokenizer.vocab_size)

    def _system(self, system: str) -> Piece:
        """The opening up to the goal, shared by nodes with the same system prompt."""
        chat = self.chat
        between = ("\n\n", False) if chat.folds_system else (chat.before_user, True)
        return self._piece([(chat.before_system, True), (system, False), between])

    def _encode_once(self, text: str, control: bool) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, control=control))

    def _piece(self, parts: Sequence[tuple[str, bool]]) -> Piece:
        ids: list[int] = []
        for text, control in parts:
            # Long texts are not cached: they rarely occur twice.
            ids += self._encode_once(text, control) if len(text) > 4000 else self._encode(text, control)
        return Piece(sampled=False, text="".join(text for text, _ in parts), token_ids=tuple(ids))


class TextRenderer:
    """Renders messages as plain text, for servers whose tokenizer is not known.

    Sizes are upper bounds (a token is at least one byte) until the server reports its count.
    """

    exact = False

    def open(self, system: str, user: str) -> Piece:
        return Piece(sampled=False, text=f"{system}\n\n{user}")

    def reply(self, user: str, *, after: Piece) -> Piece:
        del after
        return Piece(sampled=False, text=user)

    def size(self, piece: Piece) -> int:
        return len(piece.text.encode()) + 2 * HIDDEN_TOKENS_PER_MESSAGE

    def decode(self, ids: Sequence[int]) -> str:
        raise TypeError("a text renderer has no token ids to decode")

    def knows(self, ids: Sequence[int]) -> bool:
        return not ids

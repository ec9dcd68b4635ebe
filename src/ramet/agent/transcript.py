"""Everything a node was given and has sampled, append-only."""

from __future__ import annotations

from ramet.errors import EngineError
from ramet.tokens.render import Renderer
from ramet.types import Completion, Message, Node, Piece, Prompt, clean


class Transcript:
    """A node's context window. `size` is exact in token ids, an upper bound in text."""

    def __init__(self, node: Node, renderer: Renderer, tree_id: str) -> None:
        self.node = node
        self.renderer = renderer
        self.size = 0
        self._tree_id = tree_id
        self._messages = node.messages
        self._ids: list[int] = []

    @property
    def node_id(self) -> str:
        """The id that engines use for the node."""
        return f"{self._tree_id}/{self.node.index}"

    def open(self, system: str, user: str) -> None:
        """Begin with the system prompt and the goal."""
        system, user = clean(system), clean(user)
        self._messages += [Message("system", system), Message("user", user)]
        self._append_piece(self.renderer.open(system, user))

    def render(self, user: str) -> Piece:
        """A message as it would be rendered next. Changes nothing."""
        return self.renderer.reply(user, after=self.node.pieces[-1])

    def append(self, user: str, piece: Piece) -> None:
        """Append a message that `render` has rendered."""
        if self._messages[-1].role == "user":  # the turn before was cancelled; servers need alternating roles
            self._messages.append(Message("assistant", "…"))
        self._messages.append(Message("user", user))
        self._append_piece(piece)

    def record(self, completion: Completion, *, most: int | None = None) -> str:
        """Append what the node sampled; return it as text. `most`: tokens it may have, if it was not counted."""
        if self.renderer.exact:
            if not completion.token_ids and completion.text:
                raise EngineError("the engine was given token ids and returned none for its completion")
            text = self.renderer.decode(completion.token_ids)
        else:
            text = completion.text
        text = clean(text)
        piece = Piece(
            sampled=True,
            text=text,
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
            policy_version=completion.policy_version,
            taught=completion.taught,
        )
        self.node.pieces.append(piece)
        self._messages.append(Message("assistant", text))
        self._ids += completion.token_ids
        if self.renderer.exact:
            self.size += len(completion.token_ids)
        elif completion.prompt_tokens is None:
            bound = 0 if most is None else min(most, len(text.encode(errors="replace")))
            self.size += max(completion.num_tokens, bound)
        else:  # the server's count replaces the upper bound
            self.size = completion.prompt_tokens + completion.num_tokens
        return text

    def prompt(self, *, closing: bool, tokens: int | None = None, keys: tuple[str, ...] = ()) -> Prompt:
        node = self.node
        return Prompt(
            messages=tuple(self._messages),
            ids=tuple(self._ids) if self.renderer.exact else None,
            node_id=self.node_id,
            goal=node.goal,
            depth=node.depth,
            turn=len(node.turns),
            closing=closing,
            tokens=tokens,
            keys=keys,
        )

    def _append_piece(self, piece: Piece) -> None:
        self.node.pieces.append(piece)
        self._ids += piece.token_ids
        self.size += self.renderer.size(piece)

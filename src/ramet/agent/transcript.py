"""Everything a node was given and has sampled, append-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramet.agent.toolcalls import call_text, tools_text
from ramet.agent.wording import END_THINK, THINK, turn_text
from ramet.errors import EngineError
from ramet.tokens.render import Renderer
from ramet.types import Completion, Message, Meter, Node, Piece, Prompt, ToolCall, clean


class Transcript:
    """A node's context window. `size` is exact in token ids, an upper bound in text."""

    def __init__(self, node: Node, renderer: Renderer, tree_id: str) -> None:
        self.node = node
        self.renderer = renderer
        self.size = 0
        self._tree_id = tree_id
        self._messages = node.messages
        self._ids: list[int] = []
        self._reported = True  # whether the ids of all prompts so far are known from the server
        self._tools: Sequence[Mapping[str, Any]] = ()

    @property
    def node_id(self) -> str:
        """The id that engines use for the node."""
        return f"{self._tree_id}/{self.node.index}"

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The native calls of the newest turn: each needs a result before the model reads anything else."""
        return self._messages[-1].calls

    def open(self, system: str, user: str, *, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin with the system prompt, the tools of native tool calling, and the goal."""
        system, user = clean(system), clean(user)
        self._tools = tools
        self._messages += [Message("system", system), Message("user", user)]
        self._append_piece(self.renderer.open(f"{system}\n\n{tools_text(tools)}" if tools else system, user))

    def render(self, user: str) -> Piece:
        """A message as it would be rendered next. Changes nothing."""
        return self.renderer.reply(user, after=self.node.pieces[-1])

    def append(self, messages: Sequence[Message], piece: Piece) -> None:
        """Append messages that `render` has rendered."""
        if self._messages[-1].role == "user":  # the turn before was cancelled; servers need alternating roles
            self._messages.append(Message("assistant", "…"))
        self._messages += messages
        self._append_piece(piece)

    def write_out_calls(self) -> None:
        """Make the native calls of the newest turn text of its message, so that they need no results."""
        last = self._messages[-1]
        if last.calls:
            text = "".join([last.content, *map(call_text, last.calls)])
            self._messages[-1] = replace(last, content=text, calls=())

    def record(self, completion: Completion, *, most: int | None = None) -> str:
        """Append what the node sampled; return it as text. `most`: tokens it may have, if it was not counted."""
        if self.renderer.exact:
            if not completion.token_ids and completion.text:
                raise EngineError("the engine was given token ids and returned none for its completion")
            text = self.renderer.decode(completion.token_ids)
        else:
            text = completion.text
        text = clean(text)
        calls = completion.calls if most is None else ()  # of a turn that was cut, none is carried out
        given = self.node.pieces[-1].text
        self._keep_ids(completion)
        piece = Piece(
            sampled=True,
            text=clean(_written(completion, text)),
            token_ids=completion.token_ids if self.renderer.exact or self._reported else (),
            logprobs=completion.logprobs if self.renderer.exact or self._reported else (),
            policy_version=completion.policy_version,
            taught=completion.taught,
        )
        self.node.pieces.append(piece)
        self._messages.append(Message("assistant", text if text or calls else "…", calls))
        self._ids += piece.token_ids
        if self.renderer.exact:
            self.size += len(completion.token_ids)
        elif completion.prompt_tokens is None:
            bound = 0 if most is None else min(most, len(text.encode(errors="replace")))
            self.size += max(completion.num_tokens, bound)
        else:  # the server's count replaces the upper bound
            self.size = completion.prompt_tokens + completion.num_tokens
        return turn_text(given, text)

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
            tools=self._tools,
        )

    def _keep_ids(self, completion: Completion) -> None:
        """Keep the ids that a server reports for a prompt of messages.

        They are kept as long as every prompt begins with what the node has read and sampled before. A chat template
        that rewrites the past ends that, and the node has no ids at all: half a window cannot be trained on.
        """
        if self.renderer.exact or not self._reported:
            return
        prompt, known = completion.prompt_ids, len(self._ids)
        if prompt and completion.token_ids and list(prompt[:known]) == self._ids:
            self.node.pieces[-1] = replace(self.node.pieces[-1], token_ids=prompt[known:])
            self._ids += prompt[known:]
            return
        self._reported = False
        if self._ids:
            self._ids = []
            self.node.pieces[:] = [replace(piece, token_ids=(), logprobs=()) for piece in self.node.pieces]

    def _append_piece(self, piece: Piece) -> None:
        self.node.pieces.append(piece)
        self._ids += piece.token_ids
        self.size += self.renderer.size(piece)


def _written(completion: Completion, text: str) -> str:
    """The whole turn as text: reasoning that came separately, what was said, and native calls."""
    thoughts = f"{THINK}\n{completion.thoughts}\n{END_THINK}\n" if completion.thoughts else ""
    return "".join([thoughts, text, *map(call_text, completion.calls)])


def received_by(meter: Meter, cap: int) -> Completion | None:
    """What a cancelled call brought; None if that is nothing."""
    partial = None if meter.partial is None else meter.partial()
    if partial is None or partial.num_tokens > cap:
        return None
    brought = partial.token_ids or partial.text or partial.thoughts or partial.calls
    return partial if brought else None

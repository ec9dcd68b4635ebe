"""A world whose functions are the tools of another package's environment.

The tools run in a process of their own, in a session that begins with the first call and ends with the verdict on the
root. So they share what they change among the nodes of one tree, and with no other tree.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ramet.errors import ConfigError
from ramet.inputs.threads import Threads
from ramet.inputs.tools import Listed, as_function
from ramet.interfaces import HostFunction
from ramet.tasks.grader import Unfinished
from ramet.tasks.peers.sessions import Sessions
from ramet.types import Task, clean


class ToolWorld:
    """The tools of one task. `place` names the task in the process: environment, arguments, split and index."""

    def __init__(
        self,
        task: Task,
        sessions: Sessions,
        place: Sequence[Any],
        *,
        tools: Sequence[Mapping[str, Any]],
        call_s: float,
        opening_s: float,
    ) -> None:
        self.context: Mapping[str, str] = task.context
        self._sessions, self._place, self._opening_s = sessions, place, opening_s
        self._threads = Threads()
        self._session: str | None = None
        self._lock = threading.Lock()
        functions: dict[str, HostFunction] = {}
        for tool in tools:
            listed = Listed(name=tool["name"], about=tool["about"], schema=tool["schema"])
            function = as_function(listed, partial(self._call, tool["name"], call_s), taken=[*functions])
            functions[function.__name__] = function
        self.functions: Mapping[str, HostFunction] = functions

    async def _call(self, name: str, call_s: float, arguments: Mapping[str, Any]) -> Any:
        """The result of a tool. What it raises, and that it took too long, is text for the node."""
        return await self._threads.run(partial(self._call_now, name, call_s, arguments))

    def _call_now(self, name: str, call_s: float, arguments: Mapping[str, Any]) -> Any:
        try:
            session = self._opened()
        except ConfigError as error:  # ends the call, not the run
            raise Unfinished(str(error)) from None
        return clean(self._sessions.call("call_tool", session, name, dict(arguments), seconds=call_s))

    def score(self, answer: str, *, seconds: float) -> dict[str, Any]:
        """The score of the answer, given all calls of the tree. Ends the session."""
        found = self._sessions.call("score_session", self._opened(), answer, seconds=seconds)
        self._session = None
        return found

    def _opened(self) -> str:
        with self._lock:
            if self._session is None:
                session: str = self._sessions.call("open_session", *self._place, seconds=self._opening_s)
                self._session = session
                weakref.finalize(self, _close, self._sessions, session)
            return self._session


def _close(sessions: Sessions, session: str) -> None:
    """End a session that may have had no verdict, without waiting for it."""
    sessions.post("close_session", session)

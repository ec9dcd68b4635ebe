"""The small process that a test starts in place of `ramet`: see fork_server.

It imports little, because an interpreter starts in hundredths of a second and most modules take longer than that.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import sys


def ask(place: str, words: list[str]) -> int:
    """Have `words` carried out by a copy of the server, and return its exit code."""
    request = marshal.dumps({"words": words, "cwd": os.getcwd(), "env": dict(os.environ)})
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(f"\0{place}")
        socket.send_fds(server, [len(request).to_bytes(4)], [0, 1, 2])
        server.sendall(request)
        reply = server.recv(4, socket.MSG_WAITALL)
        if len(reply) < 4:
            raise ConnectionError("the fork server has ended")
        pid = int.from_bytes(reply)
        ended = os.pidfd_open(pid)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: os.kill(pid, number))
        server.sendall(b"!")  # signals reach the copy from here on
        select.select([ended], [], [])
        code = server.recv(4)
        return int.from_bytes(code) if code else 1  # it raised


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]))

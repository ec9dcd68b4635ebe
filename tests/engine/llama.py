"""A real llama.cpp server with a small real model, in its own process.

Run as a script it serves until its input is closed, so that it never outlives the tests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLS_TEMPLATE = Path(__file__).parent / "tools.jinja"
SLOTS, WINDOW = 4, 2048


@contextmanager
def llama_server() -> Iterator[str]:
    """Run the server for the duration of the block; yields its address without a path."""
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        if process.stdout is None:
            raise AssertionError("started with a pipe")
        try:
            address = next((line.split()[1] for line in process.stdout if line.startswith("serving ")), None)
            if address is None:
                raise RuntimeError(f"the llama.cpp server ended with {process.wait()}: run {__file__} to see why")
            yield address
        finally:
            process.kill()


def main() -> None:
    import xllamacpp

    from ramet.tokens.huggingface import smollm2_file

    params = xllamacpp.CommonParams()
    params.model.path = str(smollm2_file())
    params.chat_template = TOOLS_TEMPLATE.read_text(encoding="utf-8")  # the model's own has no tools
    params.n_parallel, params.n_ctx = SLOTS, SLOTS * WINDOW
    # One thread: several would spin while they wait for each other, and starve the tests on a small machine.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    sys.stdout.write(f"serving {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()

"""Run the classes of `clients.py` in environments that have the clients, against one server in this environment.

python -m tests.serve.run_clients TestLangChain=.venv-clients/bin/python TestLiteLLM=.venv-litellm/bin/python
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.serve.scripted import process


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as runs, process(Path(runs)) as (_, url):
        here = Path(__file__).parent
        options = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(here), "--noconftest"]
        environment = {**os.environ, "RAMET_SERVE_URL": url, "PYTHONPATH": ""}
        for word in sys.argv[1:]:
            name, _, python = word.partition("=")
            command = [python, "-m", "pytest", *options, f"{here / 'clients.py'}::{name}"]
            sys.stderr.write(f"{name} in {python}\n")
            failed += subprocess.run(command, env=environment, check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())

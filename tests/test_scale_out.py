"""The numbers of docs/scale-out.md are those that its program prints."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "scale-out.md"


def test_the_costs_on_the_page_are_what_the_program_on_it_prints():
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    program, shown = found.groups()
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed == shown


def test_the_page_has_twenty_pitfalls():
    rows = re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert rows == [str(number) for number in range(1, 21)]

"""What keys have used today outlives the process: a clean stop, a crash between any two steps, a kill."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.budget import Budget
from ramet.errors import StoreError
from ramet.serve import usage
from ramet.serve.keys import KeyConfig, Keyring, Reservation
from ramet.serve.usage import UsageFiles
from ramet.types import Usage
from tests.serve.scripted import PATIENCE_S, process, served, tree_with, until

SECRET = "correct-horse-battery"
BUDGET = Budget(tokens=1000)
KEYS = f"""
[keys.bob]
key = "{SECRET}"
tokens_per_day = 1000
"""


def make_keys(tokens: int = 10**6) -> Keyring:
    return Keyring({"a": KeyConfig(key=SECRET, tokens_per_day=tokens)}, budget=BUDGET)


def begin(keys: Keyring, files: UsageFiles) -> Reservation:
    reservation = keys.account(SECRET).reserve(BUDGET)
    reservation.start()
    files.started(reservation)
    return reservation


def save(files: UsageFiles) -> None:
    files.save(files.snapshot())
    files.saved()


def test_what_was_used_today_outlives_the_process(tmp_path: Path):
    keys = make_keys()
    files = UsageFiles(tmp_path, keys)
    begin(keys, files).settle(tree_with(Usage(tokens=700, lost_tokens=300, cost=5)))
    save(files)
    again = make_keys(1500)
    UsageFiles(tmp_path, again)
    assert (again.account(SECRET).tokens, again.account(SECRET).cost) == (1000, 5)
    assert again.account(SECRET).reserve(BUDGET).budget.tokens == 500


@given(st.lists(st.sampled_from(["start", "wait", "settle", "save", "crash"]), max_size=30))
def test_after_a_crash_a_tree_that_was_not_stored_counts_with_all_it_may_use(steps: list[str]):
    stored, running, ended = 0, 0, 0  # trees: stored for 10 tokens each; begun; settled since the last save
    with TemporaryDirectory() as folder:
        keys = make_keys()
        files = UsageFiles(Path(folder), keys)
        open_requests: list[Reservation] = []
        for step in [*steps, "crash"]:
            if step == "start":
                open_requests.append(begin(keys, files))
                running += 1
            elif step == "wait":
                keys.account(SECRET).reserve(BUDGET)  # waits for a place: nothing is generated
            elif step == "settle" and open_requests:
                open_requests.pop(0).settle(tree_with(Usage(tokens=10)))
                running, ended = running - 1, ended + 1
            elif step == "save":
                save(files)
                stored, ended = stored + 10 * ended, 0
            elif step == "crash":
                keys, open_requests = make_keys(), []
                files = UsageFiles(Path(folder), keys)
                stored, running, ended = stored + 1000 * (running + ended), 0, 0
                assert keys.account(SECRET).tokens == stored


def test_the_lines_of_started_trees_do_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(usage, "LONGEST_BYTES", 500)
    keys = make_keys()
    files = UsageFiles(tmp_path, keys)
    for _ in range(100):
        snapshot = files.snapshot()
        last = begin(keys, files)  # while the snapshot is written
        files.save(snapshot)
        files.saved()
        last.settle(tree_with(Usage(tokens=1)))
    assert files.lines.stat().st_size < 600
    again = make_keys()
    UsageFiles(tmp_path, again)
    assert again.account(SECRET).tokens == 99 + 1000


def test_a_line_cut_by_a_power_failure_is_left_out_and_the_next_one_is_whole(tmp_path: Path):
    keys = make_keys()
    files = UsageFiles(tmp_path, keys)
    begin(keys, files)
    whole = files.lines.read_bytes()
    begin(keys, files)
    files.lines.write_bytes(files.lines.read_bytes()[: len(whole) + 5])
    again = make_keys()
    begin(again, UsageFiles(tmp_path, again))
    last = make_keys()
    UsageFiles(tmp_path, last)
    assert last.account(SECRET).tokens == 2000


def test_a_file_of_an_older_version_is_read(tmp_path: Path):
    day = datetime.now(UTC).date().isoformat()
    (tmp_path / "today.json").write_text(json.dumps({"a": {"day": day, "tokens": 300, "cost": 0}}))
    keys = make_keys()
    UsageFiles(tmp_path, keys)
    assert keys.account(SECRET).tokens == 300


@pytest.mark.parametrize("text", ["", "3", '{"a": 3}', '{"number": 1, "keys": {"a": 3}}'])
def test_a_file_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path, text: str):
    (tmp_path / "today.json").write_text(text)
    with pytest.raises(StoreError, match=r"today\.json, what keys have used today"):
        UsageFiles(tmp_path, make_keys())


def test_tokens_of_a_tree_that_runs_when_the_server_is_killed_count(tmp_path: Path):
    (tmp_path / "keys.toml").write_text(KEYS)
    headers = {"authorization": f"Bearer {SECRET}"}
    body = {"model": "ramet", "messages": [{"role": "user", "content": "stall"}]}

    def ask(url: str) -> httpx.Response:
        return httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=PATIENCE_S)

    def ask_killed(url: str) -> None:
        with pytest.raises(httpx.HTTPError):
            ask(url)

    runs, settings = tmp_path / "runs", f"keys={tmp_path / 'keys.toml'}"
    with process(runs, settings, "budget.tokens=600") as (running, url):
        asking = threading.Thread(target=ask_killed, args=[url])
        asking.start()
        until(lambda: (runs / "serve-usage" / "started.jsonl").is_file())
        running.kill()
        asking.join()
    with served(runs, keys=str(tmp_path / "keys.toml")) as found:
        bob = found.service.keys.accounts["bob"]
        assert bob.tokens == 600
        assert bob.reserve(BUDGET).budget.tokens == 400

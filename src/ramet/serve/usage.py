"""What keys have used today, on disk: it outlives the process, also one that is killed.

`today.json` is replaced, and flushed to disk, when trees are stored. It has what was used, and what trees that ran at
that time had reserved. Trees that have started since then are lines in `started.jsonl`, which is only appended to: a
line survives the end of the process as soon as it is written. At the next start, reservations that were never settled
count as used. Numbers of lines go up, and `today.json` has the number of the last line that it contains.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramet.errors import StoreError
from ramet.serve.keys import Account, Keyring, Reservation
from ramet.store.atomic import write_text

LONGEST_BYTES = 2**20  # of the lines, before those that are in `today.json` are removed


class UsageFiles:
    """The usage of all keys of a server, in a folder that no other process writes to.

    Example:
        files = UsageFiles(folder, keys)
        files.started(reservation)
        files.save(files.snapshot())
        files.saved()
    """

    def __init__(self, folder: Path, keys: Keyring) -> None:
        self.today = folder / "today.json"
        self.lines = folder / "started.jsonl"
        self._accounts = keys.accounts
        self._number = 0  # of the last line
        self._unsaved: list[tuple[int, str]] = []  # lines that are not in `today.json`
        self._snapshot = 0  # number of the last line in the newest snapshot
        self._load()

    def started(self, reservation: Reservation) -> None:
        """Note what a tree may use, before it starts."""
        self._number += 1
        account = reservation.account
        facts = [self._number, account.name, account.day, reservation.tokens, reservation.cost]
        line = f"\n{json.dumps(facts)}"  # first the end of a line, as the last one may be incomplete
        self._unsaved.append((self._number, line))
        try:
            with self.lines.open("ab", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            raise StoreError(f"cannot write {self.lines}: {error.strerror}") from None

    def snapshot(self) -> str:
        """The text of `today.json` as it should be now."""
        self._snapshot = self._number
        facts = {account.name: _facts(account) for account in self._accounts.values()}
        return json.dumps({"number": self._number, "keys": facts}, indent=1)

    def save(self, snapshot: str) -> None:
        """Replace `today.json`."""
        try:
            write_text(self.today, snapshot)
        except OSError as error:
            raise StoreError(f"cannot write {self.today}: {error.strerror}") from None

    def saved(self) -> None:
        """Forget the lines that the newest snapshot has: it was saved."""
        self._unsaved = [(number, line) for number, line in self._unsaved if number > self._snapshot]
        with suppress(OSError):  # lines that stay do no harm; the next call tries again
            if self.lines.stat().st_size > LONGEST_BYTES:
                write_text(self.lines, "".join(line for _, line in self._unsaved))

    def _load(self) -> None:
        """Continue with what was used, and charge for trees that never ended."""
        try:
            stored: dict[str, Any] = json.loads(self.today.read_text(encoding="utf-8"))
            if "keys" not in stored:  # an older version had the keys only
                stored = {"number": 0, "keys": stored}
            self._number = int(stored["number"])
            for name, used in stored["keys"].items():
                if name in self._accounts:
                    _continue(self._accounts[name], used)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(f"cannot read {self.today}, what keys have used today: {error!r}") from None
        try:
            lines = self.lines.read_bytes().splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            raise StoreError(f"cannot read {self.lines}: {error.strerror}") from None
        for line in lines:
            self._charge(line)

    def _charge(self, line: bytes) -> None:
        """Charge for a tree whose end is not in `today.json`. A line that was cut by a power failure is left out."""
        try:
            number, name, day, tokens, cost = json.loads(line)
            if number <= self._number:
                return
            self._number = int(number)
            if name in self._accounts:
                self._accounts[name].charge(str(day), int(tokens), int(cost))
        except (ValueError, TypeError, RecursionError):
            return


def _facts(account: Account) -> dict[str, Any]:
    return {
        "day": account.day,
        "tokens": account.tokens,
        "cost": account.cost,
        "started_tokens": account.started_tokens,
        "started_cost": account.started_cost,
    }


def _continue(account: Account, used: dict[str, Any]) -> None:
    account.day = str(used["day"])
    account.tokens = int(used["tokens"]) + int(used.get("started_tokens", 0))
    account.cost = int(used["cost"]) + int(used.get("started_cost", 0))

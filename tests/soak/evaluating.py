"""Evaluations over HTTP under kills, full disks, faulty servers and a second writer."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from tests.engine.faulty import (
    CLOSED,
    HANG,
    RESET,
    Answer,
    FaultyServer,
    Received,
    breaks,
    chat,
    says,
    serve,
    stream,
    usage,
    whole,
)
from tests.soak.checks import check_evaluation
from tests.soak.processes import (
    Command,
    check_complaint,
    finish,
    kill_at_random,
    run_until_done,
    small_disk,
    unmounted_at_end,
)
from tests.soak.rounds import Place, Report

TASKS, METHODS = 10, ("single", "clones")
ITEMS = TASKS * len(METHODS)
RUN_S = 4.0  # about what an evaluation takes; kills come at random moments of it
TRIES = 12  # of a command against a server that fails on purpose
DELEGATE = json.dumps({"name": "delegate", "arguments": {"goals": ["Compute 1+2", "Compute 3+4"]}})
HALF = '{"choices": [{"delta": {"content": "Answer: \\ud83d"}}]}'
WAIT_S = 0.05  # before each answer, so that kills hit calls in flight

FAULTS: dict[str, Callable[[], Answer]] = {
    "429": lambda: whole("slow down", status=429, headers={"Retry-After": "0"}),
    "500": lambda: whole("oops", status=500),
    "reset": lambda: breaks(RESET),
    "closed": lambda: breaks(CLOSED),
    "broken stream": lambda: stream(chat("one"), chat(" two"), RESET),
    "no JSON": lambda: stream("{nope"),
    "wrong shape": lambda: stream({"choices": [{"delta": {"content": 7}}]}),
    "too many tokens": lambda: stream(*[chat(f" {i}") for i in range(900)], chat("", finish="stop"), usage(3)),
    "impossible usage": lambda: stream(chat("Answer: 3"), chat("", finish="stop"), usage(2**70, 2**70)),
    "half a character": lambda: stream(HALF, chat("", finish="stop")),
    "hang": lambda: stream(chat("one"), HANG),
}


def make_script(dice: random.Random, faults: float, seen: Counter[str]) -> Callable[[Received], Answer]:
    """Right and wrong answers, requests to delegate, and now and then a fault."""

    def script(request: Received) -> Answer:
        if dice.random() < faults:
            name = dice.choice(list(FAULTS))
            seen[f"server: {name}"] += 1
            return FAULTS[name]()
        text = dice.choice([f"<tool_call>{DELEGATE}</tool_call>", "Answer: 3", "Answer: 7", "I do not know"])
        answer = says(text)
        return Answer((WAIT_S, *answer.steps))

    return script


@contextmanager
def serving(script: Callable[[Received], Answer]) -> Generator[FaultyServer]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serve(script)) as server:
        yield server


def command(server: FaultyServer, folder: Path) -> Command:
    words = ["eval", "arithmetic:eval", f"--base-url={server.url}", "--model=m", f"--methods={','.join(METHODS)}"]
    settings = [
        "--budgets=300",
        "-n",
        str(TASKS),
        "--into=run",
        "budget.seconds=20",
        "engine.stall_s=3",
        "engine.tries=3",
    ]
    return Command(words=[*words, *settings], folder=folder)


def eval_killed(place: Place) -> Report:
    """Kill an evaluation several times."""
    report = Report()
    with serving(make_script(place.dice, 0.0, report.done)) as server:
        evaluation = command(server, place.folder)
        kill_at_random(evaluation, report, [place.dice.uniform(0, RUN_S) for _ in range(place.dice.randint(1, 4))])
        run_until_done(evaluation, report)
        check_evaluation(report, place.folder / "run", items=ITEMS)
    return report


def eval_faulty_server(place: Place) -> Report:
    """A server that fails in many ways, and whose clients are killed now and then."""
    report = Report()
    faults = place.dice.choice([0.05, 0.2, 0.4])
    with serving(make_script(place.dice, faults, report.done)) as server:
        evaluation = command(server, place.folder)
        for _ in range(TRIES):
            kill = place.dice.random() < 0.3
            ended = evaluation.run_and_kill(place.dice.uniform(0, 2 * RUN_S)) if kill else evaluation.run()
            if ended.code == 0:
                break
            how = "kill -9" if ended.code < 0 else "items failed" if ended.code == 1 else "ended with an engine error"
            report.done[how] += 1
            if ended.code > 0:
                check_complaint(report, ended)
        server.script = make_script(place.dice, 0.0, report.done)
        run_until_done(evaluation, report)
        check_evaluation(report, place.folder / "run", items=ITEMS, event=1)  # its events have a word each
    return report


def eval_full_disk(place: Place) -> Report:
    """Evaluate on a disk that is too small, then on the same disk with room."""
    report = Report()
    disk = place.folder / "disk"
    with unmounted_at_end(disk), serving(make_script(place.dice, 0.0, report.done)) as server:
        with small_disk(disk, place.dice.choice([4, 8, 16, 32, 64, 128]), report) as on_disk:
            ended = on_disk(command(server, disk)).run()
            if ended.code:
                check_complaint(report, ended)
            else:
                report.done["the disk was large enough"] += 1
        run_until_done(command(server, disk), report)
        check_evaluation(report, disk / "run", items=ITEMS)
    return report


def eval_two_writers(place: Place) -> Report:
    """The same evaluation from several processes at once: one does it, the others are refused or find it done."""
    report = Report()
    with serving(make_script(place.dice, 0.0, report.done)) as server:
        processes: list[subprocess.Popen[str]] = []
        for _ in range(3):
            processes.append(command(server, place.folder).start())
            time.sleep(place.dice.uniform(0.0, 0.5))
        for ended in [finish(process) for process in processes]:
            if ended.code:
                check_complaint(report, ended)
                refused = "another process is writing" in ended.errors
                report.done["second writer refused" if refused else "ended with an engine error"] += 1
        run_until_done(command(server, place.folder), report)
        check_evaluation(report, place.folder / "run", items=ITEMS)
    return report

"""Run the commands of an experiment, several at a time; the same command again goes on where the last one stopped.

    python experiments/run.py experiments/arithmetic.toml --into runs/arithmetic --lanes 4
    python experiments/run.py experiments/arithmetic.toml --list             # only print the commands
    python experiments/run.py experiments/arithmetic.toml --rehearse         # all of it, tiny, on a CPU
    python experiments/run.py experiments/craft.toml experiments/aggregate.toml --lanes 6 --minutes 55

An experiment is a TOML file with jobs. Each runs one `ramet` command in a run directory of its own, INTO/NAME. A job
that names another one in braces gets its run directory and waits for it:

    [[job]]
    name = "clones-{seed}"
    each = {seed = [1, 2]}
    run = "ramet train arithmetic-135m model={start} warm.steps=0 seed={seed}"

A job with `alone = true`, whose seconds count, runs when no other one does, after all others. Files with the same
`group` share a folder, and what both have is run once.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = re.compile(r"\{([\w-]+)\}")
MOST_LEVELS = 20  # of words that name other words
STOP_S = 40.0  # a run that is interrupted saves its last step within this time
SHOW_S = 60.0  # between two lines about the jobs under way
TRIES = 2
KEPT = ("config.toml", "meta.json", "metrics.jsonl", "records.parquet", "*.log", "*.json", "report/*")
LAST_TREES = 2  # steps of a training whose trees are packed
TINY = {  # what a rehearsal changes
    "train": "steps=1 tasks_per_step=4 group_size=2 eval.every=0",
    "warm": "warm.steps=1 warm.trees_per_step=8 warm.workers=0",
    "eval": "-n 1 concurrency=8",
    "bench": "--model random-tiny",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command; `needs` are the jobs whose run directories it names. `alone`: it runs when no other job does."""

    name: str
    command: tuple[str, ...]
    folder: Path
    needs: frozenset[str]
    alone: bool = False

    @property
    def key(self) -> Path:
        """Its name among the jobs of several files."""
        return self.folder.parent / self.name

    @property
    def names(self) -> set[str]:
        """What `--only` may call it: its name, or GROUP/NAME where several files have a job of that name."""
        return {self.name, f"{self.folder.parent.name}/{self.name}"}

    @property
    def done(self) -> Path:
        return self.folder.parent / f"{self.name}.done"

    @property
    def waits_for(self) -> list[str]:
        """The jobs that it needs and that are not done."""
        return sorted(name for name in self.needs if not (self.folder.parent / f"{name}.done").exists())

    @property
    def log(self) -> Path:
        return self.folder.parent / f"{self.name}.log"

    def start(self) -> subprocess.Popen[bytes]:
        """Run the command, or resume the training that it began."""
        begun = self.command[0] == "train" and (self.folder / "config.toml").exists()
        words = ("train", "--resume", str(self.folder)) if begun else self.command
        with self.log.open("ab") as log:
            log.write(f"$ ramet {shlex.join(words)}\n".encode())
            log.flush()
            # A group of its own: Ctrl-C reaches it once, from here.
            return subprocess.Popen([sys.executable, "-m", "ramet", *words], stdout=log, stderr=log, process_group=0)


def read_table(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SystemExit(f"{file}: {error}") from None


def read_experiment(file: Path, *, into: Path, values: Mapping[str, str], tiny: bool = False) -> list[Job]:
    """The jobs of a file, in its order. `values` are what `{data}` and the like stand for."""
    table = read_table(file)
    for row in table.get("job", [{}]):
        if not all(isinstance(row.get(field), str) for field in ("name", "run")):
            raise SystemExit(f"{file}: every [[job]] has a name and a run, both texts")
    rows = [(row, {**values, **chosen}) for row in table["job"] for chosen in _choices(row)]
    words = {key: str(value) for key, value in table.get("words", {}).items()}
    named = [(fill(row["name"], chosen), row, chosen) for row, chosen in rows]
    folders = {name: into / (name + ("-single" if "--single" in row["run"].split() else "")) for name, row, _ in named}
    if len(folders) < len(named):
        raise SystemExit(f"{file}: two jobs have the same name: {', '.join(name for name, _, _ in named)}")
    if twice := words.keys() & folders.keys():
        raise SystemExit(f"{file}: {min(twice)} is both a word and a job")
    return [_job(name, row, {**words, **chosen}, folders, tiny=tiny) for name, row, chosen in named]


def _choices(row: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    each: Mapping[str, Sequence[Any]] = row.get("each", {})
    for chosen in itertools.product(*each.values()):
        yield dict(zip(each, map(str, chosen), strict=True))


def fill(text: str, values: Mapping[str, str], *, used: set[str] | None = None) -> str:
    """The text with a value for every name in braces, innermost first; names without a value stay.

    Example:
        fill("eval {clones-{seed}}", {"seed": "2", "clones-2": "runs/clones-2"})  # "eval runs/clones-2"
    """

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        if used is not None:
            used.add(name)
        return values.get(name, found.group(0))

    for _ in range(MOST_LEVELS):
        before, text = text, NAME.sub(value, text)
        if text == before:
            return text
    raise SystemExit(f"words name each other in a circle: {text[:80]}")


def _job(
    name: str, row: Mapping[str, Any], words: Mapping[str, str], folders: Mapping[str, Path], *, tiny: bool
) -> Job:
    used: set[str] = set()
    text = fill(row["run"], {**words, **{job: str(folder) for job, folder in folders.items()}}, used=used)
    if missing := NAME.findall(text):
        raise SystemExit(f"{name}: {{{missing[0]}}} is neither a job nor a word; jobs: {', '.join(folders)}")
    try:
        program, kind, *rest = shlex.split(text)
    except ValueError:  # an open quotation mark, or fewer than two words
        program, kind, rest = text, "", []
    if program != "ramet" or kind not in WHERE:
        raise SystemExit(f"{name}: a command begins with ramet and one of {', '.join(WHERE)}; got {text!r}")
    if tiny:
        only_start = kind == "train" and "steps=0" in rest
        rest += [word for word in TINY.get(kind, "").split() if not (only_start and word == "steps=1")]
        rest += TINY["warm"].split() if kind == "train" and "warm.steps=0" not in rest else []
    where = [fill(word, {"into": str(folders[name].parent), "name": name}) for word in WHERE[kind]]
    needs = frozenset(used & folders.keys())
    return Job(
        name=name, command=(kind, *rest, *where), folder=folders[name], needs=needs, alone=row.get("alone", False)
    )


def merged(jobs: Sequence[Job]) -> list[Job]:
    """The jobs without those that another file of the same group has too."""
    found: dict[Path, Job] = {}
    for job in jobs:
        if found.setdefault(job.key, job) != job:
            raise SystemExit(f"two different jobs are called {job.key}")
    return list(found.values())


def choose(jobs: Sequence[Job], wanted: Sequence[str]) -> list[Job]:
    """The jobs of these names, and those that they need; all jobs if no name is given."""
    by_key = {job.key: job for job in jobs}
    chosen: set[Path] = set()
    more = [job for job in jobs if job.names & set(wanted) or not wanted]
    while more:
        chosen |= {job.key for job in more}
        needed = {job.folder.parent / name for job in more for name in job.needs}
        more = [by_key[key] for key in needed - chosen]
    return [job for job in jobs if job.key in chosen]


WHERE = {  # how each command is given the place of its results
    "train": ("--runs", "{into}", "name={name}"),
    "eval": ("--into", "{into}/{name}"),
    "report": ("--into", "{into}/{name}"),
    "bench": ("--json", "{into}/{name}.json"),
}


class Lanes:
    """Jobs under way, at most `lanes` at a time, until `deadline`; then each has `stop_s` seconds to save."""

    def __init__(self, jobs: Sequence[Job], *, lanes: int, deadline: float, stop_s: float = STOP_S) -> None:
        self.jobs = jobs
        self.lanes = lanes
        self.deadline = deadline
        self.stop_s = stop_s
        self.began = time.monotonic()
        self.running: dict[Path, subprocess.Popen[bytes]] = {}
        self.tries: dict[Path, int] = {}
        self.beside: dict[Path, set[Path]] = {}  # what ran when a job failed: with less beside it, memory may suffice
        self.shown = self.began

    def run(self) -> int:
        """0 if all jobs are done, 1 if one failed, 3 if time ran out first."""
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # in the background of a script; jobs would inherit it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            while time.monotonic() < self.deadline:
                self._start()
                if not self.running:
                    break
                time.sleep(0.5)
                self._end()
                self._show()
        except KeyboardInterrupt:
            self._print("interrupted")
        finally:
            self._stop()
        open_jobs = [job for job in self.jobs if not job.done.exists()]
        failed = [job for job in open_jobs if self.tries.get(job.key, 0) >= TRIES]
        for job in open_jobs:
            if job.waits_for:
                self._print(f"not started: {job.name} waits for {', '.join(job.waits_for)}")
        self._print(f"{len(self.jobs) - len(open_jobs)} of {len(self.jobs)} jobs done")
        return 0 if not open_jobs else 1 if failed else 3

    def _start(self) -> None:
        ready = [job for job in self.jobs if self._is_ready(job)]
        together = [job for job in ready if not job.alone]
        busy = any(job.alone for job in self.jobs if job.key in self.running)
        room = 0 if busy else self.lanes - len(self.running)
        for job in together[:room] or ([] if self.running else ready[:1]):
            self._print(f"start {job.name}")
            self.running[job.key] = job.start()

    def _is_ready(self, job: Job) -> bool:
        over = job.done.exists() or job.key in self.running or self.tries.get(job.key, 0) >= TRIES
        crowded = self.beside.get(job.key)
        return not over and not job.waits_for and not (crowded and crowded <= self.running.keys())

    def _end(self) -> None:
        for job in self.jobs:
            process = self.running.get(job.key)
            if process is None or process.poll() is None:
                continue
            del self.running[job.key]
            if process.returncode == 0:
                job.done.touch()
                self._print(f"done  {job.name}")
            else:
                self.tries[job.key] = self.tries.get(job.key, 0) + 1
                self.beside[job.key] = set(self.running)
                self._print(f"failed {job.name} (exit code {process.returncode}): {_last_line(job.log)}")

    def _show(self) -> None:
        if time.monotonic() - self.shown < SHOW_S:
            return
        self.shown = time.monotonic()
        for job in self.jobs:
            if job.key in self.running:
                self._print(f"      {job.name}: {_last_line(job.log)}")

    def _stop(self) -> None:
        """Interrupt what is under way: trainings save, evaluations have stored every finished item."""
        for process in self.running.values():
            process.send_signal(signal.SIGINT)
        end = time.monotonic() + self.stop_s
        for key, process in self.running.items():
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._print(f"stopped {key.name}")

    def _print(self, text: str) -> None:
        print(f"{(time.monotonic() - self.began) / 60:5.1f} min  {text}", flush=True)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-1][:160] if lines else ""


def pack(jobs: Sequence[Job], file: Path, *, levels: int = 0) -> None:
    """A tar of what is worth keeping: settings, metrics, records, logs, reports, and the last trees of trainings.

    Names begin with the folder of the job, or with `levels` folders above it.
    """
    with tarfile.open(file, "w:gz") as tar:
        for job in jobs:
            for path in [job.log, *_worth_keeping(job.folder)]:
                if path.is_file():
                    tar.add(path, arcname=str(path.relative_to(job.folder.parents[levels])))
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB", flush=True)


def _worth_keeping(folder: Path) -> Iterator[Path]:
    for part in (folder, folder / "warm"):
        for pattern in KEPT:
            yield from sorted(part.glob(pattern))
    steps = sorted((folder / "trees").glob("step-*.parquet"))
    yield from steps[-LAST_TREES:]
    yield from (path for path in sorted((folder / "trees").glob("*.parquet")) if not path.name.startswith("step-"))


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("experiment", type=Path, nargs="+", help="TOML files with jobs")
    parser.add_argument(
        "--into", type=Path, help="folder for all run directories (default: runs/GROUP); of several files, INTO/GROUP"
    )
    parser.add_argument("--lanes", type=int, default=1, help="jobs at the same time (default: 1)")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="interrupt what is under way after this time"
    )
    parser.add_argument(
        "--only", default="", help="jobs to run and those they need: NAME or GROUP/NAME, with a comma between them"
    )
    parser.add_argument("--data", default="", help="folder with task files, for experiments that read them")
    parser.add_argument("--rehearse", action="store_true", help="one step, a few tasks, a tiny random model")
    parser.add_argument("--list", action="store_true", help="only print the commands")
    parser.add_argument("--pack", type=Path, help="then write metrics, records, logs and last trees to this .tar.gz")
    options = parser.parse_args(words)
    if options.lanes < 1:
        parser.error(f"--lanes is a whole number from 1 up; got {options.lanes}")
    several = len(options.experiment) > 1
    values = {"data": options.data, "model": "smollm2"}
    jobs: list[Job] = []
    for file in options.experiment:
        group = read_table(file).get("group", file.stem)
        default = Path("runs") / (group + ("-rehearsal" if options.rehearse else ""))
        into = default if options.into is None else options.into / group if several else options.into
        if options.rehearse:
            values["model"] = str(tiny_model(into / "tiny"))
        jobs += read_experiment(file, into=into, values=values, tiny=options.rehearse)
    jobs = merged(jobs)
    wanted = [name for name in options.only.split(",") if name]
    if unknown := set(wanted).difference(*(job.names for job in jobs)):
        parser.error(f"--only: no job {min(unknown)}; jobs: {', '.join(job.name for job in jobs)}")
    jobs = choose(jobs, wanted)
    if options.list:
        for job in jobs:
            print(f"ramet {shlex.join(job.command)}")
        return 0
    for job in jobs:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.minutes * 60 - STOP_S
    code = Lanes(jobs, lanes=options.lanes, deadline=deadline).run()
    if options.pack:
        pack(jobs, options.pack, levels=int(several))
    return code


def tiny_model(folder: Path) -> Path:
    """A random model with the tokenizer of SmolLM2: it cannot act, but every command runs to its end."""
    if (folder / "config.json").exists():
        return folder
    from transformers import AutoConfig, AutoModelForCausalLM

    from ramet.models.folders import model_folder
    from ramet.models.packages import quiet_transformers

    source = model_folder("smollm2")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    with quiet_transformers():
        config = AutoConfig.from_pretrained(source, **sizes, **heads)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    return folder


if __name__ == "__main__":
    sys.exit(main())

"""`ramet run --questions FILE`: a tree for each question of a file, several at a time, answers as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from ramet.agent.task_groups import task_group
from ramet.agent.tree import TreeRun
from ramet.draw import one_line
from ramet.engine.open import OpenedEngine, clone_config, closing, open_clone_engine, open_engine
from ramet.engine.retrying import FailuresInARow
from ramet.errors import ConfigError, EngineError
from ramet.inputs.open import open_world
from ramet.inputs.settings import RunConfig
from ramet.inputs.texts import read_texts
from ramet.inputs.world import InputWorld, join_worlds
from ramet.interfaces import World
from ramet.store.lock import exclusive_lock
from ramet.tasks.question import resolve_run
from ramet.tasks.questions import AnswerFile, Asked, plan_asked, read_questions
from ramet.terminal.console import out, print_json, warn
from ramet.terminal.trees import check_engines, tree_options

WIDTH = 60  # characters of a question and of its answer in a line
LONGEST = 400  # characters of an error in a line


def run_questions(file: str, source: Mapping[str, Any], *, api_key: str | None, runs: Path, as_json: bool) -> bool:
    """Answer the questions that have no answer yet; whether all of them have one now.

    The budget is that of each question. Interrupted, the same command goes on where it stopped.
    """
    asked = read_questions(file, stdin=sys.stdin.buffer)
    flags = {**source["flags"], "question": asked[0].question}
    plan = resolve_run(file=source["file"], words=source["words"], flags=flags)
    config = replace(plan.config, question="")
    texts = read_texts(config.context, limit=config.context_bytes)
    plan_asked(config, asked[0], texts=texts)
    clone_config(config.engine, config.clone)  # a bad setting fails before a model is loaded
    engine = open_engine(config.engine, api_key=api_key)
    clones = open_clone_engine(config.engine, config.clone, api_key=api_key)
    batch = Batch(file, config, asked, texts=texts, runs=runs, as_json=as_json, names_dialect=plan.names_dialect)
    try:
        anyio.run(batch.run, engine, clones)
    except KeyboardInterrupt:
        if batch.answers is not None:
            warn(_resuming(batch.answers))
        raise
    return batch.print_end()


def _resuming(answers: AnswerFile) -> str:
    return f"finished answers are kept in {answers.path}: run the same command again to resume"


class Batch:
    """The questions of one command."""

    def __init__(
        self,
        file: str,
        config: RunConfig,
        asked: Sequence[Asked],
        *,
        texts: Mapping[str, str],
        runs: Path,
        as_json: bool,
        names_dialect: bool,
    ) -> None:
        self.names_dialect = names_dialect
        self.config, self.asked, self.texts = config, asked, texts
        self.file, self.runs, self.as_json = file, runs, as_json
        self.failures = FailuresInARow()
        self.answers: AnswerFile | None = None
        self.clones: OpenedEngine | None = None

    async def run(self, engine: OpenedEngine, clones: OpenedEngine | None) -> None:
        async with closing(engine, clones), open_world(self.config, {}, None) as tools:
            config = await check_engines(
                self.config, engine, clones, explain=self.names_dialect
            )  # before a run directory is created
            answers = self.answers = AnswerFile.open(self.file, self.config, runs=self.runs)
            self.config, self.clones = config, clones
            with exclusive_lock(answers.run.path):
                try:
                    await self._run_missing(engine, tools, answers)
                except EngineError as error:
                    raise EngineError(f"{error} · {_resuming(answers)}") from error

    async def _run_missing(self, engine: OpenedEngine, tools: World | None, answers: AnswerFile) -> None:
        missing = answers.missing(self.asked)
        self.done = len(self.asked) - len(missing)
        if self.done and not self.as_json:
            out.print(f"{self.done:,} of {len(self.asked):,} questions were done before", style="dim")
        slots = anyio.Semaphore(self.config.concurrency)
        async with task_group() as group:

            async def answer(asked: Asked) -> None:
                try:
                    await self._answer(asked, engine, tools, answers)
                    self.failures.succeeded()
                except EngineError as error:
                    self._record(answers.add(asked, error.tree, error=str(error)))
                    if self.failures.failed(error):
                        raise EngineError(f"question {asked.id}: {error}") from error
                finally:
                    slots.release()

            for asked in missing:
                await slots.acquire()
                group.start_soon(answer, asked)

    async def _answer(self, asked: Asked, engine: OpenedEngine, tools: World | None, answers: AnswerFile) -> None:
        """Run one tree. A question that cannot be run at all is recorded with the reason."""
        try:
            plan = plan_asked(self.config, asked, texts=self.texts)
            world = plan.world
            if tools is not None:
                own = world or InputWorld(plan.task.context, {})
                world = join_worlds({"the question": own, "an MCP server": tools})
            tree = await TreeRun(plan.task, tree_options(plan, engine, world, self.clones)).run()
            facts = answers.add(asked, tree)
        except ConfigError as error:
            facts = answers.add(asked, None, error=str(error))
        self._record(facts)

    def _record(self, facts: Mapping[str, Any]) -> None:
        self.done += 1
        if self.as_json:
            return print_json(facts, indent=None)
        result = facts["answer"]
        if "error" in facts:
            result = f"question {facts['id']} failed: {facts['error']}"
        elif result is None:
            result = f"no answer: {facts.get('stop')}"
        place, width = f"{self.done:,} of {len(self.asked):,}", LONGEST if "error" in facts else WIDTH
        return out.print(f"{place}  {one_line(facts['question'], WIDTH)}  →  {one_line(str(result), width)}")

    def print_end(self) -> bool:
        """Print where the answers are; whether every question has one."""
        if self.answers is None:
            return False
        wanted = {(one.id, one.digest) for one in self.asked}
        rows = [row for row in self.answers.answers() if (row.get("id"), row.get("digest")) in wanted]
        without = sum(row.get("answer") is None for row in rows)
        failed = sum("error" in row for row in rows)
        notes = [f", {without - failed:,} without an answer"] if without > failed else []
        notes += [f", {failed:,} failed (the same command tries them again)"] if failed else []
        line = f"{len(rows):,} of {len(self.asked):,} questions{''.join(notes)}: {self.answers.path}"
        if not self.as_json:
            out.print(line, style="dim")
        elif failed:
            warn(line)
        return not without and len(rows) == len(self.asked)

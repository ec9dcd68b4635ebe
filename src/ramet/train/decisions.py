"""Decisions taken the other way: an optional stage between collecting and credit.

Which decisions are replayed, and their seeds, follow from the run's seed and the step, so a resumed run replays the
same. The forked trees are stored beside those of the step, in files and with ids that begin with `replay-`. They are
not trained on: only their outcomes are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramet.agent.options import TreeOptions
from ramet.agent.recording import ForkPoint, Recording
from ramet.agent.task_groups import task_group
from ramet.credit.average import mean
from ramet.credit.counterfactual import Counterfactual, Decision
from ramet.credit.records import TurnKey
from ramet.errors import ForkError
from ramet.interfaces import Rule, Taskset
from ramet.store import RunDir
from ramet.tasks.dice import seed_of
from ramet.tasks.play import play_fork
from ramet.train.step import Lesson, credited_rows
from ramet.types import Tree

REPLAY = "replay-"  # begins the ids of forked trees


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One replay of a decision."""

    decision: Decision
    number: int
    seed: int
    most: int  # tokens it can generate; not computed where they are not limited

    @property
    def id(self) -> str:
        tree, node, turn = self.decision.key
        return f"{REPLAY}{tree}-{node}-{turn}-{self.number}"

    @property
    def point(self) -> ForkPoint:
        decision = self.decision
        return ForkPoint(
            node=decision.node,
            turn=decision.turn,
            without_delegation=decision.clone is None,
            without_clone=decision.clone,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of a job: its forked tree, None if the tree could not be forked there, and the tokens it generated."""

    job: Job
    tree: Tree | None
    tokens: int = 0


class DecisionReplays:
    """Replays decisions of the collected trees, and credits the trees with what came of it."""

    def __init__(
        self, settings: Counterfactual, taskset: Taskset, options: TreeOptions, run: RunDir, *, seed: int
    ) -> None:
        self.settings = settings
        self.taskset = taskset
        self.options = options
        self.run = run
        self.seed = seed
        self._replays: dict[str, list[Replay]] = {}  # by tree: steps may be collected ahead
        self._dropped: dict[str, int] = {}

    async def replay(self, trees: Sequence[Tree], *, step: int) -> None:
        """Replay a share of the decisions in these trees and store the forked trees."""
        jobs = self._jobs(trees, step)
        done = await self._run_within(jobs)
        for replay in done:
            self._replays.setdefault(replay.job.decision.tree.id, []).append(replay)
        for job in jobs[len(done) :]:
            self._dropped[job.decision.tree.id] = self._dropped.get(job.decision.tree.id, 0) + 1
        forked = [replay.tree for replay in done if replay.tree is not None]
        if forked:
            self.run.write(forked, name=f"{REPLAY}{step:06d}")

    def lesson(
        self, trees: Sequence[Tree], *, rule: Rule, num_groups: int | None = None, keep_flat: bool = False
    ) -> Lesson:
        """Credit these trees with the outcomes of their replays; see `credited_rows`."""
        replays = [replay for tree in trees for replay in self._replays.pop(tree.id, [])]
        dropped = sum(self._dropped.pop(tree.id, 0) for tree in trees)
        outcomes: dict[TurnKey, list[float]] = {}
        for replay in replays:
            if replay.tree is not None:
                outcomes.setdefault(replay.job.decision.key, []).append(self.settings.outcome(replay.tree))
        rule = self.settings.with_outcomes(rule, outcomes)
        lesson = credited_rows(trees, rule, num_groups=num_groups, keep_flat=keep_flat)
        by_id = {tree.id: tree for tree in trees}
        differences = [self.settings.outcome(by_id[key[0]]) - mean(others) for key, others in outcomes.items()]
        metrics = {
            "replays": sum(replay.tree is not None for replay in replays),
            "replay_tokens": sum(replay.tokens for replay in replays),
            "replays_refused": sum(replay.tree is None for replay in replays),
            "replays_dropped": dropped,
            "replay_difference": mean(differences) if differences else None,
        }
        return replace(lesson, metrics=lesson.metrics | metrics)

    def _jobs(self, trees: Sequence[Tree], step: int) -> list[Job]:
        """All replays of a step, one of each decision first, so that a limit on tokens spares repetitions."""
        decisions = self.settings.decisions(trees, seed=seed_of(self.seed, "decisions", step))
        return [
            Job(
                decision=decision,
                number=number,
                seed=seed_of(self.seed, "replay", *decision.key, number),
                most=0 if self.settings.max_tokens is None else _most_tokens(decision),
            )
            for number in range(self.settings.replays)
            for decision in decisions
        ]

    async def _run_within(self, jobs: Sequence[Job]) -> list[Replay]:
        """Run jobs in their order, as many at a time as `max_tokens` surely allows. The rest is dropped.

        A round ends before the next begins, so which jobs run does not depend on timing.
        """
        left = self.settings.max_tokens
        done: list[Replay] = []
        while len(done) < len(jobs):
            batch: list[Job] = []
            for job in jobs[len(done) :]:
                if left is not None and sum(other.most for other in batch) + job.most > left:
                    break
                batch.append(job)
            if not batch:
                break
            replays = await self._run_all(batch)
            left = None if left is None else left - sum(replay.tokens for replay in replays)
            done += replays
        return done

    async def _run_all(self, jobs: Sequence[Job]) -> list[Replay]:
        """Run jobs in parallel; the replays come back in the order of the jobs."""
        replays: list[Replay | None] = [None] * len(jobs)

        async def run_one(place: int) -> None:
            replays[place] = await self._run_one(jobs[place])

        async with task_group() as group:
            for place in range(len(jobs)):
                group.start_soon(run_one, place)
        return [replay for replay in replays if replay is not None]

    async def _run_one(self, job: Job) -> Replay:
        try:
            run = await play_fork(self.taskset, job.decision.tree, job.point, replace(self.options, seed=job.seed))
        except ForkError:
            return Replay(job=job, tree=None)
        run.tree.id = job.id
        return Replay(job=job, tree=run.tree, tokens=run.tokens)


def _most_tokens(decision: Decision) -> int:
    """The most tokens a replay can generate: what the budget had left at the decision."""
    tree = decision.tree
    recording = Recording(tree, ForkPoint(node=decision.node, turn=decision.turn, without_clone=decision.clone))
    return tree.budget.tokens - recording.tokens

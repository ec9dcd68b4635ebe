"""The judge of a training run: a server, a model in this process, or the policy itself at its current weights."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

from ramet.engine.http import HttpEngine
from ramet.engine.open import OpenedEngine, closing, judge_config, judge_key, open_engine
from ramet.engine.settings import POLICY, EngineConfig
from ramet.tasks.judge import Judge, open_judge
from ramet.train.backend import Backend
from ramet.train.settings import TrainConfig

FAILED_ROOT = 0.0  # the score of a root that needs a judge and got no verdict: a run does not end for it


def judge_engine_config(config: TrainConfig) -> EngineConfig | None:
    """The engine settings of the judge, checked; None without a judge, and if the policy is the judge."""
    if config.judge.model == POLICY:
        return None
    sampler = config.sampler
    policy = EngineConfig(kind="local", model=config.model, device=sampler.device, dtype=sampler.dtype)
    return judge_config(policy, config.judge)


def training_judge(
    config: TrainConfig, backend: Backend, run: Path
) -> tuple[Judge | None, AbstractAsyncContextManager[object]]:
    """The judge, and a context for the time of the run that checks its server first and closes it at the end.

    The verdicts of a policy on itself are kept in memory only: they hold for one version of the weights, and in a
    resumed run calls that are answered from a file would leave gaps in the batches of the engine.
    """
    if config.judge.model == POLICY:
        judge = open_judge(
            backend.engine, config.judge, model=lambda: f"{POLICY}@{backend.version}", failed_root=FAILED_ROOT
        )
        return judge, nullcontext()
    engine_config = judge_engine_config(config)
    if engine_config is None:
        return None, nullcontext()
    engine = open_engine(engine_config, api_key=judge_key())
    return open_judge(engine, config.judge, run=run, failed_root=FAILED_ROOT), _checked(engine)


@asynccontextmanager
async def _checked(engine: OpenedEngine) -> AsyncGenerator[None]:
    async with closing(engine):
        if isinstance(engine, HttpEngine):
            await engine.check()
        yield

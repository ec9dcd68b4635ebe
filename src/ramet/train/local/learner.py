"""What learns: a policy, its optimiser, and the state of both."""

# pyright: standard

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ramet.errors import TrainError
from ramet.train.local.policy import Policy
from ramet.train.settings import UpdateConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(slots=True, kw_only=True)
class Learner:
    """A policy, what its weights are before rounding, and how far it has come.

    Steps of a low rate are smaller than what bfloat16 can tell apart, and so is the gradient of one micro-batch beside
    the sum of many. So weights of less than single precision have a `master` each, which holds the sum, is updated and
    then rounded. Others are their own masters.
    """

    policy: Policy
    names: tuple[str, ...]  # of the trained parameters
    masters: tuple[Tensor, ...]
    adam: torch.optim.AdamW
    clip: float
    done: int = 0  # steps, those that taught nothing included
    whole: bool = True  # False in the middle of a step: weights of now and of before


def make_learner(policy: Policy, config: UpdateConfig) -> Learner:
    trained = {name: one for name, one in policy.model.named_parameters() if one.requires_grad}
    masters = tuple(_master(one) for one in trained.values())
    for parameter, master in zip(trained.values(), masters, strict=True):
        if parameter is not master:
            parameter.register_post_accumulate_grad_hook(partial(_hand_over, master=master))
    adam = torch.optim.AdamW(
        masters, lr=config.learning_rate, betas=config.betas, weight_decay=config.weight_decay, foreach=None, fused=False
    )
    return Learner(policy=policy, names=tuple(trained), masters=masters, adam=adam, clip=config.max_grad_norm)


def _master(parameter: Tensor) -> Tensor:
    return parameter if _exact(parameter) else parameter.detach().float().requires_grad_()


def _hand_over(parameter: Tensor, *, master: Tensor) -> None:
    """Add the gradient of a micro-batch to the sum in single precision."""
    if parameter.grad is not None:
        fresh = parameter.grad.float()
        master.grad = fresh if master.grad is None else master.grad.add_(fresh)
        parameter.grad = None


def _exact(parameter: Tensor) -> bool:
    return parameter.dtype in (torch.float32, torch.float64)


def shorten(learner: Learner) -> float:
    """Cut the gradient to the longest allowed; returns how long it was. One that is not finite is refused."""
    norm = float(clip_grad_norm_(learner.masters, learner.clip))
    if not torch.isfinite(torch.tensor(norm)):
        forget(learner)
        raise TrainError(f"the gradient's norm is {norm}: nothing was changed")
    return norm


def step(learner: Learner, *, rate: float) -> None:
    """One step of AdamW with the gradient there is, which is forgotten afterwards."""
    for group in learner.adam.param_groups:
        group["lr"] = rate
    learner.whole = False
    learner.adam.step()
    _round(learner)
    learner.done += 1
    learner.whole = True
    forget(learner)


def forget(learner: Learner) -> None:
    """Drop the gradient."""
    for parameter, master in zip(learner.policy.trained, learner.masters, strict=True):
        parameter.grad = master.grad = None


def _round(learner: Learner) -> None:
    with torch.no_grad():
        for parameter, master in zip(learner.policy.trained, learner.masters, strict=True):
            if parameter is not master:
                parameter.copy_(master)


def state_of(learner: Learner) -> dict[str, Tensor]:
    """Everything an exact continuation needs, by name: weights, both moments, and how many steps they have seen."""
    state: dict[str, Tensor] = {}
    for name, master in zip(learner.names, learner.masters, strict=True):
        state[f"weight.{name}"] = master.detach().cpu().clone()
        known = learner.adam.state.get(master)
        if known:
            state |= {f"{moment}.{name}": known[moment].cpu().clone() for moment in MOMENTS}
            state[f"step.{name}"] = known["step"].cpu().clone()
    return state


def put_back(learner: Learner, state: Mapping[str, Tensor]) -> None:
    """Make the learner what it was. Whoever samples from its weights has to be told."""
    missing = [name for name in learner.names if f"weight.{name}" not in state]
    if missing:
        raise TrainError(f"this state is of another model: it holds no weights for {missing[0]}")
    with torch.no_grad():
        for name, master in zip(learner.names, learner.masters, strict=True):
            master.copy_(state[f"weight.{name}"])
            if f"step.{name}" in state:
                moments = {moment: state[f"{moment}.{name}"].to(master) for moment in MOMENTS}
                learner.adam.state[master] = {"step": state[f"step.{name}"], **moments}
    _round(learner)

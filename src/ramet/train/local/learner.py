"""The learner: a policy, its optimiser, and the state of both."""

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
    """A policy, its weights before rounding, and its optimiser.

    Updates at a low learning rate are smaller than bfloat16 resolves, and so is the gradient of one micro-batch beside
    the sum of many. So every weight of less than single precision has a float32 `master`, which accumulates gradients,
    is updated and then rounded. Other weights are their own masters.
    """

    policy: Policy
    names: tuple[str, ...]  # of the trained parameters
    masters: tuple[Tensor, ...]
    adam: torch.optim.AdamW
    max_grad_norm: float
    consistent: bool = True  # False in the middle of a step, when some weights are new and some old


def make_learner(policy: Policy, config: UpdateConfig) -> Learner:
    trained = {name: one for name, one in policy.model.named_parameters() if one.requires_grad}
    masters = tuple(_master(one) for one in trained.values())
    for parameter, master in zip(trained.values(), masters, strict=True):
        if parameter is not master and config.add_gradients == "during":
            parameter.register_post_accumulate_grad_hook(partial(_accumulate, master=master))
    adam = torch.optim.AdamW(
        masters,
        lr=config.learning_rate,
        betas=config.betas,
        weight_decay=config.weight_decay,
        foreach=False,  # one weight after the other: all at once need memory for copies of all of them
    )
    return Learner(policy=policy, names=tuple(trained), masters=masters, adam=adam, max_grad_norm=config.max_grad_norm)


def missing_bytes(learner: Learner) -> int:
    """The memory that gradients and moments take from the first step on."""
    return sum((1 + len(MOMENTS)) * one.numel() * one.element_size() for one in learner.masters)


def _master(parameter: Tensor) -> Tensor:
    return parameter if _exact(parameter) else parameter.detach().float().requires_grad_()


def _accumulate(parameter: Tensor, *, master: Tensor) -> None:
    """Add the gradient of a micro-batch to the float32 sum."""
    if parameter.grad is not None:
        fresh = parameter.grad.float()
        master.grad = fresh if master.grad is None else master.grad.add_(fresh)
        parameter.grad = None


def add_gradients(learner: Learner) -> None:
    """Add the gradients of a micro-batch to the float32 sums, if that was not done during its backward pass.

    During it, each of hundreds of small calls waits for the interpreter lock; here one call adds up all of them. All
    gradients of a micro-batch are in memory at once instead.
    """
    sums: list[Tensor] = []
    fresh: list[Tensor] = []
    for parameter, master in zip(learner.policy.trained, learner.masters, strict=True):
        gradient = parameter.grad
        if parameter is master or gradient is None:
            continue
        parameter.grad = None
        if master.grad is None:
            master.grad = gradient.float()
        else:
            sums.append(master.grad)
            fresh.append(gradient)
    if sums:
        torch._foreach_add_(sums, fresh)  # pyright: ignore[reportPrivateImportUsage]


def _exact(parameter: Tensor) -> bool:
    return parameter.dtype in (torch.float32, torch.float64)


def clip_gradients(learner: Learner) -> float:
    """Clip the gradient norm; return the norm before clipping. A norm that is not finite is refused."""
    norm = float(clip_grad_norm_(learner.masters, learner.max_grad_norm))
    if not torch.isfinite(torch.tensor(norm)):
        discard_gradients(learner)
        what = "weights or credits are too large; try a lower learning_rate"
        raise TrainError(f"the gradient norm is {norm}: {what}. Nothing was changed")
    return norm


def apply_gradients(learner: Learner, *, learning_rate: float) -> None:
    """One step of AdamW, then discard the gradient."""
    for group in learner.adam.param_groups:
        group["lr"] = learning_rate
    learner.consistent = False
    learner.adam.step()
    _round(learner)
    learner.consistent = True
    discard_gradients(learner)


def discard_gradients(learner: Learner) -> None:
    """Drop the gradient."""
    for parameter, master in zip(learner.policy.trained, learner.masters, strict=True):
        parameter.grad = master.grad = None


def _round(learner: Learner) -> None:
    with torch.no_grad():
        for parameter, master in zip(learner.policy.trained, learner.masters, strict=True):
            if parameter is not master:
                parameter.copy_(master)


def state_dict(learner: Learner) -> dict[str, Tensor]:
    """Everything an exact continuation needs: weights, both moments, and the number of steps of each."""
    state: dict[str, Tensor] = {}
    for name, master in zip(learner.names, learner.masters, strict=True):
        state[f"weight.{name}"] = master.detach().cpu().clone()
        known = learner.adam.state.get(master)
        if known:
            state |= {f"{moment}.{name}": known[moment].cpu().clone() for moment in MOMENTS}
            state[f"step.{name}"] = known["step"].cpu().clone()
    return state


def load_state(learner: Learner, state: Mapping[str, Tensor]) -> None:
    """Restore a state. The engine that samples from these weights has to be notified."""
    missing = [name for name in learner.names if f"weight.{name}" not in state]
    if missing:
        raise TrainError(f"this state belongs to another model: it has no weights for {missing[0]}")
    with torch.no_grad():
        for name, master in zip(learner.names, learner.masters, strict=True):
            master.copy_(state[f"weight.{name}"])
            if f"step.{name}" in state:
                moments = {moment: state[f"{moment}.{name}"].to(master) for moment in MOMENTS}
                learner.adam.state[master] = {"step": state[f"step.{name}"], **moments}
    _round(learner)

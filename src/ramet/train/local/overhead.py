"""Settings of Python and torch for a process that trains: how its threads take turns, how often garbage is sought."""

# pyright: standard

from __future__ import annotations

import gc
import sys

import torch
from transformers import PreTrainedModel

from ramet.engine.local.setup import SINGLE_THREAD_BELOW

# Seconds after which Python takes the interpreter lock from a thread that does not release it by itself. Every call of
# torch in the engine's thread waits that long while trees or the learner compute in Python.
SWITCH_INTERVAL_S = 0.0001
# New objects after which Python looks for garbage among them; its default is 700. Hundreds of trees under way are
# millions of objects that are not garbage, and looking at them again and again takes a sixth of the time of Python.
GARBAGE_THRESHOLD = 50_000


class Overhead:
    """Limits the overhead of a process that samples or trains this model, until `restore`.

    A very small model on a CPU has one thread, as in the engine: several would mostly wait for each other. On a GPU,
    the threads of engine, trees and learner take turns often, and Python looks for garbage less often.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._threads = torch.get_num_threads()
        self._switch_interval = sys.getswitchinterval()
        self._garbage_thresholds = gc.get_threshold()
        if model.device.type == "cpu" and model.num_parameters() < SINGLE_THREAD_BELOW:
            torch.set_num_threads(1)
        if model.device.type == "cuda":
            sys.setswitchinterval(SWITCH_INTERVAL_S)
            gc.set_threshold(GARBAGE_THRESHOLD, *self._garbage_thresholds[1:])

    def restore(self) -> None:
        """Put everything back as it was."""
        torch.set_num_threads(self._threads)
        sys.setswitchinterval(self._switch_interval)
        gc.set_threshold(*self._garbage_thresholds)

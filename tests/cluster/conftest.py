"""Real servers on loopback, from their own environments: `make test-cluster` makes them, under .venv-cluster.

A plain `pytest` leaves this folder out.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ramet.models.nano import END, PAD, VOCABULARY, nano_tokenizer_files
from ramet.models.packages import quiet_transformers
from ramet.train.tinker.skyrl import Server, ServerSettings, jax_settings, running

ENVIRONMENTS = Path(os.environ.get("RAMET_CLUSTER", Path(__file__).parents[2] / ".venv-cluster")).resolve()
RANK, ADAPTERS = 8, 16
SESSION_S = 30  # adapters of tests that have ended make room after this
READY_S = 900.0  # a machine that does other things takes minutes to compile


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder is left out by a plain `pytest`: `-m cluster` selects it."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("cluster")


def tiny_qwen3(folder: Path, *, seed: int = 0) -> Path:
    """A Qwen3 of 64 dimensions and two layers with the nano tokenizer, written by `save_pretrained`."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=VOCABULARY[END],
        pad_token_id=VOCABULARY[PAD],
    )
    with torch.random.fork_rng(devices=[]), quiet_transformers():
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).save_pretrained(nano_tokenizer_files(folder))
    return folder


def server_python() -> Path:
    return ENVIRONMENTS / "server" / "bin" / "python"


def compile_cache() -> Path:
    """Kept between runs: compiling takes longer than everything else in these tests."""
    return ENVIRONMENTS / "jax"


def settings(model: Path, folder: Path, *, port: int = 0, sequences: int = 32) -> ServerSettings:
    return ServerSettings(
        model=model,
        folder=folder,
        python=server_python(),
        port=port,
        session_timeout_s=SESSION_S,
        backend=jax_settings([], rank=RANK, adapters=ADAPTERS, sequences=sequences),
        compile_cache=compile_cache(),
    )


@contextmanager
def skyrl(model: Path, folder: Path, *, port: int = 0, sequences: int = 32) -> Generator[Server]:
    """A server that is ready. The same `folder` and `port` again: a restart that keeps its checkpoints."""
    with running(settings(model, folder, port=port, sequences=sequences), ready_s=READY_S) as server:
        yield server


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_qwen3(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """One server for a module; `server.url` and `server.base_model` are what a client needs."""
    with skyrl(tiny_model, tmp_path_factory.mktemp("server")) as server:
        yield server

"""A whole recipe on a real server, from the command line: `craft-135m` with a tiny Llama in place of SmolLM2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio

from ramet.config import load
from ramet.models.packages import quiet_transformers
from ramet.recipes import recipe_file
from ramet.store import RunDir, read_trees
from ramet.store.checkpoints import latest
from ramet.tasks.play import demonstrate
from ramet.tasks.registry import load_taskset
from ramet.train.settings import TrainConfig
from tests.cluster.conftest import RANK, skyrl

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
START, END = "<|im_start|>", "<|im_end|>"
SMALLER = (
    *("steps=1", "tasks_per_step=1", "group_size=4", "save_every=1", "eval.num_tasks=1", "eval.every=1"),
    *("warm.steps=1", "warm.trees_per_step=1", "warm.workers=0", "warm.budget.tokens=100000"),
    *("budget.tokens=[70,140]", "budget.reserve=16", "credit.token_cost=1"),  # lengths differ, so that there is credit
)


def texts_of_craft() -> list[str]:
    """What the nodes of two demonstrations read and write."""
    options: dict[str, Any] = load(TrainConfig, file=recipe_file("craft-135m")).taskset
    taskset = load_taskset("craft", **options)

    async def shown() -> list[str]:
        trees = [await demonstrate(taskset, taskset.task("train_shallow", place), dialect="tools") for place in (0, 1)]
        return [message.content for tree in trees for node in tree.nodes for message in node.messages]

    return anyio.run(shown)


def write_tiny_llama(folder: Path) -> Path:
    """One layer of 32 dimensions, and a tokenizer of 600 pieces that was trained on craft."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[START, END], initial_alphabet=alphabet, show_progress=False
    )
    pieces.train_from_iterator(texts_of_craft(), trainer)
    folder.mkdir()
    pieces.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": CHAT, "eos_token": END, "bos_token": START}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    llama = LlamaConfig(
        vocab_size=pieces.get_vocab_size(),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    with quiet_transformers():
        LlamaForCausalLM(llama).save_pretrained(folder)
    return folder


def ramet(*words: str) -> str:
    """What a command prints."""
    done = subprocess.run([sys.executable, "-m", "ramet", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_recipe_is_trained_reported_and_evaluated_with_a_server(tmp_path: Path) -> None:
    """Supervised start, RL, report; then `run` on the checkpoint of the server and on the merged folder."""
    model = write_tiny_llama(tmp_path / "model")
    with skyrl(model, tmp_path / "server", sequences=4) as server:  # as many as trees at a time
        tinker = ("backend.kind=tinker", f"backend.base_url={server.url}", f"backend.rank={RANK}")
        words = ("train", "craft-135m", "--runs", str(tmp_path), f"model={model}", *tinker, *SMALLER)
        printed = ramet(*words)
        assert "warm.update.max_grad_norm=1 is ignored" in printed
        assert "overlap=0 instead of the recipe's overlap=2" in printed
        run = RunDir.open(tmp_path / "craft-135m")
        (warm,), (record,) = RunDir.open(run.path / "warm").metrics(), run.metrics()
        assert min(warm["grad_norm"], record["grad_norm"]) > 0
        assert record["logprob_gap"] < 1e-4
        trees = list(read_trees(run.path))
        assert len(trees) == 5  # four to learn from, one of the evaluation
        assert all(tree.usage.tokens + tree.usage.lost_tokens <= tree.budget.tokens for tree in trees)
        checkpoint = latest(run.path)
        assert checkpoint is not None
        state = json.loads((checkpoint / "tinker.json").read_text())["state"]
        budget = ("--tokens", "80", "--runs", str(tmp_path))
        there = ("--base-url", server.url, "--tokenizer", str(checkpoint))
        assert "of 80 tokens" in ramet("run", "craft:train_shallow/0", "--model", state, *there, *budget)
    assert "of 80 tokens" in ramet("run", "craft:train_shallow/0", "--model", str(run.path), *budget)
    ramet("report", str(run.path), "--into", str(tmp_path / "report"))
    assert "craft-135m" in (tmp_path / "report" / "index.html").read_text(encoding="utf-8")

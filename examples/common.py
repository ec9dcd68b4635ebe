"""What all examples share: the options that choose a model, and the engine for them."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence

import ramet

Script = Callable[[ramet.Prompt], "str | ramet.Reply"]


def options(about: str | None) -> argparse.ArgumentParser:
    """A parser with `--model`, `--base-url` and `--tokens`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model on the server; without --base-url: smollm2 or a model folder")
    parser.add_argument("--base-url", help="an OpenAI-compatible server, like http://127.0.0.1:8000/v1")
    parser.add_argument("--tokens", type=int, default=20_000, help="most tokens that a tree may generate")
    return parser


def choose_engine(chosen: argparse.Namespace, script: Script) -> ramet.Engine:
    """The engine that the options name; without any, a scripted model, which is a Python function."""
    if chosen.base_url:
        return ramet.HttpEngine(chosen.base_url, model=chosen.model or "", api_key=os.environ.get("RAMET_API_KEY"))
    if chosen.model:
        return ramet.LocalEngine(chosen.model)
    print("No --model and no --base-url: a scripted model answers. The runtime is the real one.\n")
    return ramet.ScriptedEngine(script)


def delegate(goals: Sequence[str], context: Sequence[str] = ()) -> str:
    """A call to delegate as the `tools` dialect writes it, for scripted models."""
    arguments = {"goals": list(goals)} | ({"context": list(context)} if context else {})
    return f"<tool_call>{json.dumps({'name': 'delegate', 'arguments': arguments})}</tool_call>"


def report(tree: ramet.Tree) -> None:
    """Print the tree, what it used, and its answer."""
    print(tree, tree.answer or f"no answer: {tree.root.stop}", sep="\n\n")

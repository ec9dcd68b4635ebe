"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MODEL, BUDGET, INPUT = "Model", "Budget", "Input"  # panels of the help

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, like runs/what-is-the-capital.")]
DataPath = Annotated[str | None, typer.Option(help="Folder with task files, for tasksets that read files.")]
TasksetName = Annotated[
    str, typer.Argument(metavar="NAME[:SPLIT]", help="A taskset (`ramet tasks` lists them), or file.py:Name.")
]
TasksetOptions = Annotated[
    list[str] | None,
    typer.Argument(metavar="taskset.KEY=VALUE", help="Options of the taskset, like taskset.operators=[3,5]."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL,
        envvar="RAMET_API_KEY",
        help="API key of the server; never stored. Without it, the variable of its provider is read: OPENAI_API_KEY, "
        "ANTHROPIC_API_KEY, OPENROUTER_API_KEY, ...",
        show_envvar=True,
    ),
]
Provider = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL,
        help="Preset of a server: openai, anthropic, openrouter, vllm, sglang, llamacpp, ollama or litellm.",
    ),
]
EngineKind = Annotated[
    str | None,
    typer.Option("--engine", rich_help_panel=MODEL, help="http: an OpenAI-compatible server. local: in this process."),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(rich_help_panel=MODEL, help="Address of the model's server (default: http://127.0.0.1:8000/v1)."),
]
ModelName = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL,
        help="Model name on the server. A run directory of train (its newest checkpoint; RUN/best is its best), a "
        "folder with config.json, or smollm2 is loaded into this process.",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL, help="Folder with tokenizer.json, .gguf file or smollm2, for exact token ids over HTTP."
    ),
]
DialectName = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL,
        help="Format of the model's actions: native, tools, python or terse; auto: native where the server can, else "
        "tools (default: auto in run, tools in serve).",
    ),
]
Tokens = Annotated[
    int | None, typer.Option(rich_help_panel=BUDGET, help="Generated tokens of the whole tree (default: 4000).")
]
Nodes = Annotated[
    int | None, typer.Option(rich_help_panel=BUDGET, help="Nodes in the tree, including the root (default: 16).")
]
Depth = Annotated[int | None, typer.Option(rich_help_panel=BUDGET, help="Levels below the root (default: 3).")]
Seconds = Annotated[
    float | None, typer.Option(rich_help_panel=BUDGET, help="Wall-clock time of the whole tree (default: no limit).")
]
Seed = Annotated[int | None, typer.Option(rich_help_panel=MODEL, help="Random seed; some servers ignore it.")]
CloneModel = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL,
        metavar="NAME[@URL]",
        help="Another model for all nodes but the root, on this or another server.",
    ),
]
ConfigFile = Annotated[Path | None, typer.Option(help="TOML file with settings.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Recipe = Annotated[
    str | None, typer.Argument(metavar="RECIPE", help="A TOML file with settings, or the name of a built-in recipe.")
]
Settings = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Any setting, like steps=50 or loss.kind=ppo.")
]
Resume = Annotated[Path | None, typer.Option(help="Resume this run from its newest checkpoint.")]
AcceptChanges = Annotated[
    bool,
    typer.Option("--accept-changes", help="Resume although the file of a plug-in has changed since the run began."),
]
Runs = Annotated[Path, typer.Option(help="Folder for run directories.")]
ShowBudget = Annotated[bool | None, typer.Option(rich_help_panel=BUDGET, help="Show the model its remaining budget.")]
Temperature = Annotated[
    float | None, typer.Option(rich_help_panel=MODEL, help="Sampling temperature; 0 is greedy (default: 0.7).")
]


def clone_settings(text: str | None) -> dict[str, str]:
    """The settings that `--clone-model NAME[@URL]` stands for.

    Example:
        clone_settings("small@http://127.0.0.1:9000/v1")
        # {"clone.model": "small", "clone.base_url": "http://127.0.0.1:9000/v1"}
    """
    if text is None:
        return {}
    name, at, url = text.rpartition("@")
    if at and url.startswith(("http://", "https://")):
        return {"clone.model": name, "clone.base_url": url}
    return {"clone.model": text}

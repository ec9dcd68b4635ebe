"""LiteLLM's real proxy between ramet and a scripted server on loopback: what it passes on, changes and refuses.

    make test-proxy             # in the environment of `make test-clients`; about a minute

Each check is printed in one line; the exit code is 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx

import ramet
from ramet import EngineError, HttpEngine, Message, Prompt
from ramet.engine.probing import choose_dialect
from tests.engine.faulty import Answer, FaultyServer, Received, chat, says, serve, stream, usage, whole
from tests.engine.test_native_calls import delta, part

KEY = "sk-master-0123456789abcdef"
READY_S = 300
GOALS = {"goals": ["a", "b"]}


def upstream(request: Received) -> Answer:
    """The server behind the proxy: what it does depends on the model that is asked for."""
    body = request.body
    if body["model"] == "picky" and "seed" in body:
        return whole(
            {"error": {"message": "Unrecognized request argument supplied: seed", "param": "seed"}}, status=400
        )
    if body["model"] == "broken":
        return stream(chat("half an "), {"error": {"message": "upstream went away", "code": 502}}, done=False)
    if body["model"] == "thinking":
        return stream(delta(reasoning_content="Hm. "), chat("Answer: 4"), chat("", finish="stop"), usage(5))
    if body.get("tools") and body["messages"][-1]["role"] == "user" and "root" in str(body["messages"][-1]["content"]):
        pieces = json.dumps(GOALS)
        calls = [part(0, "", name="delegate", id="call_x"), part(0, pieces[:9]), part(0, pieces[9:])]
        return stream(*(delta(tool_calls=[one]) for one in calls), delta(finish="tool_calls"), usage(12))
    if body["messages"][-1]["role"] == "tool":
        return says("Answer: " + body["messages"][-1]["content"].replace("\n", " and "))
    return says(f"Answer: {body['messages'][1]['content']}")


@asynccontextmanager
async def proxy(litellm: str, behind: FaultyServer) -> AsyncIterator[str]:
    """LiteLLM's proxy on a free port, with the models of `upstream`."""
    port = 20_000 + os.getpid() % 20_000
    names = ("plain", "picky", "broken", "thinking")
    models = [
        {"model_name": name, "litellm_params": {"model": f"openai/{name}", "api_base": behind.url, "api_key": "none"}}
        for name in names
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        settings = {
            "model_list": models,
            "litellm_settings": {"num_retries": 0},
            "general_settings": {"master_key": KEY},
        }
        config.write_text(json.dumps(settings))  # JSON is YAML too
        words = [litellm, "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
        process = subprocess.Popen(words, env=environment, **quiet)  # noqa: ASYNC220 (it only starts)
        try:
            await ready(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(60)


async def ready(address: str, process: subprocess.Popen[bytes]) -> None:
    async with httpx.AsyncClient() as client:
        with anyio.fail_after(READY_S):
            while process.poll() is None:
                try:
                    if (await client.get(f"{address}/health/liveliness", timeout=20)).status_code == 200:
                        return
                except httpx.HTTPError:
                    await anyio.sleep(0.5)
    raise RuntimeError(f"the proxy ended with {process.returncode}")


Check = Callable[[str], Awaitable[Any]]


def connect(url: str, model: str, *, key: str = KEY) -> HttpEngine:
    return HttpEngine(url, model=model, provider="litellm", api_key=key, tries=1)


async def lists_its_models(url: str) -> None:
    async with connect(url, "plain") as engine:
        assert sorted(await engine.models()) == ["broken", "picky", "plain", "thinking"]


async def a_tree_of_native_calls(url: str) -> None:
    async with connect(url, "plain") as engine:
        tree = await ramet.run("root", engine=engine, dialect="native", seed=1)
    assert tree.answer == "clone 1.1: a and clone 1.2: b", tree.answer
    assert [node.goal for node in tree.nodes] == ["root", "a", "b"]


async def a_tree_of_calls_as_text(url: str) -> None:
    async with connect(url, "plain") as engine:
        assert await choose_dialect("auto", [engine]) == "tools"  # the model behind it ignores the probe
        assert (await ramet.run("q", engine=engine)).answer == "q"


async def reasoning_and_usage_arrive(url: str) -> None:
    async with connect(url, "thinking") as engine:
        completion = await engine.sample(question(), max_tokens=50)
    assert (completion.thoughts, completion.text) == ("Hm. ", "Answer: 4"), completion
    assert (completion.num_tokens, completion.prompt_tokens, completion.cached_tokens) == (5, 7, 3), completion


async def a_refused_parameter_is_left_out(url: str) -> None:
    async with connect(url, "picky") as engine:
        assert (await engine.sample(question(), max_tokens=50, seed=3)).text == "Answer: q"
    assert engine.notes == [f"{url} does not accept seed: it is left out"], engine.notes


async def an_error_in_the_stream_is_one_line(url: str) -> None:
    async with connect(url, "broken") as engine:
        print_line(f"    {await failure(engine)}")


async def a_wrong_key_is_one_line_without_the_key(url: str) -> None:
    key = "sk-wrong-fedcba9876543210"
    async with connect(url, "plain", key=key) as engine:
        text = await failure(engine)
    assert key not in text
    assert "\n" not in text
    print_line(f"    {text}")


async def an_unknown_model_is_one_line(url: str) -> None:
    async with connect(url, "nothing") as engine:
        print_line(f"    {await failure(engine)}")


async def failure(engine: HttpEngine) -> str:
    try:
        completion = await engine.sample(question(), max_tokens=50)
    except EngineError as error:
        return str(error)
    raise AssertionError(f"no error but {completion}")


def question() -> Prompt:
    return Prompt(messages=[Message("system", "s"), Message("user", "q")], ids=None)


CHECKS: list[Check] = [
    lists_its_models,
    a_tree_of_native_calls,
    a_tree_of_calls_as_text,
    reasoning_and_usage_arrive,
    a_refused_parameter_is_left_out,
    an_error_in_the_stream_is_one_line,
    a_wrong_key_is_one_line_without_the_key,
    an_unknown_model_is_one_line,
]


async def run_checks(litellm: str) -> int:
    failed = 0
    async with serve(upstream) as behind, proxy(litellm, behind) as url:
        for check in CHECKS:
            name = getattr(check, "__name__", "").replace("_", " ")
            try:
                await check(url)
                print_line(f"ok    {name}")
            except (AssertionError, EngineError) as error:
                failed += 1
                print_line(f"WRONG {name}: {error!r}")
    return failed


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("litellm", help="the command of the proxy: .venv-litellm/bin/litellm")
    sys.exit(1 if anyio.run(run_checks, parser.parse_args().litellm) else 0)


if __name__ == "__main__":
    main()

"""Clients that go away, overload, signals, kills, full disks: every tree is stored, no call outlives its request."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest

from ramet.engine.scripted import ScriptedEngine
from ramet.serve import app
from ramet.serve.fields import Fields
from ramet.serve.server import Served, bind
from ramet.store import read_trees
from ramet.types import Stop
from tests.serve.scripted import PATIENCE_S, process, script, served, until, until_idle


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "ramet", "messages": [{"role": "user", "content": text}], **more}


get = partial(httpx.get, timeout=PATIENCE_S)


def post(url: str, text: str, **more: Any) -> httpx.Response:
    return httpx.post(f"{url}/chat/completions", json=body(text, **more), timeout=PATIENCE_S)


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(script)


@pytest.fixture
def server(tmp_path: Path, engine: ScriptedEngine) -> Generator[Served]:
    with served(tmp_path, engine=engine, concurrency=2, queue=1, max_body_bytes=20_000) as found:
        yield found


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_disconnects_ends_its_tree_and_its_calls(server: Served, engine: ScriptedEngine, stream: bool):
    address = urlsplit(server.url)
    text = json.dumps(body("stall", stream=stream)).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(text)}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + text)
        until(lambda: engine.running == 2)  # both clones are in a call that takes an hour
    until(lambda: engine.running == 0)
    until(lambda: server.service.gate.running == 0)
    until(lambda: len(list(read_trees(server.run))) == 1)
    (tree,) = read_trees(server.run)
    assert [node.stop for node in tree.nodes] == [Stop.CANCELLED] * 3
    assert tree.usage.tokens + tree.usage.lost_tokens <= tree.budget.tokens


def test_more_requests_than_places_and_queue_get_429_with_a_time_to_retry(server: Served, engine: ScriptedEngine):
    gate = server.service.gate

    async def overload() -> httpx.Response:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client, anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(lambda: client.post(f"{server.url}/chat/completions", json=body("stall")))
            await anyio.to_thread.run_sync(until, lambda: (gate.running, gate.waiting) == (2, 1))
            refused = await client.post(f"{server.url}/chat/completions", json=body("hello"))
            group.cancel_scope.cancel()
        return refused

    refused = anyio.run(overload)
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    until(lambda: (engine.running, gate.running, gate.waiting) == (0, 0, 0))
    assert post(server.url, "hello").status_code == 200


def test_a_streamed_request_hears_something_while_it_waits_for_a_place(server: Served):
    gate, url = server.service.gate, f"{server.url}/chat/completions"
    server.service.keep_alive_s = 0.02

    async def wait_and_be_answered() -> tuple[int, list[str], int]:
        waiting, lines = 0, list[str]()
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client, anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(lambda: client.post(url, json=body("stall")))
            await anyio.to_thread.run_sync(until, lambda: gate.running == 2)
            with anyio.CancelScope(shield=True):
                async with client.stream("POST", url, json=body("hello", stream=True)) as response:
                    async for line in response.aiter_lines():
                        if line == ": waiting" and not group.cancel_scope.cancel_called:
                            waiting = gate.waiting
                            refused = await client.post(url, json=body("hello", stream=True))
                            group.cancel_scope.cancel()  # its place is free
                        lines.append(line)
        return waiting, lines, refused.status_code

    waiting, lines, refused = anyio.run(wait_and_be_answered)
    assert (waiting, refused) == (1, 429)
    assert lines[-2:] == ["data: [DONE]", ""]
    assert "delta" in next(line for line in lines if line.startswith("data:"))


def test_bodies_that_are_huge_slow_or_no_json_are_refused(server: Served):
    def send(content: Any, **headers: str) -> tuple[int, str]:
        sent = {"content-type": "application/json", **headers}
        response = httpx.post(f"{server.url}/chat/completions", content=content, headers=sent, timeout=PATIENCE_S)
        return response.status_code, response.json()["error"]["message"]

    def slowly(parts: int, seconds: float) -> Generator[bytes]:
        for _ in range(parts):
            yield b" " * 1000
            threading.Event().wait(seconds)

    assert send(b" " * 20_001) == (413, "the body of a request must be at most 20,000 bytes")
    assert send(slowly(30, 0.0))[0] == 413  # without a length
    assert send(b"{}", **{"content-type": "text/plain"}) == (400, "send the header Content-Type: application/json")
    assert send(b"[" * 19_000)[0] == 400
    assert send(b"{}", host="evil.example.org")[0] == 403
    server.service.bodies.seconds = 0.1
    assert send(slowly(3, 0.2)) == (408, "the body did not arrive within 0.1 s")
    until_idle(server)


def test_a_conversation_that_does_not_fit_the_window_is_a_400(tmp_path: Path):
    with served(tmp_path, max_body_bytes=10**6) as found:
        response = post(found.url, "word " * 60_000)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert list(read_trees(found.run)) == []


def test_a_window_that_the_request_itself_made_too_small_is_named(server: Served):
    for more, param in (
        ({"ramet": {"budget": {"window": 40}}}, "ramet.budget.window"),
        ({"model": "ramet:window=40"}, "model"),
    ):
        error = httpx.post(f"{server.url}/chat/completions", json=body("hello") | more).json()["error"]
        assert (error["param"], error["code"]) == (param, "window_too_small")


def test_other_paths_and_methods_are_errors_in_the_same_format(server: Served):
    for status, response in [
        (404, get(f"{server.url}/nothing")),
        (405, get(f"{server.url}/chat/completions")),
        (404, get(f"{server.url}/models/other")),
    ]:
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


def check_internal_error(response: httpx.Response, log: str) -> None:
    """The client gets an error that it can read, the operator one traceback in which nothing can move the cursor."""
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert response.headers["x-should-retry"] == "false"
    assert "bug" not in response.text
    assert log.count("ZeroDivisionError: a bug") == 1
    assert "Traceback" in log
    assert "\x1b" not in log


def test_a_mistake_of_the_servers_own_code_is_a_500_that_clients_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def broken(prompt: object) -> str:
        raise ZeroDivisionError("a bug\x1b[31m")

    with served(tmp_path, engine=ScriptedEngine(broken)) as found:
        response = post(found.url, "hello")
        until_idle(found)
    check_internal_error(response, capsys.readouterr().err)


def test_a_mistake_in_reading_a_request_is_a_500_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def read(body: Fields, **_: Any) -> Any:
        raise ZeroDivisionError("a bug\x1b[31m")

    monkeypatch.setattr(app, "CHAT", replace(app.CHAT, read=read))
    with served(tmp_path) as found:
        response = post(found.url, "hello")
        until_idle(found)
    check_internal_error(response, capsys.readouterr().err)


def test_the_python_dialect_answers_with_values_of_its_cells(tmp_path: Path):
    engine = ScriptedEngine(lambda prompt: "<python>finish(6 * 7)</python>")
    with served(tmp_path, engine=engine, dialect="python") as found:
        assert post(found.url, "compute").json()["choices"][0]["message"]["content"] == "42"


def test_metrics_count_requests_trees_and_tokens(server: Served):
    post(server.url, "split it")
    post(server.url, "hello", n=2)
    page = server.url.replace("/v1", "/metrics")
    until(lambda: 'ramet_request_seconds_count{endpoint="chat"} 2' in get(page).text)  # both have ended
    text = get(page).text
    assert 'ramet_requests_total{endpoint="chat",status="200"} 1' in text
    assert 'ramet_requests_total{endpoint="chat",status="400"} 1' in text
    assert 'ramet_trees_total{stop="answered"} 1' in text
    (tree,) = read_trees(server.run)
    assert f'ramet_tokens_total{{kind="generated"}} {tree.usage.tokens}' in text
    assert 'ramet_request_seconds_bucket{endpoint="chat",le="+Inf"} 2' in text
    health = get(server.url.replace("/v1", "/health")).json()
    assert health == {"status": "ok", "model": "scripted", "running": 0, "waiting": 0}


def test_trees_that_the_disk_refuses_are_kept_until_it_takes_them(server: Served):
    folder = server.run / "trees"
    folder.rename(server.run / "away")
    assert post(server.url, "hello").status_code == 200  # the answer is there all the same
    assert get(server.url.replace("/v1", "/health")).json()["status"] == "trees are not stored"
    (server.run / "away").rename(folder)
    until(lambda: len(list(read_trees(server.run))) == 1)


KEYS = """
[keys.alice]
key = "alice-has-a-long-key"
tokens_per_day = 120
[keys.bob]
key = "bob-has-a-long-key-too"
[keys.carol]
key = "carol-has-a-key-as-well"
money_per_day = 0.00001
"""


def test_keys_are_needed_have_limits_and_are_written_nowhere(tmp_path: Path):
    (tmp_path / "keys.toml").write_text(KEYS)
    runs = tmp_path / "runs"

    def ask(url: str, key: str | None) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.post(f"{url}/chat/completions", json=body("split this"), headers=headers, timeout=PATIENCE_S)

    dollars = {"budget.prices.generated": 10.0}  # per million tokens
    settings: dict[str, Any] = {"keys": str(tmp_path / "keys.toml"), **dollars}
    with served(runs, **settings) as found:
        assert ask(found.url, None).status_code == 401
        assert ask(found.url, "alice-has-a-long-kez").status_code == 401
        assert get(f"{found.url}/models").status_code == 401
        assert get(found.url.replace("/v1", "/metrics")).status_code == 401
        assert get(found.url.replace("/v1", "/health")).status_code == 200
        first = ask(found.url, "alice-has-a-long-key")
        assert first.status_code == 200
        tree = first.headers["x-ramet-tree"]
        seen = {
            name: get(f"{found.url}/trees/{tree}", headers={"authorization": f"Bearer {key}"}).status_code
            for name, key in {"alice": "alice-has-a-long-key", "bob": "bob-has-a-long-key-too"}.items()
        }
        assert seen == {"alice": 200, "bob": 404}
        statuses = [ask(found.url, "alice-has-a-long-key").status_code for _ in range(4)]
        assert statuses[-1] == 429
        assert ask(found.url, "bob-has-a-long-key-too").status_code == 200
        used = found.service.keys.accounts["alice"].tokens
        assert used <= 120
        poor = ask(found.url, "carol-has-a-key-as-well")  # one token's worth pays for no tree
        assert (poor.status_code, poor.json()["error"]["code"]) == (429, "insufficient_quota")
        assert poor.headers["x-should-retry"] == "false"
    with served(runs, **settings) as found:  # the day goes on after a restart
        assert found.service.keys.accounts["alice"].tokens == used
        assert ask(found.url, "alice-has-a-long-key").status_code == 429
    written = b"".join(file.read_bytes() for file in runs.rglob("*") if file.is_file())
    assert b"alice-has" not in written
    assert b"bob-has" not in written


def test_sigterm_lets_a_tree_end_and_its_client_have_the_answer(tmp_path: Path):
    with process(tmp_path) as (running, url), httpx.Client(timeout=PATIENCE_S) as client:
        with client.stream("POST", f"{url}/chat/completions", json=body("slow 1.0", stream=True)) as response:
            lines = response.iter_lines()
            next(lines)  # the tree runs
            running.send_signal(signal.SIGTERM)
            rest = "\n".join(lines)
        assert '"content":"late"' in rest
        assert "[DONE]" in rest
        assert running.wait(PATIENCE_S) == 0
        assert running.stderr is not None
        assert running.stderr.read() == ""
    (tree,) = read_trees(next(tmp_path.glob("serve-*")))
    assert tree.answer == "late"


def test_after_the_time_of_grace_trees_are_stored_as_far_as_they_got(tmp_path: Path):
    with process(tmp_path, "grace_s=0.2") as (running, url), httpx.Client(timeout=PATIENCE_S) as client:
        with client.stream("POST", f"{url}/chat/completions", json=body("stall", stream=True)) as response:
            lines = response.iter_lines()
            while "clone 2" not in next(lines):
                pass
            running.send_signal(signal.SIGTERM)
            assert "the server is shutting down" in "\n".join(lines)
        assert running.wait(PATIENCE_S) == 0
    (tree,) = read_trees(next(tmp_path.glob("serve-*")))
    assert [node.stop for node in tree.nodes] == [Stop.CANCELLED] * 3


def test_a_killed_server_has_every_tree_whose_answer_was_sent(tmp_path: Path):
    with process(tmp_path) as (running, url):
        ids = {post(url, f"question {number}").headers["x-ramet-tree"] for number in range(5)}
        running.kill()
        running.wait()
    assert {tree.id for tree in read_trees(next(tmp_path.glob("serve-*")))} == ids


def test_a_tree_whose_engine_failed_is_stored_before_its_error_is_sent(server: Served):
    response = post(server.url, "late")
    assert response.status_code == 502
    (tree,) = read_trees(server.run)
    assert (tree.id, tree.root.stop) == (response.headers["x-ramet-tree"], Stop.ERROR)


def test_answers_are_not_delayed_by_the_kernel():
    with bind("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # else asyncio leaves Nagle's algorithm on: 40 ms per answer

"""Forks that the page begins: sampled again, with other words, and told something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ramet.engine.scripted import ScriptedEngine
from ramet.tokens.render import TokenRenderer
from ramet.types import Prompt
from ramet.view.api import Api
from ramet.view.catalog import Catalog
from ramet.view.forks import Forks
from ramet.view.server import Viewer
from tests.view.samples import TOKENIZER, script, write_runs
from tests.waiting import PATIENCE_S


class Opened(ScriptedEngine):
    """A scripted engine that is opened and closed like a model."""

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None: ...


def answering(prompt: Prompt) -> str:
    """As recorded, except that a node that reads of oranges counts them."""
    told = "count oranges" in prompt.last or "5 oranges" in prompt.last
    return "Answer: 12 oranges" if told else script(prompt)


@pytest.fixture(scope="module")
def forking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    folder = write_runs(tmp_path_factory.mktemp("forks"))
    config = '[engine]\nkind = "http"\nmodel = "scripted"\ntokenizer = "words"\n'
    (folder / "orchard" / "config.toml").write_text(config, encoding="utf-8")
    catalog = Catalog([folder])

    def open_(*_: Any, **__: Any) -> Any:
        return Opened(answering, renderer=TokenRenderer(TOKENIZER)), None

    api = Api(catalog, Forks(catalog, open_=open_))
    with Viewer(api) as viewer:
        yield viewer


@pytest.fixture
def client(forking: Viewer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=forking.url + "api/", timeout=PATIENCE_S) as client:
        yield client


def fork(client: httpx.Client, **change: Any) -> dict[str, Any]:
    """Begin a fork of the orchard and wait for its end."""
    asked = {"run": "orchard", "tree": "orchard", "node": 2, "turn": 0} | change
    job = client.post("fork", json=asked).raise_for_status().json()["job"]
    while True:
        known = client.get("job", params={"job": job}).json()
        if known["state"] in ("done", "failed"):
            return known


def answers(client: httpx.Client, job: dict[str, Any]) -> list[str]:
    tree = client.get("tree", params={"run": job["run"], "tree": job["tree"]}).json()
    return [node["answer"] for node in tree["nodes"]]


def test_a_turn_in_other_words_goes_on_from_there(client: httpx.Client) -> None:
    job = fork(client, say="Answer: 9")
    assert job["problem"] == ""
    assert answers(client, job)[2] == "9"
    pair = client.get("compare", params={"run": "orchard", "tree": "orchard", "run2": job["run"], "tree2": job["tree"]})
    assert (pair.json()["first"]["path"], pair.json()["first"]["turn"]) == ([1], 0)


def test_a_node_can_be_told_something_else(client: httpx.Client) -> None:
    job = fork(client, tell="count oranges")
    assert job["problem"] == ""
    assert answers(client, job)[:3] == ["7", "7", "12 oranges"]
    texts = client.get("node", params={"run": job["run"], "tree": job["tree"], "node": 2}).json()["pieces"]
    assert texts[0]["message"] == "count oranges"


def test_results_that_a_node_reads_can_be_changed_too(client: httpx.Client) -> None:
    job = fork(client, node=0, turn=1, tell="clone 1.1: 5 oranges")
    assert job["problem"] == ""
    assert answers(client, job)[0] == "12 oranges"
    texts = client.get("node", params={"run": job["run"], "tree": job["tree"], "node": 0}).json()["pieces"]
    assert texts[2]["message"] == "clone 1.1: 5 oranges"


def test_the_new_run_lies_beside_the_old_one_and_says_where_it_comes_from(
    client: httpx.Client, forking: Viewer
) -> None:
    job = fork(client)
    meta = client.get("run", params={"run": job["run"]}).json()["meta"]
    assert meta["kind"] == "fork"
    assert (meta["fork"]["tree"], meta["fork"]["node"], meta["fork"]["turn"]) == ("orchard", 2, 0)
    assert (forking.api.catalog.roots[0] / job["run"] / "meta.json").is_file()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"node": -1}, "node is a whole number"),
        ({"node": 99}, "has nodes 0 to 5"),
        ({"turn": True}, "turn is a whole number"),
        ({"say": ""}, "say is a text"),
        ({"say": "a", "tell": "b"}, "exclude each other"),
        ({"shell": "rm"}, "unknown field 'shell'"),
        ({"run": "../orchard"}, "no run"),
        ({"tree": "nothing"}, "no tree"),
        ({"run": "training", "tree": "000000-000-000", "node": 0}, "which model?"),
    ],
)
def test_a_wrong_request_is_one_line(client: httpx.Client, asked: dict[str, Any], words: str) -> None:
    found = client.post("fork", json={"run": "orchard", "tree": "orchard", "node": 2, "turn": 0} | asked)
    assert found.status_code == 409
    assert words in found.json()["error"]


def test_without_a_model_the_page_says_why_there_are_no_forks(client: httpx.Client) -> None:
    assert client.get("tree", params={"run": "orchard", "tree": "orchard"}).json()["fork"]["possible"]
    page = client.get("run", params={"run": "training"}).json()
    assert not page["fork"]["possible"]
    assert "ramet view --model" in page["fork"]["why"]
    assert client.post("fork", content=b"[1]").status_code == 400
    assert client.get("fork").status_code in (404, 405)


def test_on_the_page_a_turn_is_edited_the_fork_is_watched_and_compared(browser: Any, forking: Viewer) -> None:
    page = browser.new_page()
    page.set_default_timeout(20_000)
    page.goto(forking.url + "#/run/orchard/tree/orchard/node/2")
    page.click("#turn-0 button:text-is('edit')")
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    page.fill("textarea", "Answer: 9")
    page.check("text=only failures")  # the panel is drawn again; what was typed stays
    page.click("text=say this and go on")
    page.wait_for_url(re.compile(r"/run/fork-orchard-2-0[^/]*/tree/[^/]+/node/2\?from=orchard&of=orchard$"))
    page.wait_for_selector(".result .answer >> text=9")
    page.click("text=compare with the tree it was forked from")
    page.wait_for_selector(".difference .said >> nth=1")
    assert [" ".join(text.split()) for text in page.locator(".difference .said").all_inner_texts()] == [
        "Answer: 7",
        "Answer: 9",
    ]
    page.close()


def test_on_the_page_what_a_node_reads_is_edited(browser: Any, forking: Viewer) -> None:
    page = browser.new_page()
    page.set_default_timeout(20_000)
    page.goto(forking.url + "#/run/orchard/tree/orchard/node/2")
    page.click("text=edit what it reads")
    assert page.input_value("textarea") == "count pears"
    page.fill("textarea", "count oranges")
    page.click("text=read this and go on")
    page.wait_for_selector(".result .answer >> text=12 oranges")
    page.close()


def test_messages_are_found_in_the_markup_of_several_models() -> None:
    from ramet.view.texts import message_of

    for text in (
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\nCount.<|im_end|>\n<|im_start|>assistant\n",
        "<|start_header_id|>user<|end_header_id|>\n\nCount.<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|user|>Count.<|model|>",
        "<end_of_turn>\n<start_of_turn>user\nCount.<end_of_turn>\n<start_of_turn>model\n",
        "<|end|>Count.<|model|>",  # results, where the template has no sign for their role
        "Count.",
    ):
        assert message_of(text) == "Count."


@pytest.mark.parametrize(
    ("body", "status"), [(b"{", 400), (b"[]", 400), (b"[" * 10_000, 400), (b" " * (2**20 + 1), 413)]
)
def test_a_body_that_is_too_long_or_not_an_object_is_an_error(client: httpx.Client, body: bytes, status: int) -> None:
    response = client.post("fork", content=body)
    assert (response.status_code, list(response.json())) == (status, ["error"])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # it is meant to be seen
def test_a_fork_that_raises_has_failed_and_the_page_does_not_wait_for_it(tmp_path: Path) -> None:
    folder = write_runs(tmp_path)
    config = '[engine]\nkind = "http"\nmodel = "scripted"\ntokenizer = "words"\n'
    (folder / "orchard" / "config.toml").write_text(config, encoding="utf-8")

    def open_(*_: Any, **__: Any) -> Any:
        raise ValueError("a mistake in a taskset")

    catalog = Catalog([folder])
    with Viewer(Api(catalog, Forks(catalog, open_=open_))) as viewer, httpx.Client(timeout=PATIENCE_S) as client:
        client.base_url = httpx.URL(viewer.url + "api/")
        job = fork(client)
    assert job["state"] == "failed"
    assert "its traceback is where ramet view runs" in job["problem"]


def test_trees_of_a_server_without_a_tokenizer_cannot_be_forked(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[engine]\nkind = "http"\nmodel = "m"\n', encoding="utf-8")
    why = Forks(Catalog([tmp_path])).problem(tmp_path)
    assert why == "its trees have no token ids: over HTTP, run with --tokenizer to have them"

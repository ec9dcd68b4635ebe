"""The page in a real browser: clicked through, by keyboard alone, live, linked to, on a phone, in the dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ramet.evaluate.format import share
from ramet.store import RunDir
from ramet.types import Task
from ramet.view import Viewer, start
from ramet.view.export import export
from tests.view.samples import RunningTree, scripted_tree

TREE = "#/run/orchard/tree/orchard"
COMPARED = "#/compare?run=training&tree=000000-000-000&run2=training&tree2=000000-000-001"


class Seen:
    """A page, and whatever went wrong in it."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(viewport=options.pop("viewport", {"width": 1280, "height": 800}), **options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._console)

    def _console(self, message: Any) -> None:
        if message.type == "error" and "404" not in message.text:  # a tree that is not stored yet
            self.problems.append(message.text)

    def until(self, expression: str) -> None:
        """Wait until this is true. The policy of the page forbids what `wait_for_function` does."""
        for _ in range(400):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {expression}")

    def text(self, selector: str) -> str:
        return " ".join(self.page.inner_text(selector).split())


@pytest.fixture
def seen(browser: Any) -> Iterator[Seen]:
    found = Seen(browser)
    yield found
    found.context.close()
    assert found.problems == []


def axe(page: Any) -> list[str]:
    """What axe-core finds, from minor to critical."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    return [f"{one['impact']}, {one['id']}: {one['nodes'][0]['html'][:120]}" for one in found]


def test_from_the_list_of_runs_to_a_turn_by_clicking(seen: Seen, viewer: Viewer) -> None:
    page = seen.page
    page.goto(viewer.url)
    page.click("text=orchard")
    page.wait_for_selector(".trow a")
    page.click(".trow a")
    page.wait_for_selector("#turn-0 .call")
    assert "6 of 9" in seen.text(".stats")
    page.click('.row[data-node="3"] .goal')
    page.wait_for_selector(".refusals")
    assert "plums in the attic" in seen.text(".refusals")
    assert page.url.endswith("/node/3")
    page.click("text=started >> xpath=.. >> css=a")
    page.wait_for_selector("#node-title:has-text('plums in the cellar')")
    assert "plums in the cellar" in seen.text("#node-title")
    for drawing, selector in (("Timeline", ".timeline .box"), ("Budget", ".icicle .cell"), ("Tree", ".rows-body .row")):
        page.click(f"role=tab[name={drawing}]")
        assert page.locator(selector).count() == 6


def test_sampled_and_given_text_verdict_and_refusal_are_told_apart(seen: Seen, viewer: Viewer) -> None:
    page = seen.page
    page.goto(viewer.url + TREE)
    page.wait_for_selector("#turn-1 .said")
    assert "How many fruits" in seen.text(".given-group .got >> nth=0")
    assert "Four parts" in seen.text("#turn-0 .said")
    assert "delegate" in seen.text("#turn-0 .call")
    assert "node 1" in seen.text("#turn-1 .got")
    page.goto(viewer.url + TREE + "/node/2")
    page.wait_for_selector("text=there are 9 pears")
    page.click("text=shade by log-prob")
    assert page.locator("#turn-0 .t").count() > 2


def test_what_a_model_wrote_is_text_and_never_markup(seen: Seen, viewer: Viewer) -> None:
    page = seen.page
    for place in ("", "/node/4", "/node/4?view=timeline", "/node/4?view=budget"):
        page.goto(viewer.url + TREE + place)
        page.wait_for_selector("#turn-0")
        assert page.locator("#page img, #page script").count() == 0
        assert page.title() != "owned"
        titles = page.evaluate("[...document.querySelectorAll('[title]')].map((one) => one.title).join('')")
        assert "\u202e" not in titles
    assert "<script>" in seen.text(".result")
    assert "\\u202e" in seen.text(".result")


def test_a_deep_link_opens_the_turn_of_a_node(seen: Seen, viewer: Viewer) -> None:
    seen.page.goto(viewer.url + TREE + "/node/3/turn/1")
    seen.page.wait_for_selector("#turn-1.linked")
    assert "count plums" in seen.text("#node-title")
    assert seen.page.get_attribute('.row[data-node="3"]', "aria-selected") == "true"


def test_everything_can_be_reached_by_keyboard_alone(seen: Seen, viewer: Viewer) -> None:
    page = seen.page
    press = page.keyboard.press
    page.goto(viewer.url)
    page.wait_for_selector(".run-card >> nth=2")
    press("/")
    page.keyboard.type("orch")
    press("Escape")
    press("Enter")
    page.wait_for_selector(".trow.on a")
    press("Enter")
    page.wait_for_selector("#turn-0")
    press("ArrowDown")
    press("n")  # the wrong one
    assert "count pears" in seen.text("#node-title")
    press("ArrowDown")
    press("ArrowRight")
    assert "plums in the cellar" in seen.text("#node-title")
    press("ArrowLeft")
    assert "count plums" in seen.text("#node-title")
    press(" ")
    assert page.locator(".rows-body .row").count() == 5
    press("2")
    page.wait_for_selector(".timeline")
    press("3")
    page.wait_for_selector(".icicle")
    press("1")
    press("w")
    seen.until("document.querySelectorAll('.rows-body .row').length === 1")
    press("w")
    press("/")
    page.keyboard.type("cellar")
    seen.until("document.querySelector('.count').textContent.includes('of 6')")
    press("Escape")
    press("?")
    page.wait_for_selector("dialog[open]")
    press("Escape")
    press("u")
    page.wait_for_selector(".table")


def test_selecting_a_node_leaves_the_drawing_as_it_is(seen: Seen, viewer: Viewer) -> None:
    page = seen.page
    for view, node in (("timeline", ".box"), ("budget", ".cell")):
        page.goto(viewer.url + TREE + f"?view={view}")
        page.wait_for_selector(f"{node}.on[data-node='0']")
        page.evaluate(f"window.first = document.querySelector('{node}')")
        page.keyboard.press("ArrowDown")
        page.wait_for_selector(f"{node}.on[data-node='1']")
        assert page.locator(f"{node}.on").count() == 1
        assert page.evaluate(f"window.first === document.querySelector('{node}')")
        page.hover(f"{node}[data-node='1']")
        assert "node 1: count apples" in page.locator(f"{node}[data-node='1'] title").text_content()
        page.check("text=only failures")
        seen.until(f"document.querySelectorAll('{node}.out').length === 5")
        page.set_viewport_size({"width": 1100, "height": 800})
        seen.until(f"window.first !== document.querySelector('{node}')")
        page.set_viewport_size({"width": 1280, "height": 800})


def test_shares_have_the_same_digits_in_the_page_and_in_the_report(seen: Seen, viewer: Viewer) -> None:
    values = [part / whole for whole in (1, 3, 7, 8, 96, 200, 384, 2000) for part in range(whole + 1)]
    values += [0.985, 0.005, 0.995, 0.9995, 0.99999, 1e-6, 0.145, 0.285, 0.0035, 0.00045, 1.5]
    seen.page.goto(viewer.url)
    shown = seen.page.evaluate("(values) => import('./dom.js').then(({ percent }) => values.map(percent))", values)
    assert shown == [share(value) for value in values]


def test_filters_show_the_nodes_that_pass(seen: Seen, viewer: Viewer) -> None:
    page = seen.page
    page.goto(viewer.url + TREE)
    page.wait_for_selector(".row >> nth=6")
    page.check("text=only failures")
    assert seen.text(".count") == "1 of 6 nodes"
    page.uncheck("text=only failures")
    page.select_option("label:has-text('depth') select", "2")
    assert seen.text(".count") == "1 of 6 nodes"
    page.select_option("label:has-text('depth') select", "")
    page.select_option("label:has-text('verdict') select", "exact")
    assert seen.text(".count") == "6 nodes"


def test_a_point_of_a_curve_opens_its_trees_and_two_of_them_are_compared(seen: Seen, viewer: Viewer) -> None:
    page = seen.page
    page.goto(viewer.url + "#/run/training")
    page.wait_for_selector(".heatmap")
    box = page.locator("svg.curve").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 14, box["y"] + 60)
    page.wait_for_selector(".trow a")
    assert "step=3" in page.url
    assert page.locator(".table-body .trow").count() == 8
    assert seen.text("button:has-text('✕')") == "step 4 ✕"  # shown from 1 up, as in the terminal
    assert page.locator(".table-body .c1").all_inner_texts() == ["4"] * 8
    page.goto(viewer.url + "#/run/begun")  # a training whose first step has not ended: curves will come here
    page.wait_for_selector("text=No step has ended yet")
    page.go_back()
    page.wait_for_selector(".table-body .trow:nth-child(5)")
    page.check(".table-body .trow:nth-child(3) input")
    page.check(".table-body .trow:nth-child(5) input")
    page.click("text=compare the two")
    page.wait_for_selector(".difference .said")
    assert page.locator(".sides .rows").count() == 2
    assert "Nodes:" in seen.text(".lead")
    page.goto(viewer.url + "#/run/training/tasks")
    page.wait_for_selector("table.plain tbody tr")
    assert "3 tasks in both" in seen.text(".lead")
    assert "evaluation after step 4 (3)" in seen.text("label:has-text('trees') select >> nth=1")
    page.goto(viewer.url + "#/run/training/tree/000003-000-001")
    page.click(".crumbs >> text=step 4")
    page.wait_for_selector("button:has-text('step 4 ✕')")


def test_of_a_supervised_start_the_loss_is_shown_and_the_rest_is_marked_as_the_oracles(
    seen: Seen, tmp_path: Path
) -> None:
    run = RunDir.create_at(tmp_path / "warm", kind="warmstart")
    for step, loss in enumerate((4.0, 1.0, 0.5)):
        run.log({"step": step, "success": 1.0, "delegated": 0.5, "tokens": 70.0, "loss": loss})
    with start([tmp_path]) as viewer:
        seen.page.goto(viewer.url)
        seen.page.wait_for_selector(".run-name")
        assert seen.text(".run-card .numbers") == "loss 0.500"
        seen.page.click(".run-name")
        seen.page.wait_for_selector("svg.curve")
        titles = seen.page.locator("figure.small figcaption b").all_inner_texts()
        assert titles == ["loss", "success (oracle)", "trees that delegate (oracle)", "tokens per tree (oracle)"]
        seen.page.goto("about:blank")


def test_a_running_tree_grows_on_the_page_and_is_read_when_it_is_stored(seen: Seen, tmp_path: Path) -> None:
    running = RunningTree(tmp_path / "running")
    page = seen.page
    try:
        with start([tmp_path]) as viewer:
            running.engine.words = 3
            page.goto(viewer.url + "#/run/running")
            page.click(".live-card")
            page.wait_for_selector(".streaming")
            assert "Four parts." in seen.text(".streaming")
            assert "running" in seen.text(".top")
            before = seen.text(".stat >> nth=0")
            running.engine.words = 9
            seen.until(f"document.querySelector('.stat').innerText.replace(/\\s+/g, ' ') !== {json.dumps(before)}")
            running.end()
            seen.until("document.querySelectorAll('.rows-body .row').length === 6")
            seen.until("!document.querySelector('.top .chip').innerText.includes('running')")
            page.wait_for_selector(".result >> text=7")
            RunDir.create_at(tmp_path / "later", kind="run")
            page.goto(viewer.url + "#/newest")  # the address that --view prints, opened late
            seen.until("location.hash === '#/run/later'")
            page.goto("about:blank")  # before the server ends: the page would ask it again
    finally:
        running.end()


def test_words_that_most_questions_begin_with_are_in_the_head_of_the_list(seen: Seen, tmp_path: Path) -> None:
    asked = [Task(question=f"Count the ships in {place}") for place in ("Oslo", "Rome", "Kiel")]
    RunDir.create(tmp_path, "ships").write([replace(scripted_tree(task.question), task=task) for task in asked])
    with start([tmp_path]) as viewer:
        seen.page.goto(viewer.url + "#/run/ships/trees")
        seen.page.get_by_text("Count the ships in …").wait_for()
        assert "… Kiel" in seen.text(".table-body")
        assert seen.text(".count") == "3 trees"
        seen.page.goto("about:blank")  # before the server ends: the page would ask it again


def test_on_a_phone_nothing_is_cut_off_and_the_node_opens_over_the_tree(browser: Any, viewer: Viewer) -> None:
    seen = Seen(browser, viewport={"width": 390, "height": 780}, has_touch=True)
    page = seen.page
    for place in ("", TREE, "#/run/training", "#/run/training/trees", TREE + "?view=timeline"):
        page.goto(viewer.url + place)
        page.wait_for_selector("main")
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(viewer.url + TREE)
    page.tap('.row[data-node="2"] .goal')
    assert page.is_visible("#node-title")
    assert not page.is_visible(".rows-body")
    page.tap(".close-node")
    assert page.is_visible(".rows-body")
    seen.context.close()
    assert seen.problems == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Any, viewer: Viewer, scheme: str) -> None:
    seen = Seen(browser, color_scheme=scheme)
    page = seen.page
    found: list[str] = []
    pages = [(TREE + "/node/2", ".result"), ("#/run/training", ".heatmap")]
    more = [
        (TREE + "?view=timeline", "svg"),
        (TREE + "?view=budget", "svg"),
        (COMPARED, ".compare .row"),
        ("", ".run-card"),
    ]
    pages += [*more, ("#/run/training/trees", ".trow a")] if scheme == "light" else []
    for place, ready in pages:
        page.goto(viewer.url + place)
        page.wait_for_selector(ready)
        found += axe(page)
    colours = page.evaluate("[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    seen.context.close()
    assert found == []
    assert (sum(map(int, colours[0][4:-1].split(","))) < 200) == (scheme == "dark")


def test_an_exported_file_is_the_same_page_without_a_server(seen: Seen, runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "tree.html"
    file.write_text(export([runs], ["orchard"]), encoding="utf-8")
    page = seen.page
    page.goto(file.as_uri() + TREE + "/node/2")
    page.wait_for_selector("text=there are 9 pears")
    page.click("text=shade by log-prob")
    assert page.locator("#turn-0 .t").count() > 2
    page.keyboard.press("3")
    assert page.locator(".icicle .cell").count() == 6
    page.fill("input[type=search]", "cellar")
    seen.until("document.querySelector('.count').textContent.includes('of 6')")
    page.goto(file.as_uri() + "#/run/orchard/trees")
    page.wait_for_selector(".trow a")
    assert page.title() != "owned"

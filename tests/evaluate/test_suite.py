"""The pinned suite: what its hash covers, its card, and which cards are compared."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import ramet
from ramet.evaluate.format import points, verdict
from ramet.evaluate.run import Progress
from ramet.evaluate.statistics import Difference
from ramet.evaluate.suite.card import compare_cards, headline, read_card, write_card
from ramet.evaluate.suite.definition import SUITES, Part, Suite, check_size, find_suite, suite_hash
from ramet.evaluate.suite.run import resolve_suite, run_suite
from ramet.report.card import card_page

QUICK = "fc6c4c225905b7c2eda29df79057eb818ee8237419e01af267cbe4537e0378bb"
FULL = "fcc205e7f3b0823100570f2a9a22a6efbf4a49a98d2909b49869d147e996615d"
DELEGATION = SUITES["delegation-1"]
SMALL = Suite(
    name="small-1",
    about="does it pay?",
    parts=(
        Part(name="sums", about="compute", task="arithmetic:eval", tokens=400),
        Part(name="codes", about="decode", task="codes:eval", tokens=400),
    ),
    num_tasks={"quick": 8, "full": 9},
)
# Right with clones; alone on `alone` tasks of eight.
ENGINE = """
from pathlib import Path
from ramet import EngineError, ScriptedEngine, load_taskset
from ramet.tasks.oracle import script

class Model:
    def __init__(self, alone: int = 0):
        self.oracles, self.alone, self.calls = {}, alone, 0
        for name in ("arithmetic", "codes"):
            taskset = load_taskset(name)
            for index in range(8):
                task = taskset.task("eval", index)
                self.oracles[task.question] = (index, script(taskset.oracle(task, delegate=False, seed=0), "tools"))
        self.inner = ScriptedEngine(self.reply, token_ids=False)
        self.renderer = self.inner.renderer

    def reply(self, prompt):
        self.calls += 1
        if self.calls > 70 and Path(__file__).with_name("down").exists():
            raise EngineError("the server is gone")
        index, oracle = self.oracles[prompt.goal]
        can_delegate = "delegate" in prompt.messages[0].content
        return oracle(prompt) if can_delegate or index < self.alone else "Answer: I do not know"

    async def sample(self, prompt, **options):
        return await self.inner.sample(prompt, **options)
"""


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


def run_small(tmp_path: Path, *, alone: int = 0, name: str = "m", **callbacks: Any) -> dict[str, Any]:
    (tmp_path / "my_model.py").write_text(ENGINE, encoding="utf-8")
    words = [f"engine.kind={tmp_path}/my_model.py:Model", f"engine.model={name}"]
    words += [f"engine.options.alone={alone}", "budget.prices.generated=1"]
    plan = resolve_suite(SMALL, "quick", words=words, into=tmp_path / name)
    return run_suite(plan, **callbacks)


def test_the_suite_has_not_changed() -> None:
    """A change to tasks, budgets, methods, seeds or prompts makes cards incomparable: it is a new suite."""
    assert suite_hash(DELEGATION, "quick") == QUICK
    assert suite_hash(DELEGATION, "full") == FULL


def test_the_hash_covers_all_that_is_pinned() -> None:
    first = SMALL.parts[0]
    others = [
        replace(SMALL, seed=2),
        replace(SMALL, temperature=0.0),
        replace(SMALL, limits={"nodes": 3}),
        replace(SMALL, num_tasks={"quick": 7, "full": 9}),
        replace(SMALL, parts=(replace(first, tokens=401), SMALL.parts[1])),
        replace(SMALL, parts=(replace(first, taskset={"digits": 2}), SMALL.parts[1])),
        replace(SMALL, parts=(replace(first, task="arithmetic:long"), SMALL.parts[1])),
        replace(SMALL, name="small-2"),
    ]
    hashes = {suite_hash(suite, "quick") for suite in (SMALL, *others)}
    hashes |= {suite_hash(SMALL, "full"), suite_hash(SMALL, "quick", dialect="python")}
    assert len(hashes) == len(others) + 3
    assert suite_hash(SMALL, "quick") == suite_hash(replace(SMALL), "quick")


def test_a_card_says_where_delegation_pays_and_what_it_costs(tmp_path: Path) -> None:
    shown: list[Progress] = []
    card = run_small(tmp_path, alone=1, on_progress=shown.append)
    assert (card["complete"], card["size"], card["hash"]) == (True, "quick", suite_hash(SMALL, "quick"))
    assert "server" not in card["model"]
    sums = card["parts"][0]
    assert [(cell["method"], cell["accuracy"]["value"]) for cell in sums["cells"]] == [
        ("single", 0.125),
        ("vote@4", 0.125),
        ("clones", 1.0),
    ]
    alone, vote = sums["comparisons"]
    assert (alone["against"], alone["pays"], alone["difference"]["value"]) == ("single", "pays", 0.875)
    assert alone["cost"]["generated"] > 1
    assert alone["cost"]["dollars"] == pytest.approx(alone["cost"]["generated"])
    assert vote["cost"]["generated"] == pytest.approx(alone["cost"]["generated"] / 4)
    assert headline(card)[0].startswith("Over all 16 items delegation pays: +88 [")
    assert headline(card)[-1] == "Where it was allowed to, the model delegated in 0% of the items."
    assert (shown[-1].done, shown[-1].total, shown[-1].cells) == (48, 48, 2)


def test_an_interrupted_suite_goes_on_where_it_stopped(tmp_path: Path) -> None:
    (tmp_path / "down").touch()
    with pytest.raises(ramet.EngineError, match="the server is gone"):
        run_small(tmp_path)
    (tmp_path / "down").unlink()
    cards: list[dict[str, Any]] = []
    shown: list[Progress] = []
    card = run_small(tmp_path, on_card=cards.append, on_progress=shown.append)
    assert card["complete"]
    assert [len(card["parts"]) for card in cards] == [1, 2]  # a card after every part
    (missing,) = cards[0]["skipped"]
    assert missing["reason"] == "not finished yet: run the same command again"
    assert shown[1].done >= 5  # items of both parts that were finished when the server went
    assert (shown[-1].done, shown[-1].cells_done) == (48, 2)
    again: list[Progress] = []
    assert run_small(tmp_path, on_progress=again.append) == card
    assert again == []


def test_like_cards_are_compared_item_by_item_and_others_are_refused(tmp_path: Path) -> None:
    one, two = run_small(tmp_path, alone=0, name="a"), run_small(tmp_path, alone=8, name="b")
    for card, name in ((one, "one"), (two, "two")):
        write_card(card, tmp_path / f"{name}.json")
    rows = compare_cards(read_card(tmp_path / "one.json"), read_card(tmp_path / "two.json"))
    found = {(row["part"], row["method"]): (row["first"], row["second"], row["verdict"]) for row in rows}
    assert found["sums", "single"] == (0.0, 1.0, "better")
    assert found["codes", "clones"] == (1.0, 1.0, "no item differs")
    for name, value in (("hash", "f" * 64), ("size", "full"), ("dialect", "python"), ("suite", "small-2"), ("card", 2)):
        with pytest.raises(ramet.ConfigError, match=f"cannot be compared: their {name} differs"):
            compare_cards(one, {**two, name: value})
    fewer = json.loads(json.dumps(two))
    fewer["parts"][0]["scores"][0]["items"].popitem()
    with pytest.raises(ramet.ConfigError, match="sums has other items"):
        compare_cards(one, fewer)


def test_a_file_that_is_no_card_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    (tmp_path / "y.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ramet.ConfigError, match="is not a card of a suite"):
        read_card(tmp_path / "x.json")
    with pytest.raises(ramet.ConfigError, match="is not JSON"):
        read_card(tmp_path / "y.json")
    with pytest.raises(ramet.ConfigError, match="is not JSON"):
        read_card(tmp_path / "deep.json")
    with pytest.raises(ramet.ConfigError, match=r"cannot read .*: No such file"):
        read_card(tmp_path / "z.json")
    with pytest.raises(ramet.ConfigError, match=r"is a directory without card.json: give the card.json that .* wrote"):
        read_card(tmp_path)


def test_a_directory_stands_for_the_card_in_it(tmp_path: Path) -> None:
    card = run_small(tmp_path, alone=1)
    write_card(card, tmp_path / "card.json")
    assert read_card(tmp_path) == read_card(tmp_path / "card.json") == card


@pytest.mark.parametrize(
    ("gap", "shown", "sentence", "overall"),
    [
        (Difference(0.9, 0.6, 1.0, 8, 7, None), "better", "Delegation pays in {}", "delegation pays: "),
        (Difference(-0.9, -1.0, -0.6, 8, 7, None), "worse", "Delegation makes {} worse", "delegation does not pay: "),
        (
            Difference(0.5, 0.1, 0.9, 8, 4, 12),
            "only 4 items differ",
            "Too few items differ to tell in {}",
            "no difference can be shown (only 4 items differ): ",
        ),
        (
            Difference(0.0, 0.0, 0.0, 8, 0, None),
            "no item differs",
            "Too few items differ to tell in {}",
            "no difference can be shown (no item differs): ",
        ),
        (
            Difference(0.1, -0.4, 0.6, 8, 7, 90),
            "cannot tell",
            "No difference can be shown in {}",
            "no difference can be shown: ",
        ),
        (
            Difference(0.625, 0.125, 1.0, 8, 7, 12, 0.125),
            "cannot tell (p = 0.12)",
            "No difference can be shown in {}",
            "no difference can be shown: ",
        ),
    ],
)
def test_plot_tables_and_sentences_of_a_card_agree(
    tmp_path: Path, gap: Difference, shown: str, sentence: str, overall: str
) -> None:
    card = run_small(tmp_path, alone=1)
    fact = {"difference": asdict(gap), "points": points(gap), "verdict": verdict(gap), "pays": "not read"}
    for part in card["parts"]:
        part["comparisons"] = [one | fact for one in part["comparisons"]]
    card["overall"] = [one | fact for one in card["overall"]]
    names = " and ".join(f"{part['name']} ({points(gap)} points)" for part in card["parts"])
    lines = headline(card)
    assert lines[0] == f"Over all 8 items {overall}{points(gap)} points."
    assert lines[1] == f"{sentence.format(names)}."
    page = card_page(card)
    assert page.count(f">{points(gap)}  {shown}</text>") == 2  # beside the plot
    assert page.count(f">{verdict(gap)}</td>") == 4  # in the tables: two parts, two methods
    assert verdict(gap).startswith(shown)


@pytest.mark.parametrize(
    ("words", "flags", "named"),
    [
        (["budget.nodes=3"], {}, "pins budget.nodes"),
        ([], {"num_tasks": 3}, "pins num_tasks"),
        ([], {"budget.window": 3}, "pins budget.window"),
        (["taskset.digits=1"], {}, "pins taskset"),
        ([], {}, "which model?"),
    ],
)
def test_what_a_suite_pins_cannot_be_set(words: list[str], flags: dict[str, Any], named: str) -> None:
    with pytest.raises(ramet.ConfigError, match=named):
        resolve_suite(DELEGATION, "quick", words=words, flags=flags)
    with pytest.raises(ramet.ConfigError, match="did you mean delegation-1"):
        find_suite("suite:delegation")
    with pytest.raises(ramet.ConfigError, match="quick or full; got 'big'"):
        check_size("big")


def test_a_part_that_the_model_cannot_take_is_left_out_with_the_reason(tmp_path: Path) -> None:
    suite = replace(SMALL, parts=(*SMALL.parts, Part(name="craft", about="craft", task="craft:easy", tokens=400)))
    (tmp_path / "my_model.py").write_text(ENGINE, encoding="utf-8")
    words = [f"engine.kind={tmp_path}/my_model.py:Model", "engine.model=m", "dialect=terse"]
    card = run_suite(resolve_suite(suite, "quick", words=words, into=tmp_path / "m"))
    assert [part["name"] for part in card["skipped"]] == ["craft"]
    assert "terse" in card["skipped"][0]["reason"]
    assert not card["complete"]


def test_the_page_of_a_card_has_its_findings_and_no_markup_of_a_model(tmp_path: Path) -> None:
    card = run_small(tmp_path, alone=1)
    page = card_page({**card, "model": {"model": "<script>x</script>"}, "skipped": [{"name": "a", "reason": "<b>"}]})
    assert "&lt;script&gt;x" in page
    assert "<script>" not in page
    assert "<b>:" not in page
    assert "Delegation pays in sums" in page
    assert "http" not in page.replace("http://www.w3.org", "")

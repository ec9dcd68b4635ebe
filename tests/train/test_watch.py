"""When a run has failed: worked out from logged metrics alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ramet.errors import ConfigError
from ramet.train.settings import StopConfig
from ramet.train.watch import STOPPED, delegation_note, evaluation_value, moving_means, stop_reason, stop_rule


def records(*success: float | None, flat: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{"step": step, "success": value, "groups": 2, "flat": flat, **more} for step, value in enumerate(success)]


def reasons(success: list[float], **settings: Any) -> list[int]:
    """The steps after which a run with this success would stop."""
    stop = StopConfig(**settings)
    return [end for end in range(1, len(success) + 1) if stop_reason(records(*success[:end]), stop)]


def test_a_run_stops_when_success_has_lost_all_but_a_fraction_of_its_best() -> None:
    # Means over two steps: 0.3, 0.5, 0.4, 0.2, 0.1, 0.0.
    success = [0.2, 0.4, 0.6, 0.2, 0.2, 0.0, 0.0]
    assert reasons(success, window=2, fraction=0.25) == [6, 7]
    assert reasons(success, window=2, fraction=0.5) == [5, 6, 7]
    assert reasons(success, window=2, fraction=0.0) == []
    assert reasons(success, window=8, fraction=0.5) == []


def test_the_reason_is_one_sentence_with_both_numbers() -> None:
    said = stop_reason(records(0.5, 0.5, 0.0, 0.01), StopConfig(window=2))
    assert said == "success fell to 0.5% over the last 2 steps, from 50.0% at its best"


def test_a_best_that_is_luck_is_nothing_to_fall_from() -> None:
    assert reasons([0.09, 0.0], window=1) == []
    assert reasons([0.1, 0.0], window=1) == [2]
    assert reasons([0.09, 0.0], window=1, least=0.05) == [2]


@pytest.mark.parametrize(
    "success",
    [
        [0.0] * 100,  # has not learnt anything yet
        [1.0] * 100,
        [0.02, 0.43] * 50,  # tasks of very different difficulty
        [0.9] * 30 + [0.15] * 70,  # harder tasks, or a bad patch
        [0.43] * 20 + [0.0] * 6 + [0.3] * 20,
    ],
)
def test_the_defaults_do_not_stop_a_run_that_still_learns(success: list[float]) -> None:
    assert reasons(success) == []


def test_the_defaults_stop_the_run_that_collapsed() -> None:
    """About the success of a real run by step, which went on for 66 more steps."""
    success = [0.05] * 10 + [0.28] * 5 + [0.3] * 10 + [0.09, 0.05, 0.03, 0.0] + [0.0] * 20
    # The best ten steps have a mean of 0.3. The last ten have 0.047 after step 34, and 0.017 after step 35.
    assert reasons(success)[0] == 35


def test_a_run_stops_after_so_many_steps_without_signal() -> None:
    stop = StopConfig(no_signal_steps=3)
    flat, lively = records(0.0, 0.0, 0.0, flat=2), records(0.0, flat=1)
    assert stop_reason(flat[:2], stop) is None
    assert stop_reason(lively + flat, stop) == ("no signal in 3 steps: all trees of each group earned the same")
    assert stop_reason([*flat[:2], *lively, *flat[:2]], stop) is None
    assert stop_reason(flat, StopConfig(no_signal_steps=0)) is None


def test_demonstrations_have_no_groups_and_never_stop_a_run() -> None:
    assert stop_reason([{"step": 0, "success": 1.0}], StopConfig(no_signal_steps=1)) is None


def test_a_run_that_is_resumed_after_it_stopped_starts_with_a_clean_record() -> None:
    stop = StopConfig(no_signal_steps=2, window=1)
    before = [*records(0.9), *records(0.0, flat=2)]
    before[-1] |= {STOPPED: "success fell"}
    assert stop_reason([*before, *records(0.0, flat=2)], stop) is None
    assert stop_reason([*before, *records(0.0, 0.0, flat=2)], stop) is not None


def delegating(*shares: float) -> list[dict[str, Any]]:
    """Steps of ten trees; a fifth of those that delegate are right, and four fifths of the others."""
    return [
        {
            "trees": 10,
            "delegated": share,
            "trees_delegated": round(10 * share),
            "success_delegated": 0.2 if share else None,
            "success_alone": 0.8,
        }
        for share in shares
    ]


def test_the_step_at_which_trees_cease_to_delegate_has_a_note() -> None:
    steps = delegating(0.4, 0.6, 0.2, 0.0, 0.0, 0.0)
    noted = [end for end in range(1, len(steps) + 1) if delegation_note(steps[:end], 2)]
    assert noted == [5]  # the means over two steps: 0.5, 0.4, 0.1, 0.0, 0.0
    assert delegation_note(steps[:5], 2) == (
        "trees have ceased to delegate: 0.0% over the last 2 steps, 50% over the first. Of those first trees, "
        "20% that delegated were right, and 80% of the others"
    )


def test_a_run_that_never_delegated_much_or_still_does_has_no_note() -> None:
    assert delegation_note(delegating(0.0, 0.1, 0.0, 0.0), 2) is None
    assert delegation_note(delegating(0.5, 0.5, 0.1, 0.1), 2) is None
    assert delegation_note([{"success": 1.0}] * 4, 2) is None


def test_the_shares_of_a_note_count_trees() -> None:
    steps = delegating(0.1, 0.9, 0.0, 0.0)
    steps[0] |= {"success_delegated": 1.0, "success_alone": 0.0}  # 1 of 1 and 1.8 of 9; 0 of 9 and 0.8 of 1
    said = delegation_note(steps, 2)
    assert said is not None
    assert "28% that delegated were right, and 8% of the others" in said


def test_steps_without_a_verdict_are_left_out_of_means() -> None:
    assert moving_means([None, 0.0, None, 0.5, 1.0], 2) == [0.25, 0.75]
    assert moving_means([1.0], 2) == []


def test_the_best_model_is_chosen_by_success_or_else_by_score() -> None:
    assert evaluation_value({"eval_success": 0.0, "eval_score": 0.4}) == 0.0
    assert evaluation_value({"eval_success": None, "eval_score": 0.4}) == 0.4
    assert evaluation_value({"success": 0.5}) is None


def test_a_rule_of_your_own_stops_a_run_with_its_reason(tmp_path: Path) -> None:
    file = tmp_path / "enough.py"
    file.write_text("def enough(metrics):\n    return 'good enough' if metrics[-1]['success'] > 0.8 else None\n")
    stop = StopConfig(when=f"{file}:enough")
    assert stop_reason(records(0.9, 0.7), stop, stop_rule(stop)) is None
    assert stop_reason(records(0.7, 0.9), stop, stop_rule(stop)) == "good enough"
    assert stop_rule(StopConfig()) is None


def test_a_rule_of_your_own_sees_only_the_steps_since_the_last_stop() -> None:
    before = records(0.9, 0.9)
    before[-1][STOPPED] = "good enough"
    seen: list[int] = []
    assert stop_reason([*before, *records(0.1, 0.2)], StopConfig(), lambda recent: seen.append(len(recent))) is None
    assert seen == [2]


def test_a_rule_of_your_own_returns_a_reason_or_none() -> None:
    with pytest.raises(ConfigError, match=r"stop\.when must return a text.*; got True"):
        stop_reason(records(0.5), StopConfig(), lambda recent: True)

"""Failing histories are reduced, and the printed command repeats them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.__main__ import main
from tests.simulation.shrink import kind_of, shrink, shrunk


@given(st.sets(st.integers(0, 40)), st.data())
def test_shrinking_keeps_exactly_the_guilty_items(items: set[int], data: st.DataObject) -> None:
    guilty = data.draw(st.sets(st.sampled_from(sorted(items)))) if items else set[int]()
    left = shrunk(sorted(items), lambda some: guilty <= set(some))
    assert set(left) == guilty


def test_a_different_failure_is_not_a_smaller_one() -> None:
    def broken_with(faults: tuple[int, ...], apps: tuple[int, ...]) -> str:
        if {3, 4} <= set(faults) and 0 in apps:
            return "seed 1, at 2.3 s, record 4: generations [1, 2] of app0-abc run at once"
        return "seed 1, at 9 s, record 7: something else"

    smaller = shrink(range(10), range(3), broken_with)
    assert (set(smaller.faults), set(smaller.apps)) == ({3, 4}, {0})


def test_numbers_and_names_do_not_make_another_failure() -> None:
    one = "seed 1, at 2.3 s, record 4: slot 0 of app2-764zbv generation 7 is started a second time"
    two = "seed 1, at 71.125 s, record 1230: slot 3 of app0-pyjoqd generation 12 is started a second time"
    assert kind_of(one) == kind_of(two) == "slot # of # generation # is started a second time"


def test_the_command_reports_a_failure_and_how_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--seed", "0", "--variant", "released without room"]
    assert main(words) == 1
    said = capsys.readouterr().out
    assert '--seed 0 --variant "released without room" --trace' in said
    assert main([*words, "--shrink"]) == 1
    assert "--only" in capsys.readouterr().out


@pytest.mark.soak
def test_the_command_gives_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--jobs", "1", "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["seeds"], report["seeds_failed"], report["submissions_lost"]) == (3, 0, 0)
    assert report["faults_injected"] == sum(report["faults"].values()) > 0

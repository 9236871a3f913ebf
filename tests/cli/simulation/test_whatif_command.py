"""`dorm whatif`, and `dorm explain` for a waiting app: their output on logs of simulations."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from dorm.cli.whatif import length
from replay.export.export import export
from replay.simulator.simulation import Simulation
from tests.golden.made import archives
from tests.replay.made_log import log_of
from tests.simulator.histories import busy, seq_at, trained, written

if TYPE_CHECKING:
    from pathlib import Path

    from events.log.records import Record
    from tests.cli.conftest import Dorm


@pytest.fixture(scope="module")
def records() -> list[Record]:
    apps = (
        trained("first", 0, 2000, n_max=8),
        trained("second", 60, 2700, n_max=6, steps=27_000),
        trained("waits", 300, 500, n_min=4, n_max=8),
    )
    return written(Simulation(busy(apps=apps, policy="static", params={"count": 4})))


@pytest.fixture(scope="module")
def log_file(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whatif") / "log.dorm"
    asyncio.run(export(log_of(records), path))
    return path


def test_for_people(here: Dorm, log_file: Path, records: list[Record]) -> None:
    code, out, err = here("whatif", "--file", log_file, "--from", seq_at(records, 200), "--set", "count=2")
    assert (code, err) == (0, "")
    assert "if: count = 2 (now 4)" in out
    assert "backtest: completion ±" in out
    lines = out.splitlines()
    for course in ("really", "unchanged", "changed"):
        assert any(line.startswith(course) for line in lines)
    assert "ADJUSTMENTS" in out
    for app in ("first", "second", "waits"):
        assert any(line.startswith(f"{app} ") and "known" in line for line in lines)
    code, out, _ = here("whatif", "--file", log_file, "--from", "-5m")
    assert code == 0
    assert "nothing is changed" in out
    assert "CHANGED  " not in out.replace("UNCHANGED", "")


def test_differences_are_shown_with_the_error(here: Dorm, log_file: Path, records: list[Record]) -> None:
    """More weight for one of two apps at n_max changes nothing; a node for the waiting one does."""
    begin = ("--file", log_file, "--from", seq_at(records, 200))
    code, out, _ = here("whatif", *begin, "--edit", "first:weight=2")
    assert code == 0
    assert "changed − unchanged: mean completion none (+0.00 %), within the backtest's error" in out
    assert "DIFFERENCE" in out
    code, out, _ = here("whatif", *begin, "--nodes", "+1,like=n0")
    text = " ".join(out.split())
    assert "more than the backtest's error (±" in text
    assert "changed − unchanged: mean completion −" in text
    assert " (−" in text
    assert "WAIT and ADJUSTED are of the changed run" in text
    code, out, _ = here("whatif", *begin, "--nodes", "+1,like=n0", "-o", "json")
    found = json.loads(out)
    means = [found[course]["mean_completion_s"] for course in ("changed", "unchanged")]
    assert found["completion_difference_s"] == pytest.approx(means[0] - means[1])
    assert found["completion_difference_s"] < -60
    assert found["within_error"] is False
    code, out, _ = here("whatif", *begin)
    assert "DIFFERENCE" not in out
    assert "changed −" not in out


def test_a_simulation_that_is_far_off_warns(here: Dorm, log_file: Path, records: list[Record]) -> None:
    """Of the one app that ends after the fork in this old log little was told.  An error of milliseconds, as of the second,
    is none, however large a part of what was left it is."""
    old, incident = (next(path for path in archives() if path.stem == name) for name in ("0.3.0", "incident"))
    for file, seq, warns in ((old, 40, True), (incident, 120, False), (log_file, seq_at(records, 200), False)):
        code, out, _ = here("whatif", "--file", file, "--from", seq)
        assert code == 0
        assert ("far off; do not rely on this" in out) is warns
        assert "e+" not in out
        assert "1 apps" not in out


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.0, "0.00 s"), (9.99, "9.99 s"), (119.7, "120 s"), (791.0, "13.2 min"), (9000, "2.50 h"), (1e8, "1157 days")],
)
def test_lengths_have_three_digits(seconds: float, words: str) -> None:
    assert length(seconds) == words


def test_for_programs(here: Dorm, log_file: Path, records: list[Record]) -> None:
    words = ("--from", seq_at(records, 200), "--nodes", "+1,like=n0", "--edit", "waits:n_max=4,weight=2")
    code, out, _ = here("whatif", "--file", log_file, *words, "-o", "json")
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    assert found["backtest"]["completion_error"] < 0.01
    assert found["backtest"]["hindsight"] is True
    assert len(found["assumed"]) == 2
    apps = {app["name"]: app for app in found["apps"]}
    assert apps["waits"]["changed"]["wait_s"] < apps["waits"]["really"]["wait_s"]
    assert apps["waits"]["unchanged"]["wait_s"] == pytest.approx(apps["waits"]["really"]["wait_s"], abs=1)
    assert found["changed"]["mean_completion_s"] < found["really"]["mean_completion_s"]


def test_its_log_is_a_log(here: Dorm, log_file: Path, records: list[Record], tmp_path: Path) -> None:
    kept = tmp_path / "changed.dorm"
    seq = seq_at(records, 200)
    for force in ((), ("--force",)):
        code, _, err = here("whatif", "--file", log_file, "--from", seq, "--cancel", "first", "--log", kept, *force)
        assert (code, err) == (0, "")
    code, _, err = here("whatif", "--file", log_file, "--from", seq, "--cancel", "first", "--log", kept)
    assert code == 1
    assert str(kept) in err
    code, out, _ = here("replay", "verify", "--file", kept)
    assert code == 0
    assert f"the log starts after sequence {seq}" in out
    code, out, _ = here("explain", "first", "--brief", "--file", kept)
    assert code == 0
    assert "first cancelled" in out


def test_a_fork_at_the_end_lists_its_guesses(here: Dorm, records: list[Record], tmp_path: Path) -> None:
    path = tmp_path / "part.dorm"
    asyncio.run(export(log_of(records[: seq_at(records, 320)]), path))
    code, out, _ = here("whatif", "--file", path, "--horizon", "2h")
    assert code == 0
    assert "backtest: none possible" in out
    assert "really" not in out
    assert "is a guess: first" in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--from", "never"), 2, "[moment.malformed]"),
        (("--horizon", "soon"), 2, "not a duration"),
        (("--horizon", "0s"), 2, "[usage.horizon.zero]"),
        (("--edit", "first"), 2, "write APP:n_max=8"),
        (("--edit", "first:size=3"), 2, "unknown field size"),
        (("--edit", "first:n_max=0"), 2, "n_max"),
        (("--set", "theta2=1"), 2, "theta2"),
        (("--policy", "nosuch"), 2, "nosuch"),
        (("--policy", "dorm", "--set", "policy=static"), 2, "two policies"),
        (("--nodes", "+3"), 2, "write +3"),
        (("--nodes", "-elsewhere"), 1, "there is no node 'elsewhere'"),
        (("--cancel", "nobody"), 1, "there is no app 'nobody'"),
        ((), 1, "fork the log earlier"),
    ],
)
def test_refusals_in_one_line(here: Dorm, log_file: Path, words: tuple[str, ...], code: int, said: str) -> None:
    begin = () if "--from" in words or not words else ("--from", "20")
    got, out, err = here("whatif", "--file", log_file, *begin, *words)
    assert (got, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert said in err


def test_explain_forecasts_when_an_app_will_start(here: Dorm, log_file: Path, records: list[Record]) -> None:
    at = seq_at(records, 320)
    code, out, _ = here("explain", "waits", "--at", at, "--file", log_file)
    assert code == 0
    text = " ".join(out.split())
    assert "It will start in about " in text
    assert "if no other app is submitted, no node fails and the remaining work of first is between half" in text
    code, out, _ = here("explain", "waits", "--at", at, "--file", log_file, "-o", "json")
    start = json.loads(out)["start"]
    assert 0 < start["earliest_s"] <= start["latest_s"]
    assert start["assumptions"]
    assert start["text"] in text
    code, out, _ = here("explain", "waits", "--at", at, "--file", log_file, "--brief")
    assert "It will start" not in out
    code, out, _ = here("explain", "first", "--at", at, "--file", log_file, "-o", "json")
    assert json.loads(out)["start"] is None

"""`dorm history` on an exported log; nothing differs on a cluster but where the log is."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

from dorm.cli.history import bars
from replay.comparison import FieldOfSeveral, differing
from replay.export.export import export
from tests.replay.made_log import log_of
from tests.replay.past.test_past import long_story

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dorm


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("past") / "log.dorm"
    asyncio.run(export(log_of(long_story().records), path))
    return path


def test_a_table_and_documents(here: Dorm, file: Path) -> None:
    code, out, err = here("history", "--file", file, "-n", 3)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["NAME", "app-11", "app-10", "app-09", "and"]
    found = json.loads(here("history", "--file", file, "-m", "lr<0.2", "--sort", "loss", "-o", "json")[1])
    assert [(row["name"], row["parameters"]["lr"], row["state"]) for row in found] == [
        ("app-01", 0.1, "completed"), ("app-00", 0.0, "completed"),
    ]  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(here("history", "--file", file, "--state", "failed", "-o", "csv")[1])))
    assert next((row["name"], row["lr"], row["opt"]) for row in rows) == ("app-11", "1.1", "adam")
    assert here("history", "--file", file, "-m", "loss<0")[1].startswith("no apps that match among 13 apps")


def test_missing_progress_is_not_shown_as_step_0(here: Dorm, file: Path) -> None:
    steps = []
    for words in (("--state", "live"), ("app-00",)):
        _, row = here("history", "--file", file, *words)[1].splitlines()
        steps.append(row.split()[2:4])
    assert steps == [["-", "-"], ["0", "1"]]


def test_several_side_by_side(here: Dorm, file: Path) -> None:
    code, out, err = here("history", "app-00", "app-01", "app-03", "--compare", "--file", file)
    assert (code, err) == (0, "")
    assert "group.parameters.lr" in out
    assert "given, core-hours" in out
    assert "loss over" in out
    found = json.loads(here("history", "app-00", "app-01", "--compare", "--file", file, "-o", "json")[1])
    assert [side["name"] for side in found["apps"]] == ["app-00", "app-01"]
    assert {"field": "group.parameters.lr", "values": [0.0, 0.1]} in found["spec"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--metric", "loss"], "history.metric.malformed"),
        (["--sort", "a b"], "history.order.malformed"),
        (["--state", "done"], "usage.bad_parameter"),
        (["--since", "soon"], "moment.malformed"),
        (["app-00", "--compare"], "usage.nothing_to_do"),
        (["a", "b", "--compare", "-o", "csv"], "usage.conflict"),
        (["app-00", "none", "--compare"], "app.not_found"),
        (["--since", "99999"], "moment.after_end"),
    ],
)
def test_ambiguous_requests_are_refused(here: Dorm, file: Path, words: list[str], code: str) -> None:
    exit_code, out, err = here("history", *words, "--file", file)
    assert (exit_code in (1, 2), out, len(err.splitlines())) == (True, "", 1)
    assert f"[{code}]" in err


def test_curves_and_differences() -> None:
    assert bars([], 10, 0, 1).strip() == ""
    drawn = bars([(0, 1.0), (5, 0.5), (10, 0.0)], 10, 0, 1)
    assert (len(drawn), drawn[0], drawn[20], drawn[-1]) == (40, "█", "▅", "▁")
    assert bars([(5, 2.0)], 10, 2.0, 2.0).strip() == "▁"
    specs = [
        {"name": "a", "demand": {"cpu": 1}, "n": 1},
        {"name": "b", "demand": {"cpu": 2}, "n": 1},
        {"name": "c", "n": 1},
    ]
    assert differing(specs) == [FieldOfSeveral("demand.cpu", [1, 2, None])]

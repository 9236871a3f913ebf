"""The form of results, and how samples are summed up."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import msgspec
import pytest

from dorm.bench import BenchError
from dorm.bench.report import Figure, Report, figure, percentile, spread, this_machine
from tests.errors import raises

SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["bench", "machine", "settings", "figures"],
    "properties": {
        "bench": {"type": "string", "pattern": "^[a-z]+(-[a-z]+)*$"},
        "machine": {
            "type": "object",
            "additionalProperties": False,
            "required": ["cpu", "cores", "memory", "kernel", "python", "load"],
            "properties": {
                "cpu": {"type": "string", "minLength": 1},
                "cores": {"type": "integer", "minimum": 1},
                "memory": {"type": "integer", "minimum": 1},
                "kernel": {"type": "string", "minLength": 1},
                "python": {"type": "string", "pattern": "3\\."},
                "load": {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3},
            },
        },
        "settings": {"type": "object", "minProperties": 1},
        "figures": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": False,
            "patternProperties": {
                # A unit at the end, or for a count the counted thing at the start.
                "^[a-z][a-z0-9_]*_(us|s|steps|mean|ratio|p50|p95|p99|max|count|instances|mb|event|record)$|^instances$"
                "|^(faults|submissions|generations|apps|containers|divergences)(_[a-z]+)*$"
                "|^(rounds|epochs|samples|schedules)(_[a-z0-9]+)*$": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["value", "unit"],
                    "properties": {
                        "value": {"type": "number"},
                        "unit": {
                            "enum": [
                                "us",
                                "s",
                                "events/s",
                                "steps",
                                "ratio",
                                "share",
                                "apps",
                                "containers",
                                "instances",
                                "count",
                                "MiB",
                                "records/s",
                                "decisions/s",
                                "bytes",
                            ]
                        },
                        "goal": {"type": "string", "pattern": "^(>=|<=) [0-9.]+$"},
                    },
                }
            },
        },
    },
}


def checked(text: str | bytes) -> dict[str, Any]:
    """A printed result, if it has the one form."""
    document: dict[str, Any] = json.loads(text)
    jsonschema.validate(document, SCHEMA)
    return document


def report(**figures: Figure) -> Report:
    return Report(bench="some", machine=this_machine(), settings={"runs": 1}, figures=figures)


def test_a_report_has_the_form_and_leaves_out_a_goal_that_is_not_set() -> None:
    made = report(all_s=figure(1.5, "s", "<= 2"), part_s=figure(0.5, "s"))
    document = checked(msgspec.json.encode(made))
    assert document["figures"] == {
        "all_s": {"value": 1.5, "unit": "s", "goal": "<= 2"},
        "part_s": {"value": 0.5, "unit": "s"},
    }
    assert msgspec.json.decode(msgspec.json.encode(made), type=Report) == made


@pytest.mark.parametrize(
    ("value", "goal", "reached"),
    [(2.0, "<= 2", True), (2.1, "<= 2", False), (700_000, ">= 700000", True), (1, ">= 1.5", False), (1, None, None)],
)
def test_a_goal_is_reached_or_not_or_not_set(value: float, goal: str | None, reached: bool | None) -> None:
    assert figure(value, "s", goal).reached is reached


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_numbers_are_not_measurements(value: float) -> None:
    with raises(BenchError, "bench.not_a_number"):
        figure(value, "s")


def test_percentiles_lie_between_the_closest_ranks() -> None:
    assert percentile([5.0], 95) == 5.0
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([float(n) for n in range(101)], 95) == 95.0
    assert percentile([1.0, 2.0], 0) == 1.0
    assert percentile([1.0, 2.0], 100) == 2.0
    with raises(BenchError, "bench.nothing_measured"):
        percentile([], 50)


def test_a_spread_sets_its_goal_on_the_median() -> None:
    found = spread("docker_restart", [1.0, 2.0, 3.0], "<= 1.5")
    assert list(found) == ["docker_restart_p50_s", "docker_restart_p95_s"]
    assert found["docker_restart_p50_s"] == Figure(2.0, "s", "<= 1.5")
    assert found["docker_restart_p95_s"].goal is msgspec.UNSET

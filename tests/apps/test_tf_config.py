"""TF_CONFIG is read as TensorFlow reads it, and refused if TensorFlow would refuse it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from compose.apps.worker.failures import BadSetting
from compose.apps.worker.tf_config import read_place, read_task
from tests.agents.engines.places import SLOTS, prepared

CLUSTER = {"chief": ["10.0.0.1:1"], "worker": ["10.0.0.2:2", "[fd00::3]:3"], "ps": ["10.0.0.4:4"]}


def place_of(cluster: Any, kind: Any, index: Any) -> Any:
    return read_place({"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})})


def test_workers_come_after_the_chief() -> None:
    place = place_of(CLUSTER, "worker", 1)
    assert (place.rank, place.world_size) == (2, 3)
    assert place.peers == (("10.0.0.1", 1), ("10.0.0.2", 2), ("fd00::3", 3))
    assert place_of(CLUSTER, "chief", 0).rank == 0


@pytest.mark.parametrize("options", [{}, {"servers": 1}, {"workers_per_server": 1}])
def test_the_engines_configuration_passes(options: dict[str, Any]) -> None:
    tasks = set()
    for slot in SLOTS:
        cluster, kind, index = read_task(prepared(slot, "tensorflow", **options).env)
        tasks.add((kind, index))
    assert tasks == {(kind, index) for kind, addresses in cluster.items() for index in range(len(addresses))}


@pytest.mark.parametrize(
    ("cluster", "kind", "index"),
    [
        ({}, "worker", 0),
        ([], "worker", 0),
        ({"worker": "10.0.0.1:1"}, "worker", 0),
        ({"worker": []}, "worker", 0),
        ({"worker": [1]}, "worker", 0),
        ({"worker": ["10.0.0.1"]}, "worker", 0),
        ({"worker": ["10.0.0.1:1", "10.0.0.1:1"]}, "worker", 0),
        ({"master": ["10.0.0.1:1"]}, "master", 0),
        ({"chief": ["10.0.0.1:1", "10.0.0.1:2"]}, "chief", 0),
        (CLUSTER, "worker", 2),
        (CLUSTER, "worker", -1),
        (CLUSTER, "worker", "0"),
        (CLUSTER, "worker", None),
        (CLUSTER, "evaluator", 0),
        (CLUSTER, "ps", 0),
    ],
)
def test_configurations_that_tensorflow_refuses_are_refused(cluster: Any, kind: Any, index: Any) -> None:
    with pytest.raises(BadSetting, match="TF_CONFIG"):
        place_of(cluster, kind, index)


@pytest.mark.parametrize("text", ["", "[]", "7", "null", "{"])
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(BadSetting, match="TF_CONFIG"):
        read_task({"TF_CONFIG": text})

"""Read a worker's place from TF_CONFIG, and check it as TensorFlow does.

The checks are those of TFConfigClusterResolver, ClusterSpec and `multi_worker_util._validate_cluster_spec` (TensorFlow 2), and
one that a gRPC server would make: no two tasks listen at one address.  Only the place comes from TF_CONFIG; checkpoints and
progress are Dorm's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from compose.apps.worker import contract
from compose.apps.worker.failures import BadSetting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from compose.apps.worker.contract import Place

VARIABLE = "TF_CONFIG"
_TYPES = ("chief", "worker", "ps", "evaluator")
_ALONE = ("chief", "evaluator")


def read_place(environment: Mapping[str, str]) -> Place:
    """Return the worker's place among chief and workers, in TensorFlow's own order.  Raises `BadSetting`."""
    cluster, kind, index = read_task(environment)
    if kind not in ("chief", "worker"):
        raise BadSetting(f"{VARIABLE}: this program trains on workers alone, and this task is a {kind}")
    tasks = [*cluster.get("chief", []), *cluster.get("worker", [])]
    rank = index + (len(cluster.get("chief", [])) if kind == "worker" else 0)
    place = contract.read_place(environment)
    peers = tuple(contract.address(task, VARIABLE) for task in tasks)
    return replace(place, rank=rank, world_size=len(peers), peers=peers)


def read_task(environment: Mapping[str, str]) -> tuple[dict[str, list[str]], str, int]:
    """Return the addresses of all tasks by type, and this task's type and index.  Raises `BadSetting`."""
    if VARIABLE not in environment:
        raise BadSetting(f"{VARIABLE} is missing: run it with `engine: tensorflow`")
    try:
        config = json.loads(environment[VARIABLE])
    except ValueError:
        raise BadSetting(f"{VARIABLE} is not JSON") from None
    cluster = _cluster(config.get("cluster") if isinstance(config, dict) else None)
    task = config.get("task")
    kind, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    if kind not in _TYPES or not isinstance(index, int) or isinstance(index, bool):
        raise BadSetting(f"{VARIABLE}: task is {task!r}, not a type ({', '.join(_TYPES)}) and an index")
    if kind not in cluster or not 0 <= index < len(cluster[kind]):
        raise BadSetting(f"{VARIABLE}: the cluster has no task {index} of type {kind}")
    return cluster, kind, index


def _cluster(value: Any) -> dict[str, list[str]]:
    if not isinstance(value, dict) or not value:
        raise BadSetting(f"{VARIABLE}: cluster is {value!r}, not a map from types to addresses")
    seen: set[tuple[str, int]] = set()
    for kind, tasks in value.items():
        if kind not in _TYPES:
            raise BadSetting(f"{VARIABLE}: {kind!r} is not a type of task; the types are {', '.join(_TYPES)}")
        if not isinstance(tasks, list) or not tasks or not all(isinstance(task, str) for task in tasks):
            raise BadSetting(f"{VARIABLE}: cluster.{kind} is not a list of addresses")
        if kind in _ALONE and len(tasks) > 1:
            raise BadSetting(f"{VARIABLE}: there are {len(tasks)} tasks of type {kind}; there may be one")
        for task in tasks:
            address = contract.address(task, VARIABLE)
            if address in seen:
                raise BadSetting(f"{VARIABLE}: two tasks have the address {task}")
            seen.add(address)
    return value

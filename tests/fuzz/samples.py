"""Good inputs to begin with: records and states of the golden logs, archives, specs and other texts of users."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack
import msgspec

from agents.desired import Desired
from dorm.core.evolve import evolve
from dorm.core.parts.deriving import part_of
from dorm.core.snapshot import Copy, copy
from dorm.core.state import State
from events import kinds as k
from events import subjects
from events.archive.segments import open_archive
from events.codec import VERSIONS, decode, encode
from events.kinds import Event, NodeJoined
from tests.core.nonsense import nonsense
from tests.golden.made import archives

if TYPE_CHECKING:
    from events.log.records import Record

CLUSTER = "demo"
STATES = 6
"""Number of states of each golden log."""


class Body(NamedTuple):
    """The body of a record: its subject, its bytes, and the same as a tree."""

    subject: str
    body: bytes
    tree: Any


class Stop(NamedTuple):
    """A state of a golden log, and the records that follow it."""

    state: Copy
    epoch: int
    desired: bytes
    """The desired state of the first node up to there."""
    following: list[Body]


@cache
def logs() -> list[list[Record]]:
    """Return the golden logs' records."""
    return [asyncio.run(_read(path)) for path in archives()]


async def _read(path: Any) -> list[Record]:
    log = await open_archive(path)
    try:
        return [record async for batch in log.read() for record in batch]
    finally:
        await log.close()


@cache
def archive_bytes() -> list[bytes]:
    return [path.read_bytes() for path in archives()]


@cache
def stops() -> list[Stop]:
    found = []
    for records in logs():
        state, every = State(), max(1, len(records) // STATES)
        desired = Desired(_first_node(records))
        for record in records:
            evolve(state, record)
            desired.fold(record)
            if record.seq % every == 0:
                desired.install(part_of(state, CLUSTER, desired.node))
                following = records[record.seq : record.seq + 40] or records[-40:]
                bodies = [Body(one.subject, one.body, tree_of(one.body)) for one in following]
                taken = Stop(copy(state), state.epoch, msgspec.msgpack.encode(desired), bodies + _possible(state))
                found.append(taken)
    return found


def _possible(state: State) -> list[Body]:
    """Yield events that clients, operators and agents might publish there, whether or not the log has them."""
    said: list[tuple[Event, str]] = []
    for app in list(state.apps.values())[-3:]:
        said.append((k.AppUpdated(app=app.id, weight=2.0, n_min=1, n_max=3), "ann"))
        said.append((k.AppUpdated(app=app.name, n_max=1), "ann"))
        said.append((k.AppCancelRequested(app=app.name, reason="enough"), "ann"))
        for generation in app.generations.values():
            for one in generation.containers.values():
                exited = k.ContainerExited(
                    app=app.id, generation=generation.number, slot=one.slot, node=one.node, exit_code=1, started_at=1
                )
                lost = msgspec.structs.replace(exited, exit_code=None, reason="lost", killed=True, asked=True)
                started = k.ContainerStarted(app=app.id, generation=generation.number, slot=one.slot, node=one.node)
                step = k.AppProgressed(app=app.id, generation=generation.number, step=7, loss=0.5, samples_per_s=3.0)
                saved = k.AppCheckpointed(app=app.id, generation=generation.number, step=9)
                said += [(event, one.node) for event in (exited, lost, started, step, saved)]
    for node in list(state.nodes.values())[:3]:
        said += [(k.NodeLeft(node=node.id), node.id), (k.NodeDrainRequested(node=node.id, until_rejoin=True), "ann")]
        less = {name: amount // 2 for name, amount in node.capacity.items()}
        joined = k.NodeJoined(node=node.id, address=node.address, capacity=less, ports=node.ports, labels={"gpu": "a"})
        said.append((joined, node.id))
    said.append((k.PolicyChanged(policy="dorm", set_params={"theta1": 0.3, "theta2": None}, node_lease_s=20), "ann"))
    said.append((k.PolicyChanged(policy="static", params={"count": 2}, retention_s=0), "ann"))
    return [
        Body(subjects.fact(CLUSTER, type(event).__name__, who), body, tree_of(body))
        for event, who in said
        for body in (encode(event),)
    ]


def _first_node(records: list[Record]) -> str:
    return next(event.node for event in map(decode, records) if isinstance(event, NodeJoined))


@cache
def bodies() -> list[Body]:
    """Return a few bodies of each kind of every golden log, and the invalid ones of the core's tests."""
    taken: dict[tuple[int, str], int] = {}
    found = []
    for number, records in enumerate(logs()):
        for record in records:
            key = number, subjects.kind_of(record.subject)
            taken[key] = taken.get(key, 0) + 1
            if taken[key] <= 12:
                found.append(Body(record.subject, record.body, tree_of(record.body)))
    found += [Body(f"dorm.{CLUSTER}.{end}", body, {}) for end, body in nonsense("node-1", "app-abcdef")]
    return found


def tree_of(body: bytes) -> Any:
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return {}


@cache
def all_subjects() -> list[str]:
    kinds = [kind for kind in VERSIONS if kind != "Round"]
    return [
        *(subjects.fact(CLUSTER, kind, "node-1") for kind in kinds),
        *(subjects.fact(CLUSTER, kind, "ann") for kind in kinds),
        *[subjects.rounds(CLUSTER)] * 8,
        subjects.report(CLUSTER, "node-1"),
        "",
        "dorm",
        "dorm.demo.Round.master",
        "dorm.demo..x",
        "dorm.demo.NoSuch.x",
    ]


SPECS: list[dict[str, Any]] = [
    {"name": "digits", "command": ["python", "-m", "train"], "demand": {"cpu": "500m", "memory": "1GiB"}, "n_max": 4},
    {
        "name": "all-of-it", "command": ["torchrun", "train.py"], "n_min": 2, "n_max": 8, "weight": 2.5, "gang": 2,
        "demand": {"cpu": 2, "memory": "2GiB", "gpu": 1, "licence": 0.5}, "steps": 1000, "speed": [[1, 2.5], [2, 4.7]],
        "require": 'gpu_type == "h100" and not has spot', "placement": "pack", "engine": "torchrun", "image": "x:1",
        "engine_options": {"processes": 2, "rendezvous": "c10d", "restarts": 1},
        "resume": ["r"], "checkpoint": ["c"], "env": {"A": "b", "LONG": "x" * 100}, "grace": "10s", "user": "ann",
        "retries": {"limit": 3, "backoff": "1s", "longest": "5m"}, "labels": {"team": "vision"},
    },
    {"name": "a", "command": ["b"], "demand": {"cpu": 1}},
]  # fmt: skip

YAML = [
    "name: digits\ncommand: [python, -m, train]\ndemand: {cpu: 500m, memory: 1GiB}\nn_min: 1\nn_max: 4\n",
    "name: a\ncommand:\n  - sh\n  - |\n    echo one\n    echo two\ndemand:\n  cpu: 1\nenv: {A: '1', B: two}\n",
    "x: &a [1, 2]\ny: *a\nz: {<<: {b: 1}, c: !!str 3}\nwhen: 2026-11-21T09:00:00Z\n",
    "a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c]\ne: [*d,*d,*d]\n",
    "a: &a {b: *a}\n",
    "? [complex, key]\n: value\n--- \n...\n",
    "name: lr\ncommand: [a, 010, 1:10, ~]\ndemand: {cpu: 1_0}\nsweep: {p: [[6, 4], 1e-5, on], q: {range: 3}}\nmode: list\n",
    "cluster: lab\nagents: 3\ncapacity: {cpu: 2, memory: 4GiB}\nruntime: process\npolicy: dorm\nparams: {theta1: 0.2}\n",
]
TOML = [
    'name = "digits"\ncommand = ["python", "-m", "train"]\nn_max = 4\n[demand]\ncpu = "500m"\nmemory = "1GiB"\n',
    'name = "lr"\ncommand = ["a", 0x10, 1979-05-27 07:32:00, 1e-4]\ndemand.cpu = 1\nsweep = [{p = 0.10}, {p = true}]\n',
    'a = 1979-05-27T07:32:00Z\nb = [[1, 2], ["x"]]\n[[c]]\nd = inf\n[c.e]\nf = 0xff\n',
]
REQUIREMENTS = [
    'gpu_type == "h100" and zone in ["a", "b"] and not has spot',
    "(a == 1 or b != 'x') and not (has c or d not in [1, 2, \"z\"])",
    "not not has a.b/c-d",
]
QUANTITIES = [
    "500m",
    "2",
    "1GiB",
    "1.5Ki",
    "10s",
    "1.5h",
    "cpu=4,memory=8GiB,gpu=1",
    "16x gpu=4,cpu=32; 4x cpu=64 zone=a",
]
MOMENTS = ["118", "118.2", "2026-11-21T09:00:00Z", "-10m", "2026-11-21", "0"]
PROGRESS = [
    b'{"step": 120, "loss": 0.31, "samples_per_s": 950}\n{"checkpoint": 120}\n{"step": 121}\n',
    b'{"step": 1}\n{"step": 2, "loss": null}\n{"checkpoint": 2, "step": 3}\nnot json\n\n{"step": 4}',
]

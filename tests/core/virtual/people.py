"""What clients and operators of the virtual cluster do, one thing at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from events import kinds as k
from events.codec import decode
from tests.core.records import document

if TYPE_CHECKING:
    from tests.core.virtual.world import World

NAMES = ("ant", "bee", "cat", "dog", "eel")


RETRIES: list[dict[str, Any]] = [
    {"limit": 0, "backoff": "2s"},
    {"limit": 2, "backoff": "2s", "exit": 4, "command": 2, "out_of_memory": 0},
    {
        "limit": 5,
        "backoff": "1s",
        "longest": "10s",
        "reset": "30s",
        "fatal_exit_codes": [2],
        "stalled": 1,
        "command": 5,
    },
    {"limit": 9, "backoff": "1s", "reset": "0s", "command": 9},
]


def client_step(world: World) -> None:
    chance = world.chance
    name = chance.choice(NAMES)
    app = world.whole.names.get(name, name)
    match chance.choice(["submit"] * 4 + ["cancel", "update", "again"]):
        case "submit":
            n_min = chance.choice([1, 1, 2, 3])
            spec = document(
                name,
                cpu=chance.choice([0.5, 1, 1, 2]),
                n_min=n_min,
                n_max=n_min + chance.choice([0, 1, 3] if world.live.share < 1.0 else [2, 3, 5]),
                weight=chance.choice([1.0, 2.0]),
                retries=chance.choice(RETRIES),
                deadlines=chance.choice([{}, {"start": "20s"}, {"start": "", "progress": "15s"}]),
                **world.live.words(),
            )
            world.publish(k.AppSubmitted(id=chance.choice(["", f"{len(world.log)}"]), spec=spec), "ann")
        case "cancel":
            world.publish(
                k.AppCancelRequested(app=chance.choice([name, app]), reason="enough", kill=len(world.log) % 2 == 0),
                "ann",
            )
        case "update":
            bounds: dict[str, Any] = chance.choice(
                [{"n_max": 2}, {"n_min": 2}, {"n_max": 5}, {"weight": 3.0}, {"n_min": 1, "n_max": 1}]
            )
            world.publish(k.AppUpdated(app=app, **bounds), "ann")
        case "again" if world.log:
            recent = [record for record in world.log[-50:] if _may_repeat(world, decode(record))]
            if recent:
                world.repeat(chance.choice(recent))


def _may_repeat(world: World, event: k.Event) -> bool:
    """A repeat is harmless, but for a submission's after its app has left the state: that is a new app."""
    if isinstance(event, k.AppSubmitted):
        known = [app.submission for app in world.whole.apps.values()]
        return event.id in world.whole.submissions or event.id in known
    return isinstance(event, k.ContainerStarted | k.ContainerExited | k.AppCancelRequested)


def operator_step(world: World) -> None:
    chance = world.chance
    node = chance.choice(world.nodes)
    match chance.choice(["drain", "undrain", "undrain", "policy", "lease", "retention"]):
        case "drain":
            world.publish(k.NodeDrainRequested(node=node.name), "operator")
        case "undrain":
            world.publish(k.NodeDrainRequested(node=node.name, drain=False), "operator")
        case "policy":
            world.publish(k.PolicyChanged(policy=chance.choice([*world.policies, "none such"])), "operator")
        case "lease":
            world.publish(
                k.PolicyChanged(
                    node_lease_s=chance.choice([10, 30, 60]), params={"no": 1} if chance.random() < 0.3 else None
                ),
                "operator",
            )
        case "retention":
            retention_s, idle_s = chance.choice([(0, 1), (10, 5), (1000, 30)])
            world.publish(k.PolicyChanged(retention_s=retention_s, idle_s=idle_s), "operator")

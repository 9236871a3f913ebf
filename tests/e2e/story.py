"""One story, told on every kind of cluster: an app trains, another arrives, the first shrinks, both complete.

The result has to equal that of an undisturbed run: the same loss (relative 1e-6; the sample apps sum in a fixed order),
a log that verifies, and generations that never ran at the same time.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from events.codec import decode
from events.kinds import ContainerExited, ContainerStarted, GenerationReleased, Round
from replay.audit.audit import verify
from tests.apps.partition import Partition

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm.client.client import Client
    from dorm.core.state import App, State

IMAGE = "dorm/samples:1"
FIRST_STEPS, SECOND_STEPS = 160, 60


def spec(name: str, program: str, steps: int, *, n_max: int) -> dict[str, Any]:
    """A sample app slow enough to be resized, of half a core for each container."""
    command = ["python3", "-m", f"compose.apps.{program}", "--steps", str(steps), "--pace", "0.01"]
    return {
        "name": name,
        "image": IMAGE,
        "command": command,
        "resume": [*command, "--resume"],
        "demand": {"cpu": "500m", "memory": "256MiB"},
        "n_min": 1,
        "n_max": n_max,
        "retries": {"limit": 0},
    }


async def until(client: Client, condition: Callable[[State], bool], what: str, *, timeout: float = 60.0) -> State:
    """Follow the log until the state is so; fails with what the state was instead."""
    state = await client.state()
    try:
        async with asyncio.timeout(timeout):
            async for state, _ in client.watch():
                if condition(state):
                    return state
    except TimeoutError:
        apps = {app.name: (app.phase, app.step, app.end_reason, app.waiting) for app in state.apps.values()}
        pytest.fail(f"never came: {what}; at {state.seq}: {apps}")
    raise AssertionError("a log that is followed does not end")


async def shrink_and_complete(client: Client, folder: Path, *, slots: int) -> dict[str, App]:
    """Play it on a cluster with room for `slots` containers; return the ended apps by name."""
    first = await client.submit(spec("first", "logistic", FIRST_STEPS, n_max=slots))
    await until(client, lambda s: s.apps[first.id].step >= 10, "the first app trains on all slots")
    second = await client.submit(spec("second", "mlp", SECOND_STEPS, n_max=slots))
    state = await until(
        client,
        lambda s: s.apps[first.id].adjustments >= 1 and s.apps[second.id].step >= 5,
        "the first shrinks and the second trains beside it",
    )
    resized = state.apps[first.id].history[0]
    assert resized.containers_before == slots
    assert resized.containers_after < slots
    state = await until(client, lambda s: all(app.ended for app in s.apps.values()), "both complete", timeout=100.0)
    apps = {app.name: app for app in state.apps.values()}
    assert {name: app.ended for name, app in apps.items()} == {"first": "completed", "second": "completed"}
    assert apps["first"].step == FIRST_STEPS
    assert apps["first"].loss == pytest.approx(undisturbed(folder / "first", "logistic", FIRST_STEPS), rel=1e-6)
    assert apps["second"].loss == pytest.approx(undisturbed(folder / "second", "mlp", SECOND_STEPS), rel=1e-6)
    await check_log(client)
    return apps


def undisturbed(folder: Path, program: str, steps: int) -> float:
    """The loss of a run by one worker without a resize."""
    with Partition(folder, program, "--steps", str(steps)) as alone:
        assert alone.exit_codes() == [0]
        return float(alone.result()["loss"])


async def check_log(client: Client) -> None:
    """The log verifies, and its own facts show the barrier between generations."""
    report = await verify(client.log)
    assert report.divergence is None, str(report.divergence)
    assert report.decisions_checked > 0
    assert report.not_checked == 0
    running: dict[str, set[tuple[int, int]]] = {}
    async for record in client.records():
        event = decode(record)
        match event:
            case ContainerStarted():
                others = {g for g, _ in running.setdefault(event.app, set()) if g != event.generation}
                assert not others, f"{event.app}: generation {event.generation} started while {others} ran"
                running[event.app].add((event.generation, event.slot))
            case ContainerExited():
                running.setdefault(event.app, set()).discard((event.generation, event.slot))
            case Round():
                for fact in event.events:
                    if isinstance(fact, GenerationReleased):
                        assert not running.get(fact.app), (
                            f"{fact.app}: {fact.generation} released over {running[fact.app]}"
                        )
            case _:
                pass

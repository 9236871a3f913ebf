"""Which container a person means by an app and a rank, and where it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dorm.client.errors import ClientError
from dorm.client.finding import no_rank
from dorm.core.app import App

if TYPE_CHECKING:
    from dorm.core.generation import Container, Generation


class NotRunning(ClientError):
    """No such container runs now."""

    code = "session.container.not_running"


class Place(msgspec.Struct, frozen=True):
    """A container that runs, by the log."""

    app: App
    generation: int
    slot: int
    rank: int
    node: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.app.name}"


def running_place(app: App, rank: int | None = None) -> Place:
    """Return the container of this rank, by default the first that runs.  A rank is the position of a slot among those of its
    generation.  Raises NotRunning, and NotFound for a rank that the app does not have."""
    generation = _running_generation(app)
    ranked = [generation.containers[slot] for slot in sorted(generation.containers)]
    if rank is not None and rank >= len(ranked):
        raise no_rank(app, f"generation {generation.number} of {app.name}", rank, len(ranked))
    chosen = next(at for at, one in enumerate(ranked) if one.state == "running") if rank is None else rank
    container = ranked[chosen]
    if container.state != "running":
        raise NotRunning(
            f"rank {chosen} of {app.name} does not run: {_why(container)}; `dorm describe {app.name}` shows which do"
        )
    return Place(app, generation.number, container.slot, chosen, container.node)


def _running_generation(app: App) -> Generation:
    """Return the latest generation with a running container."""
    for number in sorted(app.generations, reverse=True):
        generation = app.generations[number]
        if any(one.state == "running" for one in generation.containers.values()):
            return generation
    if app.ended:
        how = "was cancelled" if app.ended == "cancelled" else f"has {app.ended}"
        raise NotRunning(f"nothing of {app.name} runs: it {how}")
    why = f": {app.waiting.text}" if app.waiting is not None else ""
    hint = f"; `dorm wait {app.name} --for running` waits until it does"
    raise NotRunning(f"nothing of {app.name} runs, it is {app.phase}{why}{hint}")


def _why(container: Container) -> str:
    if container.state == "exited":
        code = "" if container.exit_code is None else f" with exit code {container.exit_code}"
        return f"it has ended{code}"
    return "it has not started yet"

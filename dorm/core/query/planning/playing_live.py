"""What agents of live apps would say, for plans: each live adjustment is played to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from events import kinds as k

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dorm.core.state import App, Generation, LiveChange, State

_MOST_ROUNDS = 1000
"""More than adjustments can wait for each other's room."""


def play_live(state: State, say: Callable[[k.Event, str], None], settle: Callable[[], object]) -> None:
    """Play released live adjustments until there are none: each may free the room for another one."""
    for _ in range(_MOST_ROUNDS):
        found = [said for app in state.live_apps() for said in _facts(state, app)]
        if not found:
            return
        for event, node in found:
            say(event, node)
        settle()


def _facts(state: State, app: App) -> Iterator[tuple[k.Event, str]]:
    current = app.current
    change = current.change if current is not None else None
    if current is None or change is None or not change.released_at:
        return
    heard = {node.id for node in state.nodes.values() if node.condition == "up"}
    if any(one.node not in heard for one in current.planned.values()):
        return
    about: dict[str, Any] = {"app": app.id, "generation": current.number}
    for slot, newcomer in change.newcomers.items():
        if newcomer.state == "desired":
            yield k.ContainerStarted(**about, slot=slot, node=newcomer.node), newcomer.node
    yield _trains(app, current, change), current.planned[min(current.planned)].node
    for slot, member in current.containers.items():
        if slot not in change.stay and member.state != "exited":
            yield k.ContainerExited(**about, slot=slot, node=member.node, exit_code=0), member.node


def _trains(app: App, current: Generation, change: LiveChange) -> k.MembershipChanged:
    return k.MembershipChanged(
        app=app.id,
        generation=current.number,
        membership=change.membership,
        step=app.step,
        members=sorted(current.planned),
        change="grow" if change.newcomers else "shrink",
    )

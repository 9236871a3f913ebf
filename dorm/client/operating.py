"""Requests of operators that concern the cluster, a node, or an app that pauses.

Each is checked against the state before it is published, so that its author learns of an error at once, and again once
it is folded: someone else may have been first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.client.errors import NotFound, Refused
from dorm.core.operating import may_be_forgotten, may_be_retried, may_be_trusted
from events.kinds import (
    AppRetryRequested,
    NodeForgetRequested,
    NodeTrustRequested,
    SchedulingPaused,
    SchedulingResumed,
)

if TYPE_CHECKING:
    from dorm.client.client import Client
    from dorm.core.state import App, State


async def forget(client: Client, node: str, reason: str = "") -> None:
    """Forget a node whose containers have certainly ended.  Raises NotFound, Refused."""

    def check(state: State) -> None:
        if node not in state.nodes:
            raise NotFound(f"there is no node {node!r}; `dorm nodes` lists them", code="node.not_found")
        if not may_be_forgotten(state, node):
            raise Refused(_may_run(state, node), code="node.may_run")

    await client.look(check)
    await client.ask(NodeForgetRequested, node=node, reason=reason)
    if await client.look(lambda state: node in state.nodes):
        raise Refused(f"{node} has joined again meanwhile, and is not forgotten", code="node.may_run")


def _may_run(state: State, node: str) -> str:
    known = state.nodes[node]
    if known.condition == "up":
        return f"{node} is up; stop its agent, and forget it once its lease has ended, {known.lease_s:g} s after that"
    return (
        f"{node} is lost, and what is there may run until its lease ends, {known.lease_s:g} s after it was last heard"
    )


async def trust(client: Client, node: str, reason: str = "") -> None:
    """Use a suspect node again, and forget which apps failed there.  Raises NotFound, Refused."""

    def check(state: State) -> None:
        if node not in state.nodes:
            raise NotFound(f"there is no node {node!r}; `dorm nodes` lists them", code="node.not_found")
        if not may_be_trusted(state, node):
            raise Refused(
                f"{node} is not suspect, and no app failed there lately, so there is nothing to trust",
                code="node.not_suspect",
            )

    await client.look(check)
    await client.ask(NodeTrustRequested, node=node, reason=reason)


async def pause(client: Client, reason: str = "") -> None:
    """Pause scheduling.  Raises Refused if it is paused."""

    def check(state: State) -> None:
        if state.paused is not None:
            raise Refused(f"scheduling is paused already, by {state.paused.by}", code="scheduling.paused")

    await client.look(check)
    await client.ask(SchedulingPaused, reason=reason)


async def resume(client: Client, reason: str = "") -> None:
    """Resume scheduling.  Raises Refused if it is not paused."""

    def check(state: State) -> None:
        if state.paused is None:
            raise Refused("scheduling is not paused, so there is nothing to resume", code="scheduling.not_paused")

    await client.look(check)
    await client.ask(SchedulingResumed, reason=reason)


async def retry(client: Client, name_or_id: str) -> App:
    """Retry an app now that pauses after a failure.  Raises NotFound, Refused."""
    app = await client.app(name_or_id)
    if app.ended:
        raise Refused(f"{app.name} has ended ({app.ended}); submit it again", code="app.ended")
    if not await client.look(lambda state: may_be_retried(state, app)):
        raise Refused(
            f"{app.name} is {app.phase} and does not pause; `dorm explain {app.name}` says more", code="app.not_pausing"
        )
    await client.ask(AppRetryRequested, app=app.id)
    return app

"""Requests of operators: nodes, scheduling, retries, changes of who may do what, and the rotation of the log."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.client.answers import facts_after
from dorm.client.errors import NoAnswer, NotFound, Refused
from dorm.core.identities import refusal_at
from dorm.core.operating import may_be_forgotten, may_be_retried, may_be_trusted
from events import subjects
from events.appending import append_event
from events.kinds import (
    AppRetryRequested,
    LogRotated,
    NodeForgetRequested,
    NodeTrustRequested,
    RotationFailed,
    RotationRequested,
    SchedulingPaused,
    SchedulingResumed,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from dorm.client.client import Client
    from dorm.core.state import App, State
    from events.kinds import OfIdentities


# --- nodes and scheduling ---------------------------------------------------------------------------------------------


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


# --- identities -------------------------------------------------------------------------------------------------------


async def change(client: Client, event: OfIdentities) -> None:
    """Publish an event about identities, and wait until it is folded.  Raises Refused if this user may not publish it, or if
    another change came first; and the log's errors."""
    signed: Any = msgspec.structs.replace(
        event, id=f"{client.user}.{secrets.token_hex(8)}", at=time.time_ns(), by=client.user
    )
    await client.check_authority(signed)
    seq = (
        await append_event(client.log, subjects.fact(client.cluster, type(signed).__name__, client.user), signed)
    ).seq
    refused = await client.look(lambda state: refusal_at(state, seq))
    if refused is not None:
        raise Refused(refused.reason, code=refused.code)


# --- rotation ---------------------------------------------------------------------------------------------------------


async def rotate(
    client: Client, *, keep_records: int | None = None, keep_s: float | None = None, timeout: float = 600.0
) -> AsyncGenerator[LogRotated, None]:
    """Request a rotation; yield the cut of each archive.  `timeout` bounds the time until the next one, in seconds.

    Raises Refused if this user may not ask, or the master says why nothing moved; NoAnswer; and the log's errors."""
    request = RotationRequested(
        id=f"{client.user}.{secrets.token_hex(8)}",
        at=time.time_ns(),
        by=client.user,
        keep_records=keep_records,
        keep_s=keep_s,
    )
    await client.check_authority(request)
    subject = subjects.fact(client.cluster, RotationRequested.__name__, client.user)
    request_seq = (await append_event(client.log, subject, request)).seq
    answers = [
        subjects.rotations(client.cluster),
        subjects.fact(client.cluster, RotationFailed.__name__, subjects.MASTER),
    ]
    no_answer = NoAnswer(
        "no master has answered yet; `dorm masters` shows whether one leads, and `dorm log show` what is archived",
        code="master.no_rotation",
    )
    waited = facts_after(client.log, request_seq, timeout=timeout, no_answer=no_answer, subjects=answers, renewed=True)
    async with contextlib.aclosing(waited) as facts:
        async for fact in facts:
            if fact.cause != str(request_seq):
                continue
            if isinstance(fact, RotationFailed):
                raise Refused(fact.reason, code=fact.code)
            if isinstance(fact, LogRotated):
                yield fact
                if not fact.left:
                    return

"""Have the leading master rotate the log, and wait for what becomes of it."""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING

from dorm.client.answers import facts_after
from dorm.client.errors import NoAnswer, Refused
from events import subjects
from events.appending import append_event
from events.kinds import LogRotated, RotationFailed, RotationRequested

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from dorm.client.client import Client


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
    asked = (await append_event(client.log, subject, request)).seq
    answers = [
        subjects.rotations(client.cluster),
        subjects.fact(client.cluster, RotationFailed.__name__, subjects.MASTER),
    ]
    no_answer = NoAnswer(
        "no master has answered yet; `dorm masters` shows whether one leads, and `dorm log show` what is archived",
        code="master.no_rotation",
    )
    waited = facts_after(client.log, asked, timeout=timeout, no_answer=no_answer, subjects=answers, renewed=True)
    async with contextlib.aclosing(waited) as facts:
        async for fact in facts:
            if fact.cause != str(asked):
                continue
            if isinstance(fact, RotationFailed):
                raise Refused(fact.reason, code=fact.code)
            if isinstance(fact, LogRotated):
                yield fact
                if not fact.left:
                    return

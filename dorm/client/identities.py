"""Changes of who may do what, as records of a client's user."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.client.errors import Refused
from dorm.core.identities import refusal_at
from events import subjects
from events.appending import append_event

if TYPE_CHECKING:
    from dorm.client.client import Client
    from events.kinds import OfIdentities


async def change(client: Client, event: OfIdentities) -> None:
    """Publish an event about identities, and wait until it is folded.  Raises Refused if this user may not publish it, or if
    another change came first; and the log's errors."""
    said: Any = msgspec.structs.replace(
        event, id=f"{client.user}.{secrets.token_hex(8)}", at=time.time_ns(), by=client.user
    )
    await client.check_authority(said)
    seq = (await append_event(client.log, subjects.fact(client.cluster, type(said).__name__, client.user), said)).seq
    refused = await client.look(lambda state: refusal_at(state, seq))
    if refused is not None:
        raise Refused(refused.reason, code=refused.code)

"""Whether this process answers and is up to date, who leads, and the schemas."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.api.answers import Answer, answer
from dorm.api.handlers import settled
from dorm.api.routes import Call, Parameters, Route
from dorm.client.masters import Leader
from dorm.health.checks import Check
from events.cloudevents import rfc3339
from events.spec import spec_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.api.services import Services
    from dorm.health.checks import Source

_MOST_BEHIND = 5000
"""Records that a process which is ready may be behind the log."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """This process."""

    status: str
    """`ok`, or `behind` while it does not follow the log."""
    version: str
    cluster: str
    position: str
    """The last record that it has folded."""
    at: str | None
    """Its log time."""
    end: str
    """The last record that is known to be on the log."""
    lag_records: int
    trouble: str
    """Why it does not follow the log."""
    streams: int


class Masters(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads, and who follows."""

    position: str
    leader: Leader


def health_of(services: Services) -> Health:
    follower = services.follower
    return Health(
        status="ok" if _is_ready(services) else "behind",
        version=version("dorm"),
        cluster=services.cluster,
        position=str(follower.seq),
        at=rfc3339(follower.time) if follower.time else None,
        end=str(follower.end),
        lag_records=follower.end - follower.seq,
        trouble=follower.trouble,
        streams=services.addresses.streams,
    )


def _is_ready(services: Services) -> bool:
    follower = services.follower
    return follower.ready and follower.end - follower.seq <= _MOST_BEHIND


def checks_of(services: Services) -> Source:
    """Return what a service manager checks about this process."""

    async def checks() -> Sequence[Check]:
        follower = services.follower
        behind = follower.end - follower.seq
        text = f"up to record {follower.seq} of {follower.end}; it serves {services.addresses.streams} streams"
        trouble = f"{follower.trouble or 'the log is still being read'}; {behind} records are to be folded"
        return [Check("folded", _is_ready(services), text if _is_ready(services) else trouble)]

    return checks


async def health(call: Call[Parameters, None]) -> Answer:
    """Whether the process answers, regardless of its state."""
    return answer(health_of(call.services), call.services.follower.seq)


async def ready(call: Call[Parameters, None]) -> Answer:
    """Whether it follows the log closely: 503 until then, for load balancers."""
    found = health_of(call.services)
    return answer(found, call.services.follower.seq, status=200 if found.status == "ok" else 503)


async def masters(call: Call[Parameters, None]) -> Answer:
    """The leader, from the masters' lease and the log, and the followers, from their own answers of a few seconds ago."""
    await settled(call)
    row = call.services.masters.row()
    found = await call.services.follower.look(lambda state: (state.seq, row(state)), masters.__qualname__)
    return answer(Masters(position=str(found[0]), leader=found[1]), found[0])


async def app_schema(call: Call[Parameters, None]) -> Answer:
    """For editors and other languages."""
    return answer(spec_schema(), call.services.follower.seq, pack=call.packs)


ROUTES = [
    Route("GET", "/v1/health", health, "Whether this process answers", answer=Health),
    Route("GET", "/v1/ready", ready, "Whether it is up to date", answer=Health, problems=(503,)),
    Route("GET", "/v1/masters", masters, "Who leads and who follows", answer=Masters),
    Route("GET", "/v1/schema/app", app_schema, "The JSON Schema of app specs", answer=dict[str, Any], tag="apps"),
]

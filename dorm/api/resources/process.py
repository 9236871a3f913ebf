"""This process: whether it answers and is up to date, who leads, the schemas, the same for Prometheus, and signing in from a
browser.

A token becomes a session's cookie, and no secret is ever part of an address that a server sees.

    POST /v1/session/codes   with a token: a code for one use, good for a minute (`dorm dashboard`)
    POST /v1/session         with a code, or with a token itself: the cookie

The page at `/sign-in` does the second.  `dorm dashboard` hands it the code behind the `#` of its address, which browsers
do not send.  The cookie is the token: removing it on the log (`dorm token remove`) ends the session in every process of
the API, and a restarted process knows it as before.  Scripts cannot read the cookie (`HttpOnly`), other sites' pages do
not send it (`SameSite=Strict`), and what changes something has to come from this origin besides (`dorm.api.identity`).
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from dorm.api.answers import Answer, answer
from dorm.api.errors import Unauthorized
from dorm.api.handlers import settled
from dorm.api.identity import CODE_S, cookie_of, secret_of
from dorm.api.routes import Call, Parameters, Route
from dorm.client.masters import Leader
from dorm.health.checks import Check
from dorm.metrics.cluster import CONTENT_TYPE, LogFigures, exposition, log_metrics
from dorm.metrics.server import process_metrics
from events.cloudevents import rfc3339
from events.spec import spec_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prometheus_client import Metric

    from dorm.api.services import Services
    from dorm.core.state import State
    from dorm.health.checks import Source


# --- health -----------------------------------------------------------------------------------------------------------

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
    health = health_of(call.services)
    return answer(health, call.services.follower.seq, status=200 if health.status == "ok" else 503)


async def masters(call: Call[Parameters, None]) -> Answer:
    """The leader, from the masters' lease and the log, and the followers, from their own answers of a few seconds ago."""
    await settled(call)
    row = call.services.masters.row()
    leader = await call.services.follower.look(lambda state: (state.seq, row(state)), masters.__qualname__)
    return answer(Masters(position=str(leader[0]), leader=leader[1]), leader[0])


async def app_schema(call: Call[Parameters, None]) -> Answer:
    """For editors and other languages."""
    return answer(spec_schema(), call.services.follower.seq, pack=call.packs)


ROUTES = [
    Route("GET", "/v1/health", health, "Whether this process answers", answer=Health),
    Route("GET", "/v1/ready", ready, "Whether it is up to date", answer=Health, problems=(503,)),
    Route("GET", "/v1/masters", masters, "Who leads and who follows", answer=Masters),
    Route("GET", "/v1/schema/app", app_schema, "The JSON Schema of app specs", answer=dict[str, Any], tag="apps"),
]


# --- signing in -------------------------------------------------------------------------------------------------------


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser signs in with, once."""

    code: str
    expires_s: int
    """Seconds that it is good for."""


class SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What proves the user: a code, or a token's secret."""

    code: str = ""
    token: str = ""


async def session_code(call: Call[Parameters, None]) -> Answer:
    """A code with which a browser signs in as the user of the token that makes this request.  It is good for one use, within a
    minute, and only at the process that made it."""
    secret = secret_of(call.request)
    if secret is None:
        raise Unauthorized("a code is made for a token: send one as `Authorization: Bearer SECRET`")
    services = call.services
    code = services.door.codes.make(secret[1])
    return answer(Code(code=code, expires_s=CODE_S), services.follower.seq, headers={"Cache-Control": "no-store"})


async def sign_in(call: Call[Parameters, SignIn]) -> web.StreamResponse:
    """Begin a session: the answer sets its cookie, which is good for as long as the token."""
    services, body = call.services, call.body
    secret = services.door.codes.take(body.code) if body.code else body.token
    if not secret:
        raise Unauthorized(
            "this code was used already, or its minute is over; `dorm dashboard` makes another one",
            code="api.code.unknown",
        )
    ends = services.door.ends(secret)
    made = web.Response(status=204, headers={"Cache-Control": "no-store"})
    left = max(1, (ends - services.clock()) // 10**9) if ends else None
    made.set_cookie(
        cookie_of(call.request),
        secret,
        max_age=left,
        path="/",
        httponly=True,
        samesite="Strict",
        secure=call.request.secure,
    )
    return made


SESSION_ROUTES = [
    Route(
        "POST",
        "/v1/session/codes",
        session_code,
        "Make a code for a browser",
        answer=Code,
        tag="session",
        about="`dorm dashboard` asks for one, and opens a browser with it.",
    ),
    Route(
        "POST",
        "/v1/session",
        sign_in,
        "Sign a browser in",
        body=SignIn,
        status=204,
        tag="session",
        about="Browsers do this on the page `/sign-in`. Programs need no session; they send their token with each request.",
    ),
]


# --- metrics ----------------------------------------------------------------------------------------------------------


async def metrics(call: Call[Parameters, None]) -> Answer:
    """Counters begin with this process; a master's `--metrics` keeps them across restarts."""
    services = call.services
    now = services.clock()

    def of(state: State) -> tuple[int, list[Metric]]:
        return state.seq, services.counted.metrics(state, now)

    seq, samples = await services.follower.look(of)
    samples += log_metrics(LogFigures(services.follower.end, None), seq)
    samples += process_metrics()
    return Answer(await asyncio.to_thread(exposition, samples), str(seq), media=CONTENT_TYPE)


METRICS_ROUTES = [Route("GET", "/metrics", metrics, "Metrics for Prometheus", media=(CONTENT_TYPE.partition(";")[0],))]

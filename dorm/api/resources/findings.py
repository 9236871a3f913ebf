"""Whether the cluster is well: the findings of `dorm doctor` that follow from the log, the lease and the NATS servers.

At a moment of the past there are those of the log alone.  The servers, their streams and the certificates are shown to users
who read the whole log; a plain user gets what follows from the view of the own tenant.  `dorm doctor` looks further: at the
machine that it runs on, at what masters and agents answer, and at clocks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from dorm.api.handlers import Seen, seq_of
from dorm.api.responses import answer
from dorm.api.routes import Call, Route
from dorm.doctor.cluster_findings import (
    judge_delays,
    judge_masters,
    judge_nodes,
    judge_servers,
    judge_settings,
    judge_streams,
)
from dorm.doctor.expiry import in_files, judge_ends, parsed
from dorm.doctor.findings import Finding, Level, gravest_first
from events.cloudevents import rfc3339

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dorm.api.responses import Answer
    from dorm.api.services import Services
    from dorm.client.masters import Leader
    from dorm.core.state import State

MOST = 200
"""Most findings of an answer: the gravest."""
_NOT_ASKED = ("followers", "agents")
"""What the judges say about processes that the API does not ask."""
_RENEW_API = "renew the file of its --tls-cert; it is used within seconds"
_RENEW_SERVER = "run `dorm init` again, or `dorm deploy keys` and `dorm deploy install`; the server reads it on SIGHUP"


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, and what is worth knowing, gravest first."""

    position: str
    at: str | None
    """Log time; null before the first record."""
    level: Level
    """The gravest level."""
    items: list[Finding]
    all_items: int


async def list_findings(call: Call[Seen, None]) -> Answer:
    """What `dorm doctor` finds without looking at machines. `todo` says what to do."""
    services = call.services
    seq = await seq_of(call, call.query.at)
    now = seq is None and not services.options.archive
    leader = services.masters.row() if now else None

    def look(state: State) -> tuple[int, str | None, list[Finding]]:
        findings = list(_of_state(state, leader(state) if leader is not None else None))
        return state.seq, rfc3339(state.time) if state.time else None, findings

    if seq is None:
        position, at, findings = await services.follower.look(look, list_findings.__qualname__)
    else:
        position, at, findings = await services.moments.look(seq, look)
    if now and not services.door.views_of(call.user):
        findings += await _beside_the_log(services)
    bad = [item for item in gravest_first(findings) if item.level != "ok" and item.about not in _NOT_ASKED]
    made = Findings(
        position=str(position),
        at=at,
        level=bad[0].level if bad else "ok",
        items=bad[:MOST],
        all_items=len(bad),
    )
    return await asyncio.to_thread(answer, made, made.position, pack=call.packs)


def _of_state(state: State, leader: Leader | None) -> Iterator[Finding]:
    if leader is not None:
        yield from judge_masters(leader, None)
    yield from judge_nodes(state, None)
    yield from judge_delays(state)
    yield from judge_settings(state)


async def _beside_the_log(services: Services) -> Iterable[Finding]:
    servers, streams = await services.servers.seen()
    certificate = services.options.certificate
    files = [(certificate, "the API's certificate", _RENEW_API)] if certificate is not None else []

    def judge() -> list[Finding]:
        shown = [
            parsed(server.name or server.address, "the NATS server's certificate", server.certificate, _RENEW_SERVER)
            for server in servers
            if server.certificate
        ]
        ends = judge_ends([*shown, *in_files(files)], services.clock())
        return [*judge_servers(servers), *judge_streams(streams, len(servers)), *ends]

    return await asyncio.to_thread(judge)


ROUTES = [
    Route(
        "GET", "/v1/findings", list_findings, "Whether the cluster is well", query=Seen, answer=Findings,
        about="The findings of `dorm doctor` that need no look at a machine.",
    ),
]  # fmt: skip

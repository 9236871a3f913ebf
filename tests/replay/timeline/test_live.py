"""A timeline of a live cluster's log, on a real NATS server, is that of the same records anywhere."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from events.nats.connection import Connection
from replay.moments import AtSequence, BeforeEnd
from replay.timeline.fold import timeline
from replay.timeline.trace import events_of
from tests.replay.made_log import log_of

if TYPE_CHECKING:
    from events.log.records import Record
    from tests.lab.machines.nats_server import NatsServer

pytestmark = pytest.mark.nats


async def test_a_live_log(nats_server: NatsServer, written: list[Record]) -> None:
    connection = await Connection.open(nats_server.url, f"timeline-{secrets.token_hex(4)}", create=True)
    try:
        live = connection.log
        cluster = connection.cluster
        for record in written:
            subject = record.subject.replace("dorm.story.", f"dorm.{cluster}.")
            await live.append(subject, record.body, msg_id=record.msg_id)
        stored = [record async for batch in live.read() for record in batch]
        for since, until in ((None, None), (AtSequence(20), AtSequence(40)), (BeforeEnd(1_000_000), None)):
            there = await timeline(live, since, until)
            here = await timeline(log_of(stored), since, until)
            assert (there.first, there.last, there.start, there.end) == (here.first, here.last, here.start, here.end)
            if not there.empty:
                assert events_of(there) == events_of(here)
    finally:
        await connection.close()

"""Ids of messages: no publisher knows another's in advance, and each publisher's stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from events import kinds as k
from events import subjects
from events.appending import append_event
from events.codec import encode
from events.nats.access import Credentials, message_id, new_seed
from events.nats.streams import log_stream
from tests.security.hostile import CLUSTER, Guarded

if TYPE_CHECKING:
    from pathlib import Path


def test_an_id_follows_from_the_event_and_the_seed_alone() -> None:
    one, other = (Credentials("lab", "nats://h:4222", "ann", "user", new_seed()) for _ in range(2))
    again = Credentials("lab", "nats://elsewhere:4222", "ann", "user", one.seed)
    assert message_id("ann.1", one) == message_id("ann.1", again)
    assert len({message_id("ann.1", one), message_id("ann.2", one), message_id("ann.1", other), "ann.1"}) == 4
    assert message_id("ann.1", None) == "ann.1"
    assert one.seed.decode() not in message_id("ann.1", one)


@pytest.mark.nats
@pytest.mark.slow
async def test_a_hostile_user_cannot_use_up_anothers_ids(tmp_path: Path) -> None:
    server = Guarded(tmp_path)
    await server.start()
    try:
        acts: list[tuple[str, k.Event]] = [
            ("olga", k.AppCancelRequested(id="olga.1", app="a", reason="r")),
            ("node-1", k.NodeLeft(id="node-1.left.7", node="node-1")),
        ]
        guesses = [event.id for _, event in acts] + ["m.1.7.0000"]
        async with server.attacker("bob") as bob:
            for guess in (f"{id}{more}" for id in guesses for more in ("", "~1", "~2")):
                headers = {"Nats-Msg-Id": guess, "Nats-Expected-Stream": log_stream(CLUSTER)}
                await bob.client.request(
                    subjects.fact(CLUSTER, "AppSubmitted", "bob"), encode(k.AppSubmitted(id=guess)), headers=headers
                )
        for who, event in acts:
            async with server.connection(who) as connection:
                log = connection.log
                subject = subjects.fact(CLUSTER, type(event).__name__, who)
                stored = await append_event(log, subject, event)
                assert not stored.duplicate
                record = await log.record_at(stored.seq)
                assert record is not None
                # The first id was free, and it follows from the seed: no other one was tried.
                assert record.msg_id == message_id(event.id, server.credentials[who])
                again = await append_event(log, subject, event)
                assert (again.seq, again.duplicate) == (stored.seq, True)
        async with server.connection("master") as master:
            id = "m.1.7.0000"
            stored = await master.log.append(
                subjects.rounds(CLUSTER),
                encode(k.Round(id=id, at=1, epoch=1, basis=0, allocated=False, events=[])),
                msg_id=id,
            )
            assert not stored.duplicate
            again = await master.log.append(
                subjects.rounds(CLUSTER),
                encode(k.Round(id=id, at=1, epoch=1, basis=0, allocated=False, events=[])),
                msg_id=id,
            )
            assert (again.seq, again.duplicate) == (stored.seq, True)
    finally:
        server.stop()

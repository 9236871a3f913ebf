"""Who may enter whose containers, against a real server with a hostile colleague on it.

An agent takes person and tenant from the subject (`agents.sessions`), so what the server lets on these subjects is
what people may.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from events import subjects
from events.log.records import LogRefused, LogUnavailable
from tests.errors import raises
from tests.security.hostile import CLUSTER, EVERYONE, Guarded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from events.log.interface import Answerer

pytestmark = [pytest.mark.nats, pytest.mark.asyncio(loop_scope="module")]
ENTER = {"alice": {"alice"}, "bob": {"bob"}, "olga": {"alice", "bob"}, "root": {"alice", "bob"}}
"""Whose containers each may enter; no one else enters any."""


@contextlib.asynccontextmanager
async def node(guarded: Guarded) -> AsyncIterator[None]:
    """A node that answers who asks about whom, as an agent finds it out."""

    def answerer(subject: str) -> Answerer:
        async def answer(question: bytes) -> AsyncIterator[bytes]:
            for piece in (subject.encode(), question):
                yield piece

        return answer

    async with guarded.connection("node-1") as one:
        serving = [
            asyncio.create_task(one.bus.answer_each(subjects.session(CLUSTER, "node-1", what, "*", "*"), answerer))
            for what in ("session", "input")
        ]
        async with guarded.connection("root") as root, asyncio.timeout(20):
            for what in ("session", "input"):
                while True:
                    with contextlib.suppress(LogUnavailable):
                        await said(root.bus.ask(subjects.session(CLUSTER, "node-1", what, "alice", "root"), b"?"))
                        break
        yield
        for task in serving:
            task.cancel()
        await asyncio.wait(serving)


async def said(pieces: AsyncIterator[bytes]) -> list[bytes]:
    return [piece async for piece in pieces]


async def test_users_enter_only_containers_of_their_tenant_and_only_in_their_own_name(guarded: Guarded) -> None:
    async with node(guarded):
        for name, role in EVERYONE.items():
            if role == "joining":
                continue
            async with guarded.connection(name) as one:
                for tenant in ("alice", "bob"):
                    for who in ("alice", "bob", "olga", "root"):
                        for what in ("session", "input"):
                            subject = subjects.session(CLUSTER, "node-1", what, tenant, who)
                            if who == name and tenant in ENTER.get(name, ()):
                                assert await said(one.bus.ask(subject, b"me")) == [subject.encode(), b"me"]
                            else:
                                with raises(LogRefused, "log.no_permission"):
                                    await said(one.bus.ask(subject, b"me"))


async def test_no_raw_connection_reaches_a_session_of_others(guarded: Guarded) -> None:
    """Controls: node-1 answers and alice is answered, above and here."""
    async with node(guarded):
        for name, role in EVERYONE.items():
            async with guarded.attacker(name) as one:
                listened = [
                    subjects.session(CLUSTER, at, what, "*", "*")
                    for at in ("*", "node-1", "node-2")
                    for what in ("session", "input")
                ]
                listened += [
                    f"{subjects.session(CLUSTER, 'node-1', 'session', 'alice', 'alice')}",
                    "_INBOX.user.alice.>",
                    "_R_.>",
                ]
                for subject in listened:
                    await one.client.subscribe(subject)
                await one.taken()
                assert {subject.lower() for subject in listened} - set(one.forbidden) == {
                    subject.lower()
                    for subject in listened
                    if subject.startswith((f"dorm.{CLUSTER}.ask.{name}.", f"_INBOX.user.{name}."))
                }, role
        async with guarded.attacker("bob") as bob:
            # A reply subject that is alice's, or the agent's own, brings bob nothing and starts nothing on a log.
            subject = subjects.session(CLUSTER, "node-1", "session", "bob", "bob")
            for reply in ("_INBOX.user.alice.x", f"dorm.{CLUSTER}.round.master", subject):
                await bob.client.publish(subject, b"forged", reply=reply)
            await bob.taken()
        async with guarded.connection("alice") as alice:
            subject = subjects.session(CLUSTER, "node-1", "session", "alice", "alice")
            assert await said(alice.bus.ask(subject, b"still")) == [subject.encode(), b"still"]

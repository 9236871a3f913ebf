"""Sessions on a node of processes, with every kind of request."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from agents import sessions
from events import kinds as k
from events import subjects
from events.log.records import LogRefused
from events.sessions import (
    CHUNK,
    Alive,
    Answer,
    Begun,
    Connect,
    Ended,
    Input,
    Open,
    Opening,
    Output,
    Size,
    answer,
    encoded,
)
from tests.agents.one_node import CLUSTER, NODE, PATIENCE_S, Node, holds
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from events.sessions import Following

OWNER = "anonymous"
"""Whose app the node's is, on this open cluster."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """With one container that runs."""
    node = Node(tmp_path)
    async with node.working():
        yield node
    await node.clean()


def opening(*command: str, **more: Any) -> Open:
    given: dict[str, Any] = {
        "app": "app-1",
        "generation": 1,
        "slot": 0,
        "what": "exec",
        "command": list(command),
        **more,
    }
    return Open(session=secrets.token_hex(16), **given)


async def ask(
    node: Node, asked: Opening | bytes, *, who: str = "ann", tenant: str = OWNER
) -> AsyncGenerator[Answer, None]:
    body = asked if isinstance(asked, bytes) else encoded(asked)
    async with contextlib.aclosing(
        node.bus.ask(subjects.session(CLUSTER, NODE, "session", tenant, who), body)
    ) as pieces:
        async for piece in pieces:
            yield answer(piece)


async def tell(node: Node, message: Following | bytes, *, who: str = "ann", tenant: str = OWNER) -> None:
    body = message if isinstance(message, bytes) else encoded(message)
    async for _ in node.bus.ask(subjects.session(CLUSTER, NODE, "input", tenant, who), body):
        raise AssertionError("nothing is answered")


async def all_of(answers: AsyncGenerator[Answer, None]) -> list[Answer]:
    async with asyncio.timeout(PATIENCE_S):
        return [one async for one in answers]


def output(answers: list[Answer], stream: int = 1) -> bytes:
    return b"".join(one.data for one in answers if isinstance(one, Output) and one.stream == stream)


def refused(answers: list[Answer]) -> str:
    (only,) = answers
    assert isinstance(only, Ended)
    return only.code


async def test_a_command_is_on_the_log_before_it_runs_and_when_it_has_ended(node: Node) -> None:
    asked = opening("sh", "-c", "cat; echo trouble >&2; exit 4", "--password=hunter2")
    answers = ask(node, asked)
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(answers) == Begun()
    (started,) = [fact for fact in node.facts() if isinstance(fact, k.SessionStarted)]
    assert (started.user, started.what, started.app, started.slot, started.node) == ("ann", "exec", "app-1", 0, NODE)
    assert "hunter2" not in started.command
    assert started.command.startswith("sh -c 'cat;")
    await tell(node, Input(asked.session, 1, b"in "))
    await tell(node, Input(asked.session, 2, b"order", last=True))
    rest = await all_of(answers)
    assert (output(rest), output(rest, 2), rest[-1]) == (b"in order", b"trouble\n", Ended(4))
    ended = await node.until(k.SessionEnded)
    assert isinstance(ended, k.SessionEnded)
    assert (ended.session, ended.exit_code, ended.received, ended.sent) == (started.session, 4, 8, 16)


async def test_only_running_containers_are_entered(node: Node) -> None:
    for more in ({"slot": 5}, {"generation": 7}, {"app": "other-1"}):
        assert refused(await all_of(ask(node, opening("true", **more)))) == "session.container.not_running"
    assert refused(await all_of(ask(node, opening("true"), tenant="mallory"))) == "session.container.not_running"
    assert not [fact for fact in node.facts() if isinstance(fact, k.SessionStarted)]
    assert refused(await all_of(ask(node, opening("no-such-program")))) == "container.command.not_found"
    ended = await node.until(k.SessionEnded)
    assert isinstance(ended, k.SessionEnded)
    assert (ended.exit_code, "no-such-program" in ended.reason) == (127, True)


async def test_no_one_else_adds_input_to_a_session_and_none_counts_twice(node: Node) -> None:
    asked = opening("cat")
    answers = ask(node, asked)
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(answers) == Begun()
    for stranger in ({"who": "bob"}, {"tenant": "other"}):
        with raises(LogRefused, "agent.refused", "the session is over"):
            await tell(node, Input(asked.session, 1, b"evil"), **stranger)
    first = Input(asked.session, 1, b"once")
    await tell(node, first)
    for wrong in (first, Input(asked.session, 3, b"later"), Input(asked.session, 2, b"odd", connection=1)):
        with raises(LogRefused, "agent.refused"):
            await tell(node, wrong)
    assert refused(await all_of(ask(node, asked))) == "session.exists"
    await tell(node, Input(asked.session, 2, last=True))
    assert output(await all_of(answers)) == b"once"
    with raises(LogRefused, "agent.refused"):
        await tell(node, Input(asked.session, 3, b"late"))
    again = [fact for fact in (await all_of_two(node, asked)) if isinstance(fact, k.SessionStarted)]
    assert len({fact.session for fact in again}) == 2, "an old request asked again is a session of its own"


async def all_of_two(node: Node, asked: Open) -> list[k.Event]:
    answers = ask(node, asked)
    assert await anext(answers) == Begun()
    await answers.aclose()
    await node.until(k.SessionEnded, 2)
    return node.facts()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"{}",
        encoded(Alive("0" * 16)),
        encoded(opening()),
        encoded(opening("")),
        encoded(opening("a\0b")),
        encoded(opening("ls", port=80)),
        encoded(opening(what="forward")),
        encoded(opening(what="forward", port=80, terminal=Size(1, 1))),
        encoded(Open("short", "app-1", 1, 0, "exec", ["ls"])),
        encoded(opening("x" * 200_000)),
        encoded(opening(*["x" * 100_000] * 3)),
        encoded(opening(*["x"] * 5000)),
        encoded(opening("ls", term="$(id)")),
    ],
    ids=range(15),
)
async def test_invalid_requests_are_refused(node: Node, body: bytes) -> None:
    assert refused(await all_of(ask(node, body))) == "session.message.malformed"
    with raises(LogRefused, "agent.refused"):
        await tell(node, body + b" ")


async def test_input_larger_than_a_chunk_is_refused(node: Node) -> None:
    with raises(LogRefused, "agent.refused"):
        await tell(node, Input("0" * 16, 1, b"x" * (CHUNK + 1)))


async def test_without_its_record_a_session_does_not_start(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_RECORD_S", 0.2)
    node.log.away = True
    mark = node.root / "mark"
    assert refused(await all_of(ask(node, opening("touch", str(mark))))) == "session.not_recorded"
    node.log.away = False
    ended = await node.until(k.SessionEnded)
    assert isinstance(ended, k.SessionEnded)
    assert "did not begin" in ended.reason
    assert not mark.exists()


async def test_sessions_are_bounded_and_end_with_their_askers(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_OF_ONE", 2)
    held = [ask(node, opening("sleep", "600")) for _ in range(sessions.MOST_OF_ONE)]
    bound = sessions.Bound("sessions", 3, 2)
    with bound.held("ann"), bound.held("ann"), bound.held("bob"):
        for who in ("ann", "eve"):
            with raises(sessions.TooMany, "session.too_many"), bound.held(who):
                pass
    with bound.held("ann"):
        pass
    for one in held:
        assert await anext(one) == Begun()
    for one in held:
        await one.aclose()
    ended = await node.until(k.SessionEnded, 2)
    assert isinstance(ended, k.SessionEnded)
    assert (ended.exit_code, ended.reason) == (None, "the client has gone")


async def test_a_silent_clients_session_ends(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "ALIVE_S", 0.05)
    monkeypatch.setattr(sessions, "SILENT_S", 0.3)
    asked = opening("sleep", "600")
    answers = ask(node, asked)
    assert await anext(answers) == Begun()
    for _ in range(6):
        await tell(node, Alive(asked.session))
        await asyncio.sleep(0.1)
    (last,) = await all_of(answers)
    assert isinstance(last, Ended)
    assert (last.exit_code, last.code) == (None, "session.silent")


async def test_the_end_of_the_container_is_reported(node: Node) -> None:
    answers = ask(node, opening("sleep", "600"))
    assert await anext(answers) == Begun()
    await node.resize("app-1", 2, 1)
    (last,) = await all_of(answers)
    assert isinstance(last, Ended)
    assert (last.exit_code, last.code) == (None, "session.container.ended")


ECHO = """
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def serve(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],)).start()
"""


async def test_connections_reach_a_port_of_the_container_and_no_other(node: Node) -> None:
    listening = ask(node, opening("python3", "-c", ECHO))
    assert await anext(listening) == Begun()
    port = int(output([await anext(listening)]))
    forwarding = opening(what="forward", port=port)
    forwarded = ask(node, forwarding)
    assert await anext(forwarded) == Begun()

    async def echoed(number: int) -> bytes:
        connection = ask(node, Connect(forwarding.session, number))
        assert await anext(connection) == Begun()
        data = bytes([number]) * CHUNK
        for count in range(1, 5):
            await tell(node, Input(forwarding.session, count, data, count == 4, number))
        return output(await all_of(connection))

    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(*(echoed(number) for number in range(1, 9)))
    assert found == [bytes([number]) * 4 * CHUNK for number in range(1, 9)]
    other = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    async with other:
        elsewhere = opening(what="forward", port=other.sockets[0].getsockname()[1])
        stranger = ask(node, elsewhere)
        assert await anext(stranger) == Begun()
        assert refused(await all_of(ask(node, Connect(elsewhere.session, 1)))) == "session.port.not_listening"
    with raises(LogRefused, "agent.refused"):
        await all_of(ask(node, Connect(forwarding.session, 1), who="bob"))
    await forwarded.aclose()
    await stranger.aclose()
    await listening.aclose()
    ended = await node.until(k.SessionEnded)
    assert isinstance(ended, k.SessionEnded)
    assert (ended.what, ended.connections, ended.received, ended.sent) == ("forward", 8, 8 * 4 * CHUNK, 8 * 4 * CHUNK)
    await holds(lambda: sum(isinstance(fact, k.SessionEnded) for fact in node.facts()) == 3)

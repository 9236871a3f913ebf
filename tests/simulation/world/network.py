"""One connection between a process and the server: messages arrive late and in order, or, after an outage, not at all.

It behaves like TCP under nats-py.  Within a connection, messages keep their order.  A silent cut holds back messages; when it
heals, the connection either continues and all of them arrive late (long after the sender gave up), or it breaks.  When a
connection breaks, a random part of the messages to the server still arrives, and no answer does.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from events.log.records import LogUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    Request = tuple[Callable[[], None], Callable[[Any], None] | None]

    from tests.simulation.world.process import Process
    from tests.simulation.world.world import World

SILENCE_S = 3.5
"""After this time without heartbeats, a reader reopens, like `events.nats.reader`."""
RECONNECT_S = (0.02, 0.4)
NOTICE_S = (15.0, 30.0)
"""Time after which a client notices by unanswered pings that its connection is dead."""
OUTLIVES_S = 20.0
"""A connection may survive a silent cut up to this long."""
SLOW = 0.01
"""The fraction of messages that take much longer than the others."""


class Asked:
    """A request whose answer a task of the process awaits."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def take(self, answer: object) -> None:
        """Take an answer; an exception is raised in the asking task.  Only the first answer counts."""
        if not self.future.done():
            if isinstance(answer, Exception):
                self.future.set_exception(answer)
            else:
                self.future.set_result(answer)


class Link:
    """The connection of one process.  `connected` is the client's belief."""

    def __init__(self, world: World, process: Process) -> None:
        self.process = process
        self.connected = False
        self.asking: dict[Asked, None] = {}
        self.on_break: list[Callable[[], None]] = []
        """Told when the connection is broken, or silent for so long that readers open it again."""
        self._world = world
        self._host = process.host
        self._server = world.server
        self._number = 1 + sum(len(one.connections) for one in world.processes if one.host is process.host)
        self._chance = world.chance(f"link {process.host.name} {self._number}")
        self._base_s = self._chance.uniform(0.0002, 0.003)
        self._life = 0
        """Counts connections: what belongs to an earlier one does not arrive."""
        self._late_until = 0.0
        self._gone = False
        self._up_at = self._down_at = 0.0
        self._awaiting: list[asyncio.Future[None]] = []
        self._held_up: list[Request] = []
        self._held_down: list[Callable[[], None]] = []
        world.links.append(self)
        self._connect(0)

    # --- sending --------------------------------------------------------------------------------------------------------

    def _latency(self) -> float:
        chance = self._chance
        if chance.random() < SLOW:
            return chance.uniform(0.05, 0.6)
        return self._base_s * (0.5 + chance.random())

    def up(self, request: Callable[[], None], reply: Callable[[Any], None] | None = None) -> None:
        """Send to the server, which calls `request`, or refuses it by `reply`."""
        self._up_at = max(self._up_at, self._world.now + self._latency(), self._host.lag_until)
        self._world.at(self._up_at, self._arrive_up, self._life, (request, reply))

    def _arrive_up(self, life: int, request: Request) -> None:
        if life != self._life and not (life == self._life - 1 and self._world.now <= self._late_until):
            return
        if self._host.cut_up:
            self._held_up.append(request)
        else:
            self._server.handle(*request)

    def down(self, message: Callable[[], None], *, in_order: bool = True) -> None:
        """Send to the process."""
        if not self.connected:
            return
        at = max(self._world.now + self._latency(), self._host.lag_until)
        if in_order:
            at = self._down_at = max(self._down_at, at)
        self._world.at(at, self._arrive_down, self._life, message)

    def _arrive_down(self, life: int, message: Callable[[], None]) -> None:
        if life != self._life:
            return
        if self._host.cut_down:
            self._held_down.append(message)
        else:
            message()

    # --- outages --------------------------------------------------------------------------------------------------------

    def reachable(self) -> bool:
        return self._server.up and not self._host.cut_up and not self._host.cut_down

    def gone_silent(self) -> None:
        cut = self._host.cuts
        self._world.after(SILENCE_S, self._readers_notice, cut)
        self._world.after(self._chance.uniform(*NOTICE_S), self._client_notices, cut)

    def _readers_notice(self, cut: int) -> None:
        if cut == self._host.cuts and self.connected:
            for tell in list(self.on_break):
                tell()

    def _client_notices(self, cut: int) -> None:
        if cut == self._host.cuts:
            self.broken("pings are not answered")

    def healed(self) -> None:
        if not self.connected:
            self.reconnect_soon()
        elif self._chance.random() < 0.6:
            # At once, because later messages must not overtake them.
            self._flush(len(self._held_up))
            held, self._held_down = self._held_down, []
            for message in held:
                message()
        else:
            self.broken("the connection was reset")

    def _flush(self, most: int) -> None:
        held, self._held_up = self._held_up, []
        for request in held[:most]:
            self._server.handle(*request)

    def broken(self, reason: str) -> None:
        """Fail all waiting requests at once; whether they had arrived is unknown."""
        if not self.connected:
            return
        self.connected = False
        if not self._host.cut_up:
            self._flush(self._chance.randint(0, len(self._held_up)))
        self._held_up.clear()
        self._held_down.clear()
        self._life += 1
        self._late_until = self._world.now + self._latency() if self._server.up and not self._host.cut_up else 0.0
        for asked in list(self.asking):
            asked.take(LogUnavailable(reason))
        for tell in list(self.on_break):
            tell()
        self.reconnect_soon()

    def reconnect_soon(self) -> None:
        if self.reachable() and not self._gone:
            self._world.after(self._chance.uniform(*RECONNECT_S), self._connect, self._life)

    def _connect(self, life: int) -> None:
        if life == self._life and self.reachable() and not self.connected and not self._gone:
            self.connected = True
            self._up_at = self._down_at = self._world.now
            awaiting, self._awaiting = self._awaiting, []
            for future in awaiting:
                if not future.done():
                    future.set_result(None)

    async def back(self, seconds: float) -> bool:
        """Wait for a connection, at most this long; return whether there is one."""
        if not self.connected and not self._gone:
            future = self._world.loop.create_future()
            self._awaiting.append(future)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await future
        return self.connected

    def leave(self, *, lose: bool) -> None:
        """The process is gone.  Its kernel still sends pending data; with `lose`, only a part of it."""
        self._gone = True
        for tell in list(self.on_break):
            tell()
        if lose:
            self._life += 1
            self._late_until = self._world.now + self._latency() * self._chance.random()
        self._world.links = [link for link in self._world.links if link is not self]

"""Histories in which the server loses acknowledged records, which it never should: the only promise is that no master
continues from the rest.

At a random time, the server is killed and comes back without its last records, or with others in their places, because clients
are already writing again.  Some or all masters may be killed at the same moment, so that only data outside the log (their
witnesses and the lease) shows the loss.  Masters that notice end, and so do their successors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents.runtime.interface import RuntimeFault
from dorm.master.sealing import LogAltered
from events import kinds as k
from events.codec import decode
from events.log.records import LogDamaged
from tests.simulation.checks.ending import leaves
from tests.simulation.history import History
from tests.simulation.world.world import Broken

if TYPE_CHECKING:
    from events.log.records import Record
    from tests.simulation.world.process import Process

_AFTERWARDS_S = 40.0
"""The rest of the history: masters are restarted again and again, and agents and clients continue to write."""


_AGAIN_S = 4.0


class Losing(History):
    """One such history, without other faults.  `play` returns the error, "" for none."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, only=())
        self.lost = 0
        """Records."""
        self.left = 0
        """Sequence of the last one that is still there."""
        self.led: list[str] = []
        """What masters have said afterwards."""
        self.refused = 0
        """Masters that ended because of it."""

    def play(self) -> str:
        chance = self.world.chance("losing")
        with self.world as world:
            try:
                self._begin()
                world.run_for(chance.uniform(5.0, self.span_s))
                while not self._lose(chance.random(), chance.choice(["none", "all", "all", "leader"])):
                    world.run_for(1.0)
                world.run_for(_AFTERWARDS_S)
            except Broken as error:
                return str(error)
            finally:
                self.over = self.checks.over = True
        return "; ".join(self.led)

    def _lose(self, drawn: float, killed: str) -> bool:
        """Lose records; False if no known record can be lost now."""
        server = self.world.server
        held = server.held
        # Records that only a dead leader had seen are unknown: a surviving master must have seen them, or they must
        # precede the lease's position.
        known = held.seq if held is not None else 0
        if killed == "none":
            known = max(known, *(master.state.seq for master in self._running()), 0)
        if known < 2 or not server.up:
            return False
        self.left = max(1, known - 1 - int(drawn * 12))
        self.lost = server.durable - self.left
        self.world.trace("ACKNOWLEDGED RECORDS ARE LOST", left=self.left, lost=self.lost, masters_killed=killed)
        server.on_record[:] = [self._afterwards]
        self.checks.over = True
        for name, process in list(self.leaders.items()):
            leads = process.steps and process.master.elected.is_set()
            if process.alive and (killed == "all" or (killed == "leader" and leads)):
                self.down_for[name] = 0.2 + 3 * drawn  # Before or after the server.
                process.kill()
        server.lose_acknowledged = self.lost
        server.crash(down_s=0.2 + 5 * drawn)
        server.lose_acknowledged = 0
        return True

    def _running(self) -> list[Any]:
        return [process.master for process in self.leaders.values() if process.alive and process.steps]

    def _afterwards(self, record: Record) -> None:
        """Check the rest: a round that was in flight counts for no fold if its basis is not before itself."""
        event = decode(record)
        if isinstance(event, k.Round) and event.by in self.checks.masters and event.basis < record.seq:
            self.led.append(
                f"{event.by} leads on: round {record.seq}, made of {event.basis}, and only {self.left} were left"
            )

    def _ended(self, process: Process, host: str, start: Any) -> None:
        if self.over:
            return
        for cause in leaves(process.error):
            if isinstance(cause, LogAltered | LogDamaged) and self.lost:
                self.refused += host in self.masters
            elif not isinstance(cause, RuntimeFault):
                self.world.fail(f"{process.name} died: {cause!r}")
        self.world.after(self.down_for.pop(host, _AGAIN_S), self._restart, host, start, self._boots(host))

    def _boots(self, host: str) -> int:
        return self.machines[host].boots if host in self.machines else 0

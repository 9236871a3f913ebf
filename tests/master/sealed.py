"""Logs with seals, as a master with a key would have written them, in no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.evolve import evolve
from dorm.core.state import SCHEMA, State
from dorm.master.sealing import Sealer
from events import subjects
from events.chain import SealKey, new_seed
from events.codec import encode
from events.kinds import AppCancelRequested, LogSealed, MasterElected, Round
from events.log.records import Record
from events.quantities import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from events.kinds import Event

CLUSTER = "sealed"
START = 1_700_000_000 * SECOND


class SealedLog:
    """Records of a cluster in which nothing happens but requests that name no app, and seals of them."""

    def __init__(self, key: SealKey | None = None) -> None:
        self.records: list[Record] = []
        self.state = State()
        self.key = key or SealKey(new_seed())
        self.epoch = 0
        self._sealer = Sealer(CLUSTER, self.key)
        self.elect(self.key)

    def elect(self, key: SealKey) -> None:
        """Another master, which has read all that there is."""
        self.key = key
        self.epoch += 1
        self._sealer = Sealer(CLUSTER, key)
        state = State()
        for record in self.records:
            self._sealer.take(record, evolve(state, record).event)
        self.round([MasterElected(epoch=self.epoch, key=key.public)])

    def round(self, facts: Sequence[Event], *, basis: int | None = None) -> None:
        """By the master in charge."""
        basis = len(self.records) if basis is None else basis
        event = Round(
            id=f"m.{self.epoch}.{basis}.{len(self.records)}",
            at=START + len(self.records) * SECOND,
            by="m",
            epoch=self.epoch,
            basis=basis,
            allocated=False,
            events=list(facts),  # type: ignore[arg-type]  # facts of a master
            core=SCHEMA,
        )
        self.store(subjects.rounds(CLUSTER), encode(event), event.id)

    def say(self, count: int = 1) -> None:
        """So many records by a client."""
        for _ in range(count):
            number = len(self.records)
            event = AppCancelRequested(id=f"u.{number}", at=START, by="u", app=f"app-{number}")
            self.store(subjects.fact(CLUSTER, "AppCancelRequested", "u"), encode(event), event.id)

    def seal(self, *, late: int = 0) -> LogSealed:
        """A seal of all there is; `late` more records get in before it."""
        basis = len(self.records)
        seal = self._sealer.seal(self.epoch)
        self.say(late)
        self.round([seal], basis=basis)
        return seal

    def store(self, subject: str, body: bytes, msg_id: str = "") -> None:
        record = Record(len(self.records) + 1, START + len(self.records) * SECOND, subject, body, msg_id)
        self.records.append(record)
        self._sealer.take(record, evolve(self.state, record).event)


def sealed_log(seals: int = 4, between: int = 200) -> SealedLog:
    """A number of seals with a number of records before each, and a few records without a seal."""
    log = SealedLog()
    for number in range(seals):
        log.say(between)
        log.seal(late=number % 3)
    log.say(5)
    return log

"""A history of any length for benches: a small cluster in virtual time, with simulated agents and the core itself as its
master, with the policy `dorm`.

Apps arrive, grow and shrink, sometimes fail, and end; nodes go silent, are drained, leave and come back.  One *stretch* of
that ends with an idle cluster.  A longer log repeats the stretch, later and with other apps: the fold acts on every record,
and only the decisions, whose digests are of the first state, can't be audited again.  So the first stretch has real decisions,
and a log of ten million records takes a minute and no memory.

Records are as agents and masters write them: a progress fact of each running app every 5 s, a checkpoint every 2 minutes.
"""

from __future__ import annotations

import heapq
import random
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.admission import app_id
from dorm.core.evolve import evolve
from dorm.core.leader import Leader, Moment, settle
from dorm.core.state import State
from dorm.core.timing import conclude
from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dorm.core.leader import Publish
    from dorm.core.state import App, Generation

STRETCH = 10_000
"""Records of a stretch, approximately."""
NODES = 6
LIVE_APPS = 8
PROGRESS_S, CHECKPOINT_S = 5, 120
_CLUSTER, _MASTER = "bench", "master-5eed5eed"
_START = 1_700_000_000_000_000_000
_MS, _S = 1_000_000, 1_000_000_000
_CAPACITY = {"cpu": 16_000, "memory": 64 * 2**30}
_RUN_S = 1500.0
"""Average duration of an app, with its usual number of containers."""
_FAILS = 1 / 1500
"""Chance that a progress report is a crash instead."""
_encode = msgspec.msgpack.Encoder().encode


class Stretch(msgspec.Struct, frozen=True):
    """A prologue (the master's election, the nodes) and what can be repeated after it."""

    begin: list[Record]
    repeated: list[Record]
    span: int
    """Nanoseconds from one repetition to the next."""


def stretch(records: int = STRETCH, *, seed: int = 0) -> Stretch:
    """Return a stretch; equal for equal arguments, as long as the policy decides the same."""
    world = _World(random.Random(seed))
    begin = world.begin()
    world.play(records)
    repeated = world.records[begin:]
    return Stretch(world.records[:begin], repeated, 60 * _S + world.now - world.records[begin].time)


def records_of(played: Stretch, most: int) -> Iterator[list[Record]]:
    """Yield `most` records of the history, in batches."""
    if most > 0:
        yield played.begin[:most]
    left = most - len(played.begin)
    repetition = _Repetition(played)
    for number in count():
        if left <= 0:
            return
        batch = played.repeated if number == 0 else repetition.again(number, left)
        yield batch[:left]
        left -= len(batch)


class _Repetition:
    """A stretch as maps, for repetition with other ids, times and sequences."""

    def __init__(self, played: Stretch) -> None:
        self._stretch = played
        events = [decode(record) for record in played.repeated]
        self._apps = {
            app_id(event.spec["name"], event.id): (event.spec["name"], event.id)
            for event in events
            if isinstance(event, k.AppSubmitted)
        }
        self._templates = [
            event if isinstance(event, k.AppProgressed) else msgspec.to_builtins(event) for event in events
        ]

    def again(self, number: int, most: int) -> list[Record]:
        """Return the first records of the stretch's repetition `number`."""
        shift, offset = number * self._stretch.span, number * len(self._stretch.repeated)
        names = {old: app_id(name, f"{submission}.{number}") for old, (name, submission) in self._apps.items()}
        names |= {submission: f"{submission}.{number}" for _, submission in self._apps.values()}
        made = []
        for record, template in zip(self._stretch.repeated[:most], self._templates, strict=False):
            if isinstance(template, k.AppProgressed):
                identity, body = _progress_again(template, names[template.app], shift)
            else:
                changed = _changed(template, names, shift)
                identity = changed["id"] = _identity(template, names, number)
                if "basis" in changed:
                    changed["basis"] += offset
                body = _encode(changed)
            made.append(Record(record.seq + offset, record.time + shift, record.subject, body, identity))
        return made


def _progress_again(event: k.AppProgressed, app: str, shift: int) -> tuple[str, bytes]:
    at = event.at + shift
    identity = f"{event.by}.{app}-{event.generation}-0.AppProgressed.{event.step}.{at}"
    again = k.AppProgressed(
        id=identity, at=at, by=event.by, app=app, generation=event.generation, step=event.step, loss=event.loss,
        samples_per_s=event.samples_per_s,
    )  # fmt: skip
    return identity, encode(again)


def _identity(template: dict[str, Any], names: dict[str, str], number: int) -> str:
    """Return a fact's id; ids of facts about an app contain the app's id, as an agent's do."""
    old, app = template["id"], template.get("app", "")
    return old.replace(app, names[app]) if app in names else names.get(old, f"{old}.{number}")


def _changed(value: Any, names: dict[str, str], shift: int) -> Any:
    """Replace names and shift times: integers this large are times."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {names.get(key, key): _changed(item, names, shift) for key, item in value.items()}
    if isinstance(value, list):
        return [_changed(item, names, shift) for item in value]
    return value + shift if isinstance(value, int) and value >= _START else value


class _World:
    """The first stretch, played in virtual time."""

    def __init__(self, chance: random.Random) -> None:
        self.state = State()
        self.records: list[Record] = []
        self.now = _START
        self._chance = chance
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self._steps: dict[str, float] = {}
        self._lengths: dict[str, int] = {}
        self._saved_at: dict[str, int] = {}
        self._silent: dict[str, int] = {}
        self._leader = Leader(self.state)
        self._waking = 0
        self._arrived = 0
        self._until = 0

    def begin(self) -> int:
        self._publish(self._leader.elect(self.now, build="dorm"))
        self._leader.elected(self.now, dirty_at=None)
        for index in range(NODES):
            self._join(f"node-{index + 1}")
        return len(self.records)

    def play(self, records: int) -> None:
        """Run for at least `records` more records, and on until nothing runs any more."""
        self._until = len(self.records) + records
        self._later(1.0, self._arrive)
        self._later(600.0, self._disturb)
        while self._due:
            at, _, act = heapq.heappop(self._due)
            self.now = max(self.now, at)
            dirty, submissions = self.state.dirty_seq, len(self.state.submissions)
            act()
            if (self.state.dirty_seq, len(self.state.submissions)) != (dirty, submissions):
                self._master()

    @property
    def _open(self) -> bool:
        return len(self.records) < self._until

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + int(seconds * _S), next(self._order), act))

    def _append(self, event: k.Event, who: str, identity: str) -> None:
        name = type(event).__name__
        subject = subjects.rounds(_CLUSTER) if isinstance(event, k.Round) else subjects.fact(_CLUSTER, name, who)
        whole = msgspec.structs.replace(event, id=identity, at=self.now, by=who)
        self.records.append(Record(len(self.records) + 1, self.now, subject, encode(whole), identity))
        evolve(self.state, self.records[-1])
        self._leader.folded(self.now)
        self.now += _MS

    # --- clients and nodes ----------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        if not self._open:
            return
        self._arrived += 1
        chance, user = self._chance, f"user-{self._arrived % 7}"
        n_min = chance.choice((1, 1, 2))
        command = ["python3", "train.py", "--epochs", str(chance.randint(5, 90)), "--lr", f"{chance.random():.4f}"]
        spec = {
            "name": f"train-{self._arrived:05d}", "engine": "plain", "image": "registry.example/train:1",
            "demand": {"cpu": chance.choice((2, 3, 4)), "memory": f"{chance.choice((4, 8, 12))}GiB"},
            "n_min": n_min, "n_max": n_min * chance.randint(2, 6), "weight": chance.choice((1, 1, 2)), "user": user,
            "command": command, "resume": [*command, "--resume"], "retries": {"limit": 5, "backoff": "2s"},
        }  # fmt: skip
        self._append(k.AppSubmitted(spec=spec), user, f"{user}.{self._arrived:08d}")
        self._later(chance.expovariate(LIVE_APPS / _RUN_S), self._arrive)

    def _join(self, node: str) -> None:
        first = 20_000 + 1000 * int(node.removeprefix("node-"))
        joined = k.NodeJoined(
            node=node, address=f"10.0.0.{node.removeprefix('node-')}", capacity=_CAPACITY, ports=(first, first + 999),
            build="dorm",
        )  # fmt: skip
        self._append(joined, node, f"{node}.joined.{self.now}")

    def _disturb(self) -> None:
        """Disturb a node, and another one a quarter of an hour later."""
        if not self._open:
            return
        node, what = f"node-{self._chance.randint(1, NODES)}", self._chance.choice(("silent", "drained", "restarted"))
        if what == "silent":
            self._silent[node] = self.now
            self._later(16.0, self._conclude)
            self._later(45.0, lambda: self._hear(node))
        elif what == "drained":
            self._append(k.NodeDrainRequested(node=node), "operator", f"operator.{self.now}")
            self._later(200.0, lambda: self._undrain(node))
        else:
            self._append(k.NodeLeft(node=node), node, f"{node}.left.{self.now}")
            self._later(60.0, lambda: self._join(node))
        self._later(900.0, self._disturb)

    def _hear(self, node: str) -> None:
        del self._silent[node]
        self._conclude()

    def _undrain(self, node: str) -> None:
        self._append(k.NodeDrainRequested(node=node, drain=False), "operator", f"operator.{self.now}")

    # --- the master -----------------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        heard = {node: self._silent.get(node, self.now) for node in self.state.nodes}
        if facts := conclude(self.state, heard, self.now):
            self._publish(self._leader.round(facts, self.now))

    def _publish(self, effect: Publish) -> None:
        self._append(effect.round, _MASTER, f"{_MASTER}.{effect.round.epoch}.{effect.round.basis}")
        for fact in effect.round.events:
            self._react(fact)

    def _master(self) -> None:
        """Publish all that follows now; an allocation comes once the log has been quiet."""
        settle(self._leader, self._moment, self._publish)
        if (wake := self._leader.due_at(self._moment())) is not None:
            self._wake(wake)

    def _moment(self) -> Moment:
        return Moment(self.now, self.now)

    def _wake(self, at: int) -> None:
        if not self.now <= self._waking <= at:
            self._waking = at
            heapq.heappush(self._due, (at, next(self._order), self._woken))

    def _woken(self) -> None:
        self._waking = 0
        self._master()

    def _react(self, fact: Any) -> None:
        """Schedule the agents' reactions to a fact."""
        if isinstance(fact, k.Resized):
            for change in fact.changes:
                self._later(0.8, partial(self._stop, change.app))
        elif isinstance(fact, k.GenerationReleased):
            self._later(0.3, lambda: self._start(fact.app, fact.generation))
        elif isinstance(fact, k.GenerationFailed | k.AppFailed):
            self._later(0.5, lambda: self._exit_all(fact.app, fact.generation, code=143, stop_requested=True))

    # --- agents ---------------------------------------------------------------------------------------------------------

    def _partition(self, app: str, number: int) -> tuple[App, Generation] | None:
        known = self.state.apps.get(app)
        generation = known.generations.get(number) if known else None
        return None if known is None or generation is None else (known, generation)

    def _fact(self, event: Any, node: str, slot: int, word: str) -> None:
        self._append(event, node, f"{node}.{event.app}-{event.generation}-{slot}.{word}")

    def _start(self, app: str, number: int) -> None:
        if (partition := self._partition(app, number)) is None:
            return
        for slot, container in sorted(partition[1].containers.items()):
            if container.state == "desired":
                started = k.ContainerStarted(
                    app=app, generation=number, slot=slot, node=container.node, started_at=self.now
                )
                self._fact(started, container.node, slot, "started")
        self._steps[app] = float(partition[0].step)
        self._lengths.setdefault(app, self._chance.randint(2000, 40_000))
        self._saved_at[app] = self.now
        self._later(PROGRESS_S, lambda: self._train(app, number))

    def _train(self, app: str, number: int) -> None:
        """Let it train for five seconds."""
        partition = self._partition(app, number)
        if partition is None or not partition[0].settled or partition[0].generation != number:
            return
        if self._chance.random() < _FAILS:
            self._exit(app, number, min(partition[1].containers), code=1, stop_requested=False)
            return
        speed = 40 / _RUN_S * self._lengths[app] / len(partition[1].containers) ** 0.2 / 40
        self._steps[app] = min(self._lengths[app], self._steps[app] + speed * PROGRESS_S)
        self._progress(app, partition[1])
        done = self._steps[app] >= self._lengths[app]
        if done or self.now - self._saved_at[app] >= CHECKPOINT_S * _S:
            self._save(app, partition[1])
        if done:
            self._exit_all(app, number, code=0, stop_requested=False)
        else:
            self._later(PROGRESS_S, lambda: self._train(app, number))

    def _progress(self, app: str, generation: Generation) -> None:
        node, step = generation.containers[min(generation.containers)].node, int(self._steps[app])
        report = k.AppProgressed(
            app=app, generation=generation.number, step=step, loss=2.3025850929940455 / (1 + step / 400),
            samples_per_s=round(self._chance.uniform(900, 1000) * len(generation.containers), 1),
        )  # fmt: skip
        self._fact(report, node, 0, f"AppProgressed.{step}.{self.now}")

    def _save(self, app: str, generation: Generation) -> None:
        node, step = generation.containers[min(generation.containers)].node, int(self._steps[app])
        self._saved_at[app] = self.now
        report = k.AppCheckpointed(app=app, generation=generation.number, step=step)
        self._fact(report, node, 0, f"AppCheckpointed.{step}.{self.now}")

    def _stop(self, app: str) -> None:
        """Stop everything but the latest generation: progress, a checkpoint, exit."""
        known = self.state.apps.get(app)
        for number, generation in list(known.generations.items()) if known else []:
            if known and number < known.generation and not generation.ended:
                if generation.running == len(generation.containers):
                    self._progress(app, generation)
                    self._save(app, generation)
                self._exit_all(app, number, code=75, stop_requested=True)

    def _exit_all(self, app: str, number: int, *, code: int, stop_requested: bool) -> None:
        partition = self._partition(app, number)
        for slot in sorted(partition[1].containers) if partition else []:
            self._exit(app, number, slot, code=code, stop_requested=stop_requested)

    def _exit(self, app: str, number: int, slot: int, *, code: int, stop_requested: bool) -> None:
        partition = self._partition(app, number)
        container = partition[1].containers[slot] if partition else None
        if container is None or container.state == "exited":
            return
        exited = k.ContainerExited(
            app=app, generation=number, slot=slot, node=container.node, exit_code=code, asked=stop_requested,
            started_at=container.started_at, exited_at=self.now,
        )  # fmt: skip
        self._fact(exited, container.node, slot, "exited")


def events_in(records: Sequence[Record]) -> int:
    """Return the number of positions: a record is one event, a round as many as it has facts."""
    decoded = (decode(record) for record in records)
    return sum(len(event.events) if isinstance(event, k.Round) else 1 for event in decoded)

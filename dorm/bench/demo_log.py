"""The demo's log without the demo: three nodes and three contending training apps, in virtual time.

The core itself is the master, so decisions are real and follow the schema of this build; agents are simulated here, with the
ids, pace and order of real ones.  The apps are those of `compose/apps`, at the speed that their pace allows.  So kinds, sizes
and their shares match the log that `dorm demo` leaves, and it takes less than a minute.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.evolve import evolve
from dorm.core.leader import Leader, Moment, Publish, settle
from dorm.core.state import State
from dorm.local.spec_files import load_spec
from events import kinds as k
from events import subjects
from events.codec import encode
from events.log.records import Record
from events.quantities import SECOND

if TYPE_CHECKING:
    from dorm.core.state import App, Generation

_CLUSTER = "demo"
_MASTER = "master-5eed5eed"
_START = 1_700_000_000_000_000_000
_MS = 1_000_000
_TICK_MS = 700
"""Between two facts of an app's progress, as observed in the demo: at least 500 ms by its settings, then the app's next line
and the agent's next look at it."""
_SHARDS = 24
_CHECKPOINT_EVERY = 50
_NODES = 3
_CAPACITY = {"cpu": 1000, "memory": 2 * 2**30}
_APPS = (("logistic.yaml", 0), ("mlp.yaml", 8_000), ("factorize.yaml", 16_000))
"""Spec files and when they are submitted, in ms."""
_LONGEST_MS = 600_000
_LATER = 3600 * SECOND
"""Any quiet time is over after this."""


def demo_log() -> list[Record]:
    """Return the demo's records; equal every time, unless another solver version makes other decisions."""
    demo = _Demo()
    demo.elect()
    for index in range(_NODES):
        demo.join(index)
    for now in range(0, _LONGEST_MS, _TICK_MS):
        demo.tick(now)
        if not demo.arrivals and all(app.ended for app in demo.state.apps.values()):
            return demo.records
    raise AssertionError("the apps of the demo end")


class _Demo:
    def __init__(self) -> None:
        self.state = State()
        self.records: list[Record] = []
        self._leader = Leader(self.state)
        self._now = _START
        self._steps: dict[str, float] = {}
        self.arrivals = list(_APPS)

    def append(self, event: k.Event, who: str) -> None:
        self._now += 2 * _MS
        name = type(event).__name__
        subject = subjects.rounds(_CLUSTER) if isinstance(event, k.Round) else subjects.fact(_CLUSTER, name, who)
        identity = event.id or f"{who}.{event.epoch if isinstance(event, k.Round) else name}.{self._now}"
        whole = msgspec.structs.replace(event, id=identity, at=self._now - _MS, by=who)
        self.records.append(Record(len(self.records) + 1, self._now, subject, encode(whole), identity))
        evolve(self.state, self.records[-1])
        self._leader.folded(self._now)

    def elect(self) -> None:
        self.append(self._leader.elect(self._now).round, _MASTER)
        self._leader.elected(self._now, dirty_at=self._now)

    def join(self, index: int) -> None:
        node, first = f"node-{index + 1}", 20_000 + 333 * index
        self.append(
            k.NodeJoined(node=node, address="127.0.0.1", capacity=_CAPACITY, ports=(first, first + 332), build="dorm"),
            node,
        )

    def tick(self, now: int) -> None:
        self._now = max(self._now, _START + now * _MS)
        while self.arrivals and self.arrivals[0][1] <= now:
            file, _ = self.arrivals.pop(0)
            spec = load_spec(Path(__file__).parents[2] / "compose" / "apps" / file)
            self.append(k.AppSubmitted(spec=msgspec.to_builtins(spec)), "demo")
        self._master()
        for app in list(self.state.live_apps()):
            if app.settled and app.current is not None:
                self._train(app, app.current)
                self._master()

    # --- the master -----------------------------------------------------------------------------------------------------

    def _master(self) -> None:
        """Publish rounds until nothing more follows, without quiet time."""
        settle(self._leader, lambda: Moment(self._now, self._now + _LATER), self._publish)

    def _publish(self, effect: Publish) -> None:
        """Fold a round, and let agents act on it at once."""
        self.append(effect.round, _MASTER)
        for fact in effect.round.events:
            if isinstance(fact, k.Resized):
                for change in fact.changes:
                    self._stop_previous(self.state.apps[change.app])
            elif isinstance(fact, k.GenerationReleased):
                self._start(self.state.apps[fact.app])

    # --- agents ---------------------------------------------------------------------------------------------------------

    def _fact(self, kind: type[Any], app: App, generation: Generation, slot: int, **fields: Any) -> None:
        node = generation.containers[slot].node
        of_container = {"slot": slot, "node": node} if kind in (k.ContainerStarted, k.ContainerExited) else {}
        states = {"ContainerStarted": "started", "ContainerExited": "exited"}
        word = states.get(kind.__name__) or f"{kind.__name__}.{fields['step']}.{self._now}"
        self.append(
            kind(
                id=f"{node}.{app.id}-{generation.number}-{slot}.{word}",
                app=app.id,
                generation=generation.number,
                **of_container,
                **fields,
            ),
            node,
        )

    def _start(self, app: App) -> None:
        generation = app.generations[app.generation]
        for slot in sorted(generation.containers):
            self._fact(k.ContainerStarted, app, generation, slot, started_at=self._now - _MS)

    def _stop_previous(self, app: App) -> None:
        for generation in [g for n, g in app.generations.items() if n < app.generation and not g.ended]:
            self._progress(app, generation)
            self._fact(k.AppCheckpointed, app, generation, min(generation.containers), step=int(self._steps[app.id]))
            self._exit_all(app, generation, code=75, stop_requested=True)

    def _exit_all(self, app: App, generation: Generation, *, code: int, stop_requested: bool) -> None:
        for slot in sorted(generation.containers):
            started = generation.containers[slot].started_at
            self._fact(
                k.ContainerExited, app, generation, slot,
                exit_code=code, asked=stop_requested, started_at=started, exited_at=self._now - _MS,
            )  # fmt: skip

    def _progress(self, app: App, generation: Generation) -> None:
        step = int(self._steps[app.id])
        rate = 240.0 * len(generation.containers) / _SHARDS / _option(app, "--pace")
        loss = 2.3025850929940455 / (1 + step / 40)
        self._fact(
            k.AppProgressed, app, generation, min(generation.containers),
            step=step, loss=loss, samples_per_s=round(rate, 1),
        )  # fmt: skip

    def _train(self, app: App, generation: Generation) -> None:
        """Let it train for one tick."""
        before = self._steps.get(app.id, 0.0)
        last = _option(app, "--steps")
        done = _TICK_MS / 1000 * len(generation.containers) / _SHARDS / _option(app, "--pace")
        after = self._steps[app.id] = min(last, before + done)
        self._progress(app, generation)
        if after == last or after // _CHECKPOINT_EVERY > before // _CHECKPOINT_EVERY:
            step = int(after if after == last else after // _CHECKPOINT_EVERY * _CHECKPOINT_EVERY)
            self._fact(k.AppCheckpointed, app, generation, min(generation.containers), step=step)
        if after == last:
            self._exit_all(app, generation, code=0, stop_requested=False)


def _option(app: App, name: str) -> float:
    command = app.spec.command
    return float(command[command.index(name) + 1])

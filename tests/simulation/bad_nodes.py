"""Histories with bad nodes: most apps are honest, a few are broken, and processes are killed and cut off meanwhile.

Where a real cluster counts hours, these count minutes: t (`suspect_within`) is 60 s, the first probe is due after 30 s, and a
container has run well after 20 s.  The promises, in addition to all others:

    honest     no honest app fails permanently or pays a retry for a bad node
    wasted     at most k + 1 of their tries fail on a node within t, and as many as can run there at once; one more for each
               new start of its agent, and k more for each time that an operator trusts it
    broken     a node that was never bad is not suspect for longer than until an honest app was tried there, and not because
               of apps that are known to be broken
    suspect    nothing new goes to a suspect node before its probe is due
    trusted    after an operator has trusted a node, k other apps have to fail there before it is suspect again
    unfit      a full disk and the health program's word are soon on the log, nothing new goes there then, and both are over
               soon after
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

from dorm.core import faults
from events import kinds as k
from events.codec import decode
from events.quantities import SECOND
from tests.simulation.attack.ailments import UNFIT, WAYS
from tests.simulation.attack.faults import Fault
from tests.simulation.history import History, Outcome
from tests.simulation.machines.apps import PLAN, AppPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from dorm.core.state import App
    from events.log.records import Record

WITHIN_S = 60.0
_SPAN_S = 100.0
_K = 3
_SLOTS = 2
"""How many containers fit on a node."""
_SOON_S = 25.0
"""Time within which an agent's findings are on the log, if nothing disturbs it."""
_LASTING_S = 30.0
"""How long an agent keeps a finding (`agents.fitness.LEAST_S`)."""
_LOOK_S = 1.0
_BROKEN_S = (0.2, 2.0)
"""How long a broken app runs: it never gets to its first step."""
_OTHERS: Final = {
    "master killed": ("master", 0.0, 0.0),
    "master crashes": ("master", 0.1, 3.0),
    "master paused": ("master", 0.5, 8.0),
    "master cut off": ("master", 0.5, 8.0),
    "agent killed": ("node", 0.1, 3.0),
    "agent crashes": ("node", 0.1, 3.0),
    "agent paused": ("node", 0.5, 12.0),
    "node cut off": ("node", 0.5, 30.0),
    "node lags": ("node", 0.3, 4.0),
    "node reconnects": ("node", 0.0, 0.0),
    "agent stopped": ("node", 1.0, 20.0),
    "server killed": ("", 0.2, 6.0),
    "server paused": ("", 0.3, 5.0),
}
"""By kind of fault: what it hits, and its shortest and longest time."""


def has_bad_nodes(seed: int) -> bool:
    """Return whether `make simulate` plays such a history for this seed."""
    return seed >= 100 and seed % 8 == 4


class BadNodes(History):
    """A history with bad nodes."""

    looks = True

    def __init__(
        self,
        seed: int,
        *,
        only: Collection[int] | None = None,
        apps: Collection[int] | None = None,
        alter: Callable[[History], None] = lambda _: None,
    ) -> None:
        super().__init__(seed, only=(), apps=(), alter=alter)
        chance = random.Random(f"{seed}.bad nodes")
        self.span_s = _SPAN_S
        most = chance.choice([1, 1, 2])
        nodes = [f"n{number}" for number in range(1, 4 + 2 * most)]
        self.cpus = dict.fromkeys(nodes, 1000 * _SLOTS)
        self.ports = dict.fromkeys(nodes, (20000, 20099))
        self.policies = [chance.choice(["dorm", "static", "static"])]
        self.grace_s, self.lease_s, self.retention_s = 5.0, chance.choice([10.0, 20.0]), 86_400.0
        self.bad = chance.sample(nodes, most)
        self.broken = chance.sample(range(20), chance.choice([0, 0, 1, 2, 4, 5]))
        drawn = [_draw_app(seed, index, broken=index in self.broken) for index in range(chance.randint(16, 32))]
        self.apps = [plan for plan in drawn if apps is None or plan.index in apps]
        self.faults = [
            fault
            for fault in _draw_faults(chance, nodes, self.bad, self.masters)
            if only is None or fault.number in only
        ]
        self.blame = Blame(self)

    def run(self, *, tell: bool = False) -> Outcome:
        with _scaled():
            return super().run(tell=tell)

    def _begin(self) -> None:
        super()._begin()
        self.say(k.PolicyChanged(suspect_after=_K, suspect_within_s=WITHIN_S))
        self.world.server.on_record.append(self.blame.record)
        self.world.after(_LOOK_S, self.blame.look)

    def at_end(self) -> None:
        """Whatever was wrong with a node, one honest app that is tried there ends it."""
        world, nodes = self.world, self.world.whole.nodes
        for _ in range(len(self.bad) + len(self.broken) + 1):
            suspects = [node.suspect for _, node in sorted(nodes.items()) if node.suspect is not None]
            if not suspects:
                return
            due = max(suspect.probe_at for suspect in suspects)
            world.run_for(max(0.0, (due - world.wall()) / SECOND) + 1.0)
            for _ in suspects:
                self._submit_probe()
            world.run_until(lambda: not any(node.suspect for node in nodes.values()), within=30.0)
        left = [f"{name}: {node.suspect}" for name, node in sorted(nodes.items()) if node.suspect is not None]
        self.checks.hold(
            not left, f"nothing is wrong with them, honest apps were tried there, and they are suspect: {left}"
        )

    def _submit_probe(self) -> None:
        index = 1000 + len(self.apps)
        self.apps.append(_draw_app(self.seed, index, broken=False, retries=1))
        self.say(k.AppSubmitted(spec=self.apps[-1].document()))


@contextlib.contextmanager
def _scaled() -> Iterator[None]:
    scaled = {"SHORT_S": 20, "FIRST_PROBE_S": 30, "LONGEST_PROBE_S": 120}
    with contextlib.ExitStack() as patches:
        for name, seconds in scaled.items():
            patches.enter_context(mock.patch.object(faults, name, seconds))
        yield


def _draw_app(seed: int, index: int, *, broken: bool, retries: int | None = None) -> AppPlan:
    chance = random.Random(f"{seed}.bad nodes.{index}")
    n_min = 1 if broken else chance.choice([1, 1, 1, 2])
    return AppPlan(
        index=index,
        name=f"{'broken' if broken else 'honest'}{index}",
        submit_at=round(chance.choice([0.5, 40.0, chance.uniform(0, 90), chance.uniform(0, 90)]), 3),
        cpu=1000,
        n_min=n_min,
        n_max=n_min,
        steps=chance.choice([3, 8, 20, 60]),
        step_s=0.5,
        boot_s=round(chance.uniform(0.1, 1.0), 3) + (_BROKEN_S[1] if broken else 0.0),
        checkpoint_every=3,
        on_term="save",
        term_s=0.2,
        term_code=143,
        saves_by_command=False,
        fragile=False,
        trouble=0.0,
        together=True,
        retries=chance.choice([0, 1, 3]) if retries is None else retries,
        fails_after_s=round(chance.uniform(*_BROKEN_S), 3) if broken else 0.0,
    )


def _draw_faults(chance: random.Random, nodes: list[str], bad: list[str], masters: list[str]) -> list[Fault]:
    drawn: list[tuple[float, str, str, float]] = []
    for node in bad:
        at, for_s = chance.choice([0.5, 0.5, chance.uniform(1, 50)]), chance.choice([30.0, 80.0, 150.0])
        drawn.append((at, chance.choice([*WAYS, *WAYS, *UNFIT]), node, for_s))
    if chance.random() < 0.4:
        drawn.append((chance.uniform(1, 60), chance.choice(UNFIT), chance.choice(bad), chance.uniform(10, 60)))
    trusts = chance.choice([0, 0, 1, 3])
    drawn += [(chance.uniform(5, 95), "node trusted", chance.choice(bad), 0.0) for _ in range(trusts)]
    targets = {"master": masters, "node": nodes, "": [""]}
    for _ in range(chance.choice([0, 0, 1, 3, 6])):
        kind = chance.choice(list(_OTHERS))
        whom, shortest, longest = _OTHERS[kind]
        drawn.append((chance.uniform(1, 95), kind, chance.choice(targets[whom]), chance.uniform(shortest, longest)))
    return [
        Fault(number, round(at, 3), kind, target, round(for_s, 2), round(chance.random(), 6))
        for number, (at, kind, target, for_s) in enumerate(sorted(drawn))
    ]


class Blame:
    """Checks whose fault the master says a failure is, and what follows for nodes."""

    def __init__(self, history: BadNodes) -> None:
        self._history = history
        self._wasted: dict[str, list[tuple[float, str]]] = {}
        """By node, the tries of honest apps that failed there."""
        self._more: dict[str, list[tuple[float, int]]] = {}
        """By node, when how many more may fail there."""
        self._failed_since: dict[str, dict[str, None]] = {}
        """By node, the apps that failed there since an operator trusted it last."""
        self._due: dict[str, tuple[int, int]] = {}
        """By suspect node: since which record, and when its next probe is due."""
        self._unfit: dict[str, int] = {}
        """By unfit node, since which record."""
        self._wrong: dict[str, tuple[bool, float]] = {}
        """By node, whether its agent should find something wrong, and since when that is so."""
        self._processes: dict[str, Any] = {}
        self._few_until = 0.0
        """Until when fewer nodes may be suspect than are bad."""

    # --- what the log says ----------------------------------------------------------------------------------------------

    def record(self, record: Record) -> None:
        event, history = decode(record), self._history
        match event:
            case k.NodeTrustRequested():
                self._failed_since[event.node] = {}
                self._allow(event.node, _K + _SLOTS - 1)
            case k.NodeJoined() if event.process != self._processes.get(event.node):
                self._processes[event.node] = event.process
                self._allow(event.node, int(event.node in self._due))
            case k.Round() if event.by in history.checks.masters:
                for fact in event.events:
                    self._fact(fact, event.basis)
            case _:
                pass
        self._note(record.seq)

    def _allow(self, node: str, more: int) -> None:
        self._more.setdefault(node, []).append((self._history.world.now, more))

    def _note(self, seq: int) -> None:
        """Note the state of all nodes after a record."""
        whole = self._history.world.whole
        up = 0
        for name, node in whole.nodes.items():
            up += node.condition == "up"
            if node.suspect is None:
                self._due.pop(name, None)
            else:
                self._due[name] = self._due.get(name, (seq, 0))[0], node.suspect.probe_at
                broken = [app for app in node.suspect.apps if app in whole.apps and whole.apps[app].ended == "failed"]
                self._history.checks.hold(
                    not broken or name in self._history.bad,
                    f"{name} is suspect because of {broken}, which are broken",
                )
            if node.unfit:
                self._unfit.setdefault(name, seq)
            else:
                self._unfit.pop(name, None)
        good = [name for name in self._due if name not in self._history.bad]
        if max(1, up // faults.PART) - len(good) < len(self._history.bad):
            self._few_until = self._history.world.now

    def _fact(self, fact: Any, basis: int) -> None:
        match fact:
            case k.GenerationFailed() | k.AppFailed() | k.MembersLost():
                self._failed(fact)
            case k.NodeSuspected():
                since = self._failed_since.get(fact.node)
                self._history.checks.hold(
                    since is None or len(since) >= fact.least,
                    f"{fact.node} is suspect, and only {list(since or {})} failed there since an operator trusted it",
                )
            case k.NodeTrusted() if fact.how == "evidence":
                self._allow(fact.node, _K)
            case k.Resized():
                for change in fact.changes:
                    self._placed(change, basis)
            case _:
                pass

    def _failed(self, fact: k.GenerationFailed | k.AppFailed | k.MembersLost) -> None:
        app, hold = self._history.world.whole.apps.get(fact.app), self._history.checks.hold
        if app is None:
            return
        if fact.failure in faults.OF_A_PAIR and fact.node:
            self._failed_since.get(fact.node, {})[fact.app] = None
        if not self._is_honest(app):
            return
        hold(not isinstance(fact, k.AppFailed), f"{fact.app} is honest, and has failed: {fact.reason}")
        hold(
            isinstance(fact, k.AppFailed) or not fact.counted, f"{fact.app} is honest, and pays a retry: {fact.reason}"
        )
        if fact.failure in faults.OF_A_PAIR and fact.node:
            self._wasted.setdefault(fact.node, []).append((self._history.world.now, fact.app))
            self._bounded(fact.node)

    def _is_honest(self, app: App) -> bool:
        index = int(app.spec.env.get(PLAN, "-1"))
        return index not in self._history.broken

    def _bounded(self, node: str) -> None:
        now = self._history.world.now
        since = now - WITHIN_S
        tries = [f"{app} at {at:.1f} s" for at, app in self._wasted[node] if at > since]
        most = _K + _SLOTS + len(self._history.broken)
        most += sum(more for at, more in self._more.get(node, []) if at > since)
        self._history.checks.hold(
            len(tries) <= most or self._few_until > since, f"{node} wastes more than {most} tries within t: {tries}"
        )

    def _placed(self, change: k.Resize, basis: int) -> None:
        whole, hold = self._history.world.whole, self._history.checks.hold
        app = whole.apps.get(change.app)
        now = app.generations.get(change.to_generation) if app is not None else None
        if app is None or now is None or now.void:
            return
        before = app.generations.get(change.from_generation)
        had = before.by_node() if before is not None else {}
        for node in now.by_node():
            if node in had:
                continue
            since = self._unfit.get(node, basis + 1)
            hold(since > basis, f"{app.id} is placed on {node}, which is unfit since record {since}")
            since, due = self._due.get(node, (basis + 1, 0))
            hold(
                since > basis or due <= whole.time,
                f"{app.id} is placed on {node}, which is suspect since record {since}, and no probe is due",
            )

    # --- what is wrong --------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare what is wrong with machines with what the log says."""
        history = self._history
        if history.over:
            return
        now, nodes, disturbed = history.world.now, history.world.whole.nodes, history.checks.disturbed
        for machine in history.machines.values():
            wrong = machine.disk_full or bool(machine.ill)
            if self._wrong.get(machine.name, (False, 0.0))[0] != wrong:
                self._wrong[machine.name] = wrong, now
            since = self._wrong.get(machine.name, (False, 0.0))[1] + (_SOON_S if wrong else _SOON_S + _LASTING_S)
            quiet = max(disturbed.get(machine.name, 0.0), disturbed.get("", 0.0)) + _SOON_S
            node = nodes.get(machine.name)
            if node is None or node.condition != "up" or now < max(since, quiet):
                continue
            history.checks.hold(
                bool(node.unfit) == wrong,
                f"{machine.name} is {'not fit' if wrong else 'fit'}, and the log has {node.unfit}",
            )
        history.world.after(_LOOK_S, self.look)

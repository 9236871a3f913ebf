"""A cluster that knows its users, nodes and masters, some of them hostile.

    mallory     a user like others: acts on their apps, in their names, under their submissions' ids, and on the cluster
    evil        an enrolled node: reports for other nodes, and about apps that it does not run
    forger      has bypassed the server's permissions, and writes rounds without a master's key

Each of their records may only change what belongs to its author.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import nkeys

from events import kinds as k
from events import subjects
from events.chain import SealKey
from events.codec import decode, encode
from events.identities import owned_id
from events.log.records import Record
from tests.simulation.checks.checks import STRANGER
from tests.simulation.machines.apps import PLAN, STRANGERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from dorm.core.state import State
    from tests.simulation.history import History

ADMIN, OPERATOR, USER, NODE, FORGER = "root", "operator", "mallory", "evil", f"{STRANGER}-forger"
_ACTS = 40
_UNKNOWN = -1_000_000
"""Plans below this index are apps of the hostile user."""


def trusted(history: History) -> None:
    """Make a history's cluster know everyone, and start the hostile identities."""
    world = history.world
    chance = world.chance("hostile")
    world.key = SealKey(nkeys.encode_seed(chance.randbytes(32), nkeys.PREFIX_BYTE_CLUSTER))
    nodes = [*history.machines_of(), NODE]
    _by(history, ADMIN, k.TrustEnabled(masters=[world.key.public], nodes=nodes))
    for user in (*history.users, USER):
        _by(history, ADMIN, k.UserAdded(name=user))
    _by(history, ADMIN, k.UserAdded(name=OPERATOR, role="operator"))
    for node in history.machines_of():
        _by(history, ADMIN, k.NodeEnrolled(node=node, capacity={"cpu": history.cpus[node]}, ports=history.ports[node]))
    _by(history, ADMIN, k.NodeEnrolled(node=NODE, capacity={"cpu": 1}))
    _Watch(history)
    _forestall_submissions(history, chance)
    for _ in range(_ACTS):
        world.at(chance.uniform(1.0, history.span_s), _act, history, chance.choice(_KINDS), chance)


def _by(history: History, who: str, event: k.Event, msg_id: str = "") -> None:
    event = msgspec.structs.replace(event, at=history.world.wall())
    history.append(subjects.fact(history.cluster, type(event).__name__, who), encode(event), msg_id)


# --- what has to hold ---------------------------------------------------------------------------------------------------


class _Watch:
    """Compares the others' data before and after each hostile record."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._before: Any = None
        server = history.world.server
        server.on_record.insert(0, self._look)
        server.on_record.append(self._compare)

    def _look(self, record: Record) -> None:
        self._before = others(self._history.world.whole) if hostile(record) else None

    def _compare(self, record: Record) -> None:
        if self._before is not None:
            after = others(self._history.world.whole)
            what = f"{record.subject} of a hostile author changed {_difference(self._before, after)}"
            self._history.checks.hold(after == self._before, what)


def hostile(record: Record) -> bool:
    if subjects.kind_of(record.subject) == k.Round.__name__:
        event = decode(record)
        return isinstance(event, k.Round) and event.by == FORGER
    return subjects.who_of(record.subject) in (USER, NODE)


def others(state: State) -> dict[str, Any]:
    """Return the parts of a state that belong neither to the hostile user nor to the hostile node, without notes of their
    attempts."""
    apps = {app.id: msgspec.to_builtins(app) for app in state.apps.values() if app.tenant != USER}
    nodes = {node.id: msgspec.to_builtins(node) for node in state.nodes.values() if node.id != NODE}
    waiting = {id: one.refused for id, one in state.submissions.items() if one.tenant != USER}
    names = {name: app for name, app in state.names.items() if app in apps}
    known = state.known
    return {
        "apps": apps,
        "nodes": nodes,
        "submissions": waiting,
        "names": names,
        "settings": msgspec.to_builtins(state.settings),
        "epoch": (state.epoch, state.leader),
        "known": (dict(known.users), dict(known.nodes), list(known.masters)) if known is not None else None,
    }


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    changed = [name for name in before if before[name] != after[name]]
    return ", ".join(f"{name}: {str(before[name])[:300]} -> {str(after[name])[:300]}" for name in changed)


# --- what they do -------------------------------------------------------------------------------------------------------


def _forestall_submissions(history: History, chance: Random) -> None:
    """Before a submission of another user reaches the log, the hostile user submits one of the same id and name."""
    server = history.world.server
    taken: set[str] = set()
    """Once each: after the retention a repeat would be another app, which only the log's own memory of ids prevents."""

    def forestall(subject: str, body: bytes, msg_id: str) -> None:
        if subjects.kind_of(subject) != k.AppSubmitted.__name__ or subjects.who_of(subject) not in history.users:
            return
        event = decode(Record(0, 0, subject, body))
        if not isinstance(event, k.AppSubmitted) or history.attack.over or event.id in taken or chance.random() < 0.5:
            return
        taken.add(event.id)
        name = event.spec["name"]
        number = len(server.records)
        spec = STRANGERS.document() | {"name": name, "env": {PLAN: str(_UNKNOWN - number)}}
        theirs = k.AppSubmitted(id=event.id, by=event.by, spec=spec)
        where = subjects.fact(history.cluster, k.AppSubmitted.__name__, USER)
        server.append(where, encode(theirs), f"{STRANGER}.{USER}.{number}", None, lambda _: None)

    server.on_append.append(forestall)


def _act(history: History, kind: str, chance: Random) -> None:
    whole = history.world.whole
    if history.attack.over or not whole.nodes:
        return
    apps = [app for app in whole.live_apps() if app.tenant != USER]
    app = chance.choice(apps) if apps else None
    node = chance.choice(sorted(name for name in whole.nodes if name != NODE) or [NODE])
    if kind in _ON_CLUSTER:
        _by(history, USER, _ON_CLUSTER[kind](node))
    elif kind == "join":
        claims = {"cpu": 10**12}  # More than it is enrolled with: containers placed there would never start.
        _by(history, NODE, k.NodeJoined(node=NODE, address="10.9.9.9", capacity=claims, ports=(30_000, 30_010)))
    elif app is not None:
        victim = k.AppCancelRequested(app=app.id if chance.random() < 0.5 else app.name, by=app.user, reason="hostile")
        generation: dict[str, Any] = {"app": app.id, "generation": app.generation}
        match kind:
            case "cancel":
                _by(history, USER, victim)
            case "update":
                _by(history, USER, k.AppUpdated(id=owned_id(app.tenant, "x"), app=app.id, by=app.user, weight=999.0))
            case "exit":
                of = whole.nodes[node].identity
                _by(history, NODE, k.ContainerExited(**generation, slot=0, node=node, identity=of, exit_code=0))
            case "progress":
                _by(history, NODE, k.AppProgressed(**generation, step=10**9, loss=-1.0))
            case "checkpoint":
                _by(history, NODE, k.AppCheckpointed(**generation, step=10**9))
            case "resize":
                _by(history, NODE, k.AppResizeRequested(**generation, containers=1))
            case "round":
                _forge(history, [k.AppCancelled(**generation, reason="hostile")])
            case _:
                _forge(history, [k.MasterElected(epoch=whole.epoch + 1)], epoch=whole.epoch + 1)


def _forge(history: History, facts: list[Any], epoch: int = 0) -> None:
    """Forge the next round, without a signature."""
    whole, server = history.world.whole, history.world.server
    if history.audited:
        return  # An audit is meant to find rounds that no master wrote.
    body = k.Round(
        by=FORGER,
        epoch=epoch or whole.epoch,
        basis=len(server.records),
        allocated=False,
        events=facts,
        previous=whole.round_seq,
        signature="0" * 128,
    )
    history.append(subjects.rounds(history.cluster), encode(body))


_ON_CLUSTER: dict[str, Callable[[str], k.Event]] = {
    "drain": lambda node: k.NodeDrainRequested(node=node, by=OPERATOR),
    "settings": lambda node: k.PolicyChanged(node_lease_s=900.0, by=OPERATOR),
    "admin": lambda node: k.UserAdded(name=USER, role="admin", by=ADMIN),
    "expel": lambda node: k.NodeExpelled(node=node, by=ADMIN),
    "keys": lambda node: k.TrustEnabled(masters=[]),
    "leave": lambda node: k.NodeLeft(node=node),
}
_KINDS = (*_ON_CLUSTER, "join", "cancel", "update", "exit", "progress", "checkpoint", "resize", "round", "election")

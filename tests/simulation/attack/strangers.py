"""Strangers who read the log and write to it: their records imitate others' records, or attack readers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from events import kinds as k
from events import subjects
from events.codec import decode, encode
from events.log.records import Record
from tests.simulation.machines.apps import PLAN, STRANGERS

if TYPE_CHECKING:
    from tests.simulation.attack.attack import Attack
    from tests.simulation.attack.faults import Fault

_GUESSES = 40
_LARGE, _MANY = 225_000, 6
"""Size and number of submissions whose answers together exceed the largest message."""
_WORDS: Final = b'{"app": "nobody"}'
_OF_AGENTS: Final = ("ContainerExited", "ContainerStarted", "AppCheckpointed", "NodeJoined")


def take_message_id(attack: Attack, fault: Fault) -> None:
    """A stranger appends under a message id right before its owner does."""
    if fault.argument < 0.35:
        # The id of an election, on which all other rounds of the epoch depend.
        for name in attack.history.masters:
            for process in list(attack.history.hosts[name].processes):
                process.kill()
        _take_next(attack, elections=True, kinds=("Round",))
    elif fault.argument < 0.5:
        _guess_rounds(attack)
    elif fault.argument < 0.85:
        wanted = ("ContainerExited",) if fault.argument < 0.75 else _OF_AGENTS
        _take_next(attack, elections=False, kinds=wanted)
    else:
        _take_next(attack, elections=False, kinds=("AppSubmitted",))


def _take_next(attack: Attack, *, elections: bool, kinds: tuple[str, ...]) -> None:
    """Take the id of the next record of these kinds that reaches the server."""
    server, cluster = attack.world.server, attack.history.cluster

    def forestall(subject: str, body: bytes, msg_id: str) -> None:
        if attack.over:
            server.on_append.remove(forestall)
            return
        if subjects.kind_of(subject) not in kinds or not msg_id or msg_id.startswith(("stranger", "operator")):
            return
        event = decode(Record(0, 0, subject, body))
        if elections and not (isinstance(event, k.Round) and isinstance(event.events[0], k.MasterElected)):
            return
        server.on_append.remove(forestall)
        attack.world.trace("a message id is taken", id=msg_id)
        server.append(subjects.fact(cluster, "AppCancelRequested", "stranger"), _WORDS, msg_id, None, lambda _: None)

    server.on_append.append(forestall)


def _guess_rounds(attack: Attack) -> None:
    """Take the ids of rounds up to release 0.5.0, which followed from the log."""
    server, history = attack.world.server, attack.history
    last = next((r for r in reversed(server.records) if subjects.kind_of(r.subject) == "Round"), None)
    event = decode(last) if last is not None else None
    if not isinstance(event, k.Round):
        return
    end = len(server.records)
    subject = subjects.fact(history.cluster, "AppCancelRequested", "stranger")
    for basis in range(end, end + _GUESSES):
        history.append(subject, _WORDS, f"{event.by}.{event.epoch}.{basis}")


def impersonate_node(attack: Attack, fault: Fault) -> None:
    """A stranger publishes facts of a node's agent, with the identity that anyone can read on the log."""
    whole, history = attack.world.whole, attack.history
    node = whole.nodes.get(fault.target)
    if node is None:
        return
    exits: list[k.ContainerExited | k.NodeLeft] = [
        k.ContainerExited(
            app=app.id, generation=generation.number, slot=slot, node=node.id, identity=node.identity, exit_code=0
        )
        for app in whole.live_apps()
        for generation in app.generations.values()
        for slot, container in generation.containers.items()
        if container.node == node.id and container.state != "exited"
    ]
    leaves = fault.argument >= 0.7 or not exits
    for event in [*exits, k.NodeLeft(node=node.id, identity=node.identity)] if leaves else exits:
        history.append(subjects.fact(history.cluster, type(event).__name__, "stranger"), encode(event))


def submit_large(attack: Attack, fault: Fault) -> None:
    """Submit specs of nearly the largest size, all at once."""
    for number in range(_MANY):
        index = -1 - fault.number * _MANY - number
        spec = STRANGERS.document() | {
            "name": f"large{-index}",
            "env": {PLAN: str(index), "A": "x" * (_LARGE // 2), "B": "x" * (_LARGE // 2)},
        }
        subject = subjects.fact(attack.history.cluster, "AppSubmitted", "stranger")
        attack.history.append(subject, json.dumps({"spec": spec}).encode())


def write_absurd_rounds(attack: Attack, fault: Fault) -> None:
    """Write rounds that would count except for a number that no master writes."""
    if attack.history.audited:
        return  # An audit is meant to find rounds that no master wrote.
    whole, server = attack.world.whole, attack.world.server
    app = next(iter(whole.names.values()), "nobody")
    rounds: list[dict[str, object]] = [
        {"epoch": 2**64 - 1},
        {"epoch": 2**53},
        {"epoch": whole.epoch + 2, "events": [{"kind": "MasterElected", "epoch": 2**53}]},
        {"epoch": whole.epoch, "events": [{"kind": "GenerationFailed", "app": app, "generation": 1, "reason": "",
                                           "retry_at": 2**64 - 1}]},
        {"epoch": whole.epoch, "basis": 2**64 - 1},
        {"epoch": 10**40},
    ]  # fmt: skip
    begin = int(fault.argument * len(rounds))
    for absurd in (rounds * 2)[begin : begin + 2]:
        body: dict[str, object] = {"basis": len(server.records), "allocated": False, "events": [], **absurd}
        attack.history.append(subjects.rounds(attack.history.cluster), json.dumps(body).encode())

"""A node's part becomes the desired state.

The part describes everything at one record; the node's own later facts are applied on top, by the rules of the fold.
What only this process knows is kept: facts in its outbox, and containers that it has seen end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.desired import DesiredApp, Held
from agents.runtime.interface import Key
from events import subjects
from events.codec import decode
from events.identities import Identities

if TYPE_CHECKING:
    from agents.desired import Desired
    from events.parts import AppPart, Masters, NodePart


def install(desired: Desired, part: NodePart) -> bool:
    """Replace the desired state by the part. Return False, and change nothing, for a part of another node, or a part
    older than the desired state: a delayed part must not bring back containers that have ended since."""
    if part.node != desired.node or part.seq <= desired.part_seq or part.epoch < desired.epoch:
        return False
    due_before, ended_before = desired.due, desired.exited
    desired.part_seq, desired.epoch, desired.time = part.seq, part.epoch, max(desired.time, part.time)
    desired.condition, desired.lease_ended = part.condition, part.lease_ended
    desired.holder, desired.held_at, desired.times = part.holder, part.held_at, part.times
    desired.retentions = dict(part.retentions)
    desired.known = known_of(part.masters, part.node)
    desired.apps = {name: _app(app) for name, app in part.apps.items()}
    desired.ended, desired.owners = dict(part.ended), dict(part.owners)
    states = {
        Key(name, one.generation, one.slot): one.state for name, app in part.apps.items() for one in app.containers
    }
    desired.due = {key for key, state in states.items() if state != "exited"}
    desired.started = {key for key in desired.due if states[key] == "running" or key in desired.started}
    desired.exited = {key for key, state in states.items() if state == "exited"} | ended_before
    desired.exited |= due_before - desired.due
    desired.exited = {key for key in desired.exited if key.app in desired.apps}
    desired.announced = {key for key in desired.announced if key in desired.due and key not in desired.started}
    desired.told = {key: told for key, told in desired.told.items() if key in desired.due}
    _apply_later(desired)
    return True


def _apply_later(desired: Desired) -> None:
    desired.later = [record for record in desired.later if record.seq > desired.part_seq]
    for record in desired.later:
        desired.apply(decode(record), subjects.who_of(record.subject), record)


def known_of(masters: Masters | None, node: str) -> Identities | None:
    """Return the part of the cluster's identities that a node has to know; None while the cluster is open."""
    if masters is None:
        return None
    return Identities(
        since=masters.since,
        masters=list(masters.keys),
        masters_since=masters.keys_since,
        masters_before=list(masters.keys_before),
        nodes={node: masters.enrolment} if masters.enrolment is not None else {},
    )


def _app(part: AppPart) -> DesiredApp:
    held = part.held
    return DesiredApp(
        spec=part.spec,
        generation=part.generation,
        placement=part.placement,
        members=part.members,
        membership=part.membership,
        founders=part.founders,
        master_port=part.master_port,
        released=part.released,
        failed=part.failed,
        resume=part.resume,
        checkpoints=part.checkpoints,
        ended_at=part.ended_at,
        killed=part.killed,
        ahead=part.ahead,
        held=Held(held.generation, held.until, held.waits_for) if held is not None else None,
        batch=part.batch,
        earlier=part.earlier,
        earlier_until=part.earlier_until,
        tenant=part.tenant,
    )

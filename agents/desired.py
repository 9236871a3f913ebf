"""What this node should run: its part, which the master derives from the log, and the node's own facts on top.

Pure.  It depends on the log alone, so a restarted agent has the same desired state as one that never stopped.  The
node's own reports are part of it: a missing container has ended if its start was reported, and has yet to be started
otherwise.

*A part becomes what is desired* (`Desired.install`).  It describes everything at one record.  The node's own later facts
are applied on top, by the master's rules, so that both agree on every container.  What only this process knows is kept:
facts in its outbox, and containers that it has seen end.

Before its first part, and after an announcement until a part is derived from a later record, the node starts and stops
nothing (`Desired.fresh`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

from agents.progress import LOGGED, Logged
from agents.runtime.interface import Key
from events import kinds as k
from events import subjects
from events.codec import decode
from events.identities import Identities, NotAllowed, claims_too_much, ends, may_hold
from events.log.records import Record
from events.parts import AppPart
from events.times import Times

if TYPE_CHECKING:
    from agents.progress import ProgressFact
    from events.parts import Masters, NodePart


# --- subjects ---------------------------------------------------------------------------------------------------------

_IDENTITIES = (k.TrustEnabled, k.UserAdded, k.UserRemoved, k.NodeEnrolled, k.NodeExpelled)
"""Tokens of the HTTP API are none of an agent's business."""
OF_NODE = (k.NodeJoined, k.NodeLeft, k.ContainerStarted, k.ContainerExited)


def own_subjects(cluster: str, node: str) -> list[str]:
    """Return the subjects of the node's own facts: all that an agent follows of the log."""
    own = (*OF_NODE, *LOGGED)
    return [subjects.fact(cluster, kind.__name__, node) for kind in own]


def subjects_of_identities(cluster: str) -> list[str]:
    """Return the subjects that say whose signature counts."""
    return [subjects.fact_pattern(cluster, kind.__name__) for kind in _IDENTITIES]


# --- what is desired --------------------------------------------------------------------------------------------------

BEATS = 3
"""Heartbeats within the shorter of lease and grace time: one lost heartbeat must not cost a short lease."""
_NUMBER = re.compile(r"[0-9]{1,15}")


class Desired(msgspec.Struct):
    """The state after the part of the record `part_seq` and the node's own facts up to `seq`.

    Which containers the master counts as running here follows from the master's own rules: `due` holds the containers that
    were released to this node and, by the log, have not ended.
    """

    node: str
    seq: int = 0
    """The last of the node's own facts that was folded."""
    part_seq: int = 0
    """The record that the part derives from; own facts after it are applied on top.  0 before the first part."""
    later: list[Record] = []
    """Own facts after the part."""
    joined_seq: int = 0
    """The last announcement of a machine with this name."""
    epoch: int = 0
    condition: Literal["", "up", "lost", "left"] = ""
    lease_ended: bool = False
    holder: str = ""
    """The identity that holds the node's name; it may differ from the identity of the agent that folds this."""
    held_at: str = ""
    """The holder's address."""
    process: str = ""
    """The process of the holder's agent that joined last."""
    times: Times = Times()
    retentions: dict[str, float] = {}
    """Seconds for which ended apps are kept, by tenant, if that is a time of its own."""
    apps: dict[str, AppPart] = {}
    due: set[Key] = set()
    started: set[Key] = set()
    """Containers that this node has reported as started, and that are still of interest."""
    announced: set[Key] = set()
    """Containers whose start is in the agent's outbox and has not been read back."""
    exited: set[Key] = set()
    """Containers that this node has reported as ended, or that the master counts as ended: they must not run, or not again."""
    time: int = 0
    """Log time (UTC ns) of the last record."""
    logged: dict[Key, Logged] = {}
    """Progress of containers still of interest, as far as the log has it."""
    known: Identities | None = None
    """The cluster's identities as far as the node has to know them; None while the cluster is open."""
    unsigned: int = 0
    """Parts that none of the masters' keys signed: they are not obeyed."""
    refused: NotAllowed | None = None
    """Reason why this node's last announcement does not count, None if it does."""
    ended: dict[str, int] = {}
    """Log times (UTC ns) at which apps with containers here ended."""
    owners: dict[str, str] = {}
    """Owners of apps that had containers here and have none now."""

    @property
    def fresh(self) -> bool:
        """Whether the desired state is at least as new as the last announcement.  Before that, containers may have been
        counted as ended, and their generation as over, without a sign of it here: nothing is started or stopped."""
        return self.part_seq >= self.joined_seq

    @property
    def knows_lease(self) -> bool:
        """Whether the lease was ever known."""
        return self.part_seq > 0

    @property
    def enrolled(self) -> bool:
        """Whether the cluster takes this node's word."""
        return self.known is None or self.node in self.known.nodes

    @property
    def lease_s(self) -> float:
        return self.times.node_lease_s

    def owner_of(self, app_id: str) -> str | None:
        """Return the owner of an app that has or had containers here, None for an unknown app."""
        app = self.apps.get(app_id)
        return app.owner if app is not None else self.owners.get(app_id)

    def may_hold(self, identity: str) -> bool:
        """Return whether, by the log, a join as `identity` would take effect."""
        gone = self.condition in ("", "left") or self.lease_ended
        return may_hold(self.holder, identity, gone=gone)

    def retention_of(self, app: str) -> float:
        """Return how long (s) files of an ended app are kept."""
        return self.retentions.get(self.owner_of(app) or "", self.times.retention_s)

    def pace(self, interval_s: float) -> float:
        """Return seconds between two heartbeats of a node configured to send one every `interval_s`."""
        times = self.times
        return min(interval_s, times.heartbeat_s, times.node_lease_s / BEATS, times.node_grace_s / BEATS)

    # --- the part -------------------------------------------------------------------------------------------------------

    def install(self, part: NodePart) -> bool:
        """Replace the desired state by the part. Return False, and change nothing, for a part of another node, or a part
        older than the desired state: a delayed part must not bring back containers that have ended since."""
        if part.node != self.node or part.seq <= self.part_seq or part.epoch < self.epoch:
            return False
        due_before, ended_before = self.due, self.exited
        self.part_seq, self.epoch, self.time = part.seq, part.epoch, max(self.time, part.time)
        self.condition, self.lease_ended = part.condition, part.lease_ended
        self.holder, self.held_at, self.times = part.holder, part.held_at, part.times
        self.retentions = dict(part.retentions)
        self.known = known_of(part.masters, part.node)
        self.apps = dict(part.apps)
        self.ended, self.owners = dict(part.ended), dict(part.owners)
        states = {
            Key(name, container.generation, container.slot): container.state
            for name, app in part.apps.items()
            for container in app.containers
        }
        self.due = {key for key, state in states.items() if state != "exited"}
        self.started = {key for key in self.due if states[key] == "running" or key in self.started}
        self.exited = {key for key, state in states.items() if state == "exited"} | ended_before
        self.exited |= due_before - self.due
        self.exited = {key for key in self.exited if key.app in self.apps}
        self.announced = {key for key in self.announced if key in self.due and key not in self.started}
        self.logged = {key: logged for key, logged in self.logged.items() if key in self.due}
        self.later = [record for record in self.later if record.seq > self.part_seq]
        for record in self.later:
            self._apply(decode(record), subjects.who_of(record.subject))
        return True

    # --- own facts ------------------------------------------------------------------------------------------------------

    def fold(self, record: Record) -> None:
        """Apply a record.  Unreadable or irrelevant records change nothing; no record raises."""
        self.seq, self.time = record.seq, max(self.time, record.time)
        event, who = decode(record), subjects.who_of(record.subject)
        if isinstance(event, k.NodeJoined) and event.node == self.node and who == subjects.token(self.node):
            self.joined_seq = record.seq
            self.refused = self._refusal(event)
        if isinstance(event, OF_NODE):
            if record.seq <= self.part_seq:
                return
            self.later.append(record)
        self._apply(event, who)

    def _apply(self, event: k.Event, who: str) -> None:
        """Apply an event that `who` has published."""
        if who != subjects.token(self.node) or not self.enrolled:
            return
        match event:
            case k.ContainerStarted() if self._of_holder(event):
                key = Key(event.app, event.generation, event.slot)
                self.announced.discard(key)
                if key in self.due:
                    self.started.add(key)
            case k.ContainerExited() if self._of_holder(event):
                self._end(Key(event.app, event.generation, event.slot))
            case (
                k.AppCheckpointed()
                | k.AppProgressed()
                | k.AppResizeRequested()
                | k.MembershipChanged()
                | k.EpochCompleted()
                | k.ProgressLinesSkipped()
            ):
                self._note_progress(event)
            case k.NodeJoined() if (
                event.node == self.node and not self._refusal(event) and self.may_hold(event.identity)
            ):
                self.condition, self.lease_ended = "up", False
                self.holder, self.held_at, self.process = event.identity, event.address, event.process
            case k.NodeLeft() if self._of_holder(event) and self.condition != "left":
                if ends(self.process, event.process):
                    self.condition, self.lease_ended = "left", False
                    self._end_all()
            case _:
                pass

    def _refusal(self, event: k.NodeJoined) -> NotAllowed | None:
        """Return why the cluster refuses this announcement, by the master's rules; None if it does not."""
        if not self.enrolled:
            text = f"the cluster knows no node {self.node}; an admin enrols it with `dorm node intro`"
            return NotAllowed("identity.node.unknown", text)
        enrolled = self.known.nodes.get(self.node) if self.known is not None else None
        return claims_too_much(enrolled, event) if enrolled is not None else None

    def _of_holder(self, event: k.ContainerStarted | k.ContainerExited | k.NodeLeft) -> bool:
        """Apply the master's rule: reports of another machine with this name do not concern this node's containers."""
        return event.node == self.node and event.identity == self.holder

    def _note_progress(self, event: ProgressFact) -> None:
        """Note a stored progress fact; its id names container and line (`agents.progress`)."""
        name, _, end = event.id.rpartition(f".{type(event).__name__}.")
        slot = name.removeprefix(f"{self.node}.{event.app}-{event.generation}-")
        if not (_NUMBER.fullmatch(slot) and _NUMBER.fullmatch(end)):
            return
        logged = self.logged.setdefault(Key(event.app, event.generation, int(slot)), Logged())
        field = LOGGED[type(event)]
        setattr(logged, field, max(getattr(logged, field), int(end)))

    def _end(self, key: Key) -> None:
        if key in self.due:
            self.due.discard(key)
            self.exited.add(key)

    def _end_all(self) -> None:
        """Mark all as ended: by the log nothing runs here, so anything still running is stopped."""
        self.exited |= self.due
        self.due.clear()

    # --- containers -----------------------------------------------------------------------------------------------------

    def wanted(self) -> dict[Key, AppPart]:
        """Return the containers that should run here now, by key."""
        return {
            Key(name, app.generation, placed.slot): app
            for name, app in sorted(self.apps.items())
            if app.released and not app.failed and not app.ended_at
            for placed in app.here(self.node)
        }

    def works_on(self, key: Key, now: int) -> bool:
        """Return whether a container of an earlier generation may keep running while the next one is prepared."""
        app = self.apps.get(key.app)
        if app is None or app.held is None or app.ended_at or key.generation != app.held.generation:
            return False
        return bool(app.held.waits_for) and now < app.held.until

    def to_prepare(self) -> dict[Key, AppPart]:
        """Return the containers that will run here once their generation is released, by key."""
        return {
            Key(name, app.generation, placed.slot): app
            for name, app in sorted(self.apps.items())
            if app.ahead and not app.released and not app.failed and not app.ended_at
            for placed in app.here(self.node)
        }

    def forget(self, app: str) -> None:
        """Forget an ended app with nothing left on this node, unless the log still counts one of its containers as running:
        its end then still has to be reported."""
        if any(key.app == app for key in self.due):
            return
        self.apps.pop(app, None)
        self.ended.pop(app, None)
        self.started = {key for key in self.started if key.app != app}
        self.announced = {key for key in self.announced if key.app != app}
        self.exited = {key for key in self.exited if key.app != app}
        self.logged = {key: logged for key, logged in self.logged.items() if key.app != app}


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

"""What this node should run: a fold over the master's rounds and over the node's own facts.

Pure.  It depends on the log alone, so a restarted agent has the same desired state as one that never stopped.  The
node's own reports are part of it: a missing container has ended if its start was reported, and has yet to be started
otherwise.

The subjects of the log that an agent reads stand here too.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Literal

import msgspec

from agents.progress import TOLD, Told
from agents.runtime.interface import Key
from events import kinds as k
from events import subjects
from events.chain import is_round_signed_by
from events.codec import decode
from events.identities import Identities, NotAllowed, after, claims_too_much, ends, may_hold, takes, tenant_in
from events.kinds import Placed
from events.log.records import Record
from events.spec import AppSpec, can_be_read
from events.spec.editing import differing
from events.times import HarmfulTimes, Times, retentions_after, times_after

if TYPE_CHECKING:
    from agents.progress import ProgressFact


# --- subjects ---------------------------------------------------------------------------------------------------------

_IDENTITIES = (k.TrustEnabled, k.UserAdded, k.UserRemoved, k.NodeEnrolled, k.NodeExpelled)
"""Tokens of the HTTP API are none of an agent's business."""
OF_NODE = (k.NodeJoined, k.NodeLeft, k.ContainerStarted, k.ContainerExited)


def subjects_of(cluster: str, node: str) -> list[str]:
    """Return the subjects that `Desired.fold` needs.  No two of these patterns match the same subject: only then does the
    server filter; otherwise it sends every agent the whole log."""
    return [
        subjects.rounds(cluster),
        subjects.fact_pattern(cluster, k.PolicyChanged.__name__),
        subjects.fact_pattern(cluster, k.ContainersPrepared.__name__),
        *subjects_of_identities(cluster),
        *own_subjects(cluster, node),
    ]


def own_subjects(cluster: str, node: str) -> list[str]:
    """Return the subjects of the node's own facts: all that an agent reads of the log if it follows its part."""
    own = (*OF_NODE, *TOLD)
    return [subjects.fact(cluster, kind.__name__, node) for kind in own]


def subjects_of_identities(cluster: str) -> list[str]:
    """Return the subjects that say whose signature counts."""
    return [subjects.fact_pattern(cluster, kind.__name__) for kind in _IDENTITIES]


# --- the fold ---------------------------------------------------------------------------------------------------------

BEATS = 3
"""Heartbeats within the shorter of lease and grace time: one lost heartbeat must not cost a short lease."""
_NUMBER = re.compile(r"[0-9]{1,15}")


class Held(msgspec.Struct):
    """The generation before, which works on until the next one is prepared (`Resize.prepare_s`)."""

    generation: int
    until: int
    """Log time (UTC ns)."""
    waits_for: list[str]
    """Nodes that have not prepared their containers yet."""


class DesiredApp(msgspec.Struct):
    """One app, reduced to what agents need."""

    spec: AppSpec
    generation: int = 0
    placement: list[Placed] = []
    """The containers of the generation: of a live app, its members."""
    members: list[Placed] = []
    """Of a live app: the membership that was announced last, which replaces `placement` once it is committed."""
    membership: int = 0
    """The number of that membership; 0 before the release."""
    founders: list[int] = []
    """Slots of the generation's first membership."""
    first: dict[int, list[Placed]] = {}
    """By slot, for newcomers on this node: the membership that they joined, from which their environment follows."""
    master_port: int = 0
    released: bool = False
    failed: bool = False
    resume: bool = False
    checkpoints: str = ""
    """The checkpoint folder in which the generation works, "" if no node has announced one."""
    ended_at: int = 0
    """Log time (UTC ns) of its end, 0 while it lives."""
    killed: bool = False
    """Its containers get no time to stop."""
    ahead: bool = False
    """Whether containers of a generation that is not released yet are prepared: it replaces a container that ran."""
    held: Held | None = None
    batch: int = 0
    """Its batch size as decided last, in samples; 0 while it has its initial one, or none."""
    tenant: str = ""
    """Who owns it; "" on an open cluster."""
    next: AppSpec | None = None
    """The spec of its next generation, if its owner has edited it."""
    earlier: AppSpec | None = None
    """The spec of the generations up to `earlier_until`, if it is not `spec`."""
    earlier_until: int = 0

    def spec_of(self, generation: int) -> AppSpec:
        """Return the spec that the containers of a generation were started with."""
        return self.earlier if self.earlier is not None and generation <= self.earlier_until else self.spec

    def revise(self, fact: k.AppRevised) -> None:
        """Note an edit: its next generation starts with the new spec."""
        readable = can_be_read(fact.spec) and can_be_read(fact.next or fact.spec)
        if readable and (fact.next is not None or not differing(self.spec, fact.spec).by_restart):
            self.spec, self.next = fact.spec, fact.next
        elif readable:
            self.next = fact.spec

    def take_next(self) -> None:
        """Its latest generation has the spec that was edited last."""
        if self.next is not None:
            if self.earlier is None:
                self.earlier, self.earlier_until = self.spec, self.generation - 1
            self.batch = self.batch if self.next.batch == self.spec.batch else 0
            self.spec, self.next = self.next, None

    @property
    def batch_size(self) -> int:
        """The batch size that it has; 0 if it accepts only its own."""
        return (self.batch or self.spec.batch.initial) if self.spec.batch is not None else 0

    @property
    def owner(self) -> str:
        """Whose containers are kept apart from others': its tenant, or on an open cluster its user."""
        return self.tenant or self.spec.user

    @property
    def live(self) -> bool:
        return self.spec.elastic == "live"

    @property
    def first_slot(self) -> int:
        """The lowest slot with which its latest generation starts."""
        return min(self.founders, default=min((placed.slot for placed in self.placement), default=0))

    def here(self, node: str) -> list[Placed]:
        """Return its members on a node, and those that join or leave."""
        both = {placed.slot: placed for placed in [*self.placement, *self.members]}
        return [placed for _, placed in sorted(both.items()) if placed.node == node]

    def joined_as(self, slot: int) -> list[Placed]:
        """Return the membership with which this slot starts."""
        member = any(placed.slot == slot for placed in self.placement)
        return self.first.get(slot, self.placement if member else self.members)


class Desired(msgspec.Struct):
    """The state after `seq`, for one node.

    Which containers the master counts as running here is folded by the master's own rules, so that both agree on every key:
    `due` holds the containers that were released to this node and, by the log, have not ended.
    """

    node: str
    seq: int = 0
    epoch: int = 0
    round_seq: int = 0
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
    """Of tenants whose ended apps are kept for a time of their own, in seconds."""
    apps: dict[str, DesiredApp] = {}
    due: set[Key] = set()
    started: set[Key] = set()
    """Reported by this node as started, and still of interest."""
    announced: set[Key] = set()
    """Containers whose start is in the agent's outbox and has not been read back."""
    exited: set[Key] = set()
    """Reported by this node as ended, or concluded by the master: it must not run, or not again."""
    time: int = 0
    """Log time (UTC ns) of the last record."""
    told: dict[Key, Told] = {}
    """How much of the progress files of containers still of interest the log has."""
    known: Identities | None = None
    """Who may do what, without tokens; None while the cluster is open."""
    unsigned: int = 0
    """Rounds that none of the masters' keys signed: they are not obeyed."""
    refused: NotAllowed | None = None
    """Why this node's last announcement does not count, None if it does."""
    by_part: bool = False
    """Whether the node follows its part (`events.parts`), and of the log only its own facts."""
    part_seq: int = 0
    """The record that the part derives from; own facts after it are applied on top."""
    later: list[Record] = []
    """These facts."""
    joined_seq: int = 0
    """The last announcement of a machine with this name."""
    ended: dict[str, int] = {}
    """Log times (UTC ns) at which apps with containers here ended, if only the part states them."""
    owners: dict[str, str] = {}
    """Owners of apps that had containers here and have none now, if only the part states them."""

    @property
    def fresh(self) -> bool:
        """Whether the desired state is at least as new as the last announcement.  Before that, containers may have been
        counted as ended, and their generation as over, without a sign of it here: nothing is started or stopped."""
        return (self.part_seq if self.by_part else self.seq) >= self.joined_seq

    def owner_of(self, app_id: str) -> str | None:
        """Return the owner of an app that has or had containers here, None for an unknown app."""
        app = self.apps.get(app_id)
        return app.owner if app is not None else self.owners.get(app_id)

    @property
    def knows_lease(self) -> bool:
        """Whether the lease was ever known."""
        return not self.by_part or self.part_seq > 0

    @property
    def enrolled(self) -> bool:
        """Whether the cluster takes this node's word."""
        return self.known is None or self.node in self.known.nodes

    def fold(self, record: Record) -> None:
        """Apply a record.  Unreadable or irrelevant records change nothing; no record raises."""
        self.seq, self.time = record.seq, max(self.time, record.time)
        event, who = decode(record), subjects.who_of(record.subject)
        if isinstance(event, k.NodeJoined) and event.node == self.node and who == subjects.token(self.node):
            self.joined_seq = max(self.joined_seq, record.seq)  # It may fold again from the log's start.
            self.refused = self._refusal(event)
        if self.by_part and isinstance(event, OF_NODE):
            if record.seq <= self.part_seq:
                return
            self.later.append(record)
        self.apply(event, who, record)

    def apply(self, event: k.Event, who: str, record: Record) -> None:
        """Apply an event that `who` has published in this record."""
        own = who == subjects.token(self.node) and self.enrolled
        match event:
            case k.Round():
                self._round(event, record)
            case k.TrustEnabled() | k.UserAdded() | k.UserRemoved() | k.NodeEnrolled() | k.NodeExpelled():
                if takes(self.known, event, who, record.seq) is None:
                    self.known = after(self.known, event, who, record.seq)
            case k.ContainersPrepared() if subjects.who_of(record.subject) == subjects.token(event.node):
                self._prepared(event)
            case k.ContainerStarted() if own and self._of_holder(event):
                key = Key(event.app, event.generation, event.slot)
                self.announced.discard(key)
                if key in self.due:
                    self.started.add(key)
            case k.ContainerExited() if own and self._of_holder(event):
                self._end(Key(event.app, event.generation, event.slot))
            case (
                k.AppCheckpointed()
                | k.AppProgressed()
                | k.AppResizeRequested()
                | k.MembershipChanged()
                | k.EpochCompleted()
                | k.ProgressLinesSkipped()
            ) if own:
                self._tell(event)
            case k.NodeJoined() if (
                own and event.node == self.node and not self._refusal(event) and self.may_hold(event.identity)
            ):
                self.condition, self.lease_ended = "up", False
                self.holder, self.held_at, self.process = event.identity, event.address, event.process
            case k.NodeLeft() if own and self._of_holder(event) and self.condition != "left":
                if ends(self.process, event.process):
                    self.condition, self.lease_ended = "left", False
                    self._end_all()
            case k.PolicyChanged() if self.known is None or self.known.operates(who):
                with contextlib.suppress(HarmfulTimes):  # The master refuses it too, and remembers why.
                    self.times = times_after(self.times, event)
                    self.retentions = retentions_after(self.retentions, event)
            case _:
                pass
        if subjects.kind_of(record.subject) == k.Round.__name__:
            self.round_seq = record.seq

    def may_hold(self, identity: str) -> bool:
        """Return whether, by the log, a join as `identity` would take effect."""
        gone = self.condition in ("", "left") or self.lease_ended
        return may_hold(self.holder, identity, gone=gone)

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

    def _tell(self, event: ProgressFact) -> None:
        """Note a stored progress fact; its id names container and line (`agents.progress`)."""
        name, _, end = event.id.rpartition(f".{type(event).__name__}.")
        slot = name.removeprefix(f"{self.node}.{event.app}-{event.generation}-")
        if not (_NUMBER.fullmatch(slot) and _NUMBER.fullmatch(end)):
            return
        key = Key(event.app, event.generation, int(slot))
        if key not in self.due and key not in self.started and not self.by_part:
            return
        told = self.told.setdefault(key, Told())
        field = TOLD[type(event)]
        setattr(told, field, max(getattr(told, field), int(end)))

    def _end(self, key: Key) -> None:
        if key in self.due:
            self.due.discard(key)
            self.exited.add(key)

    def _end_all(self) -> None:
        """Mark all as ended: by the log nothing runs here, so anything still running is stopped."""
        self.exited |= self.due
        self.due.clear()

    def _round(self, event: k.Round, record: Record) -> None:
        """Apply a round, unless it is void, by the master's own rule."""
        if not self.epoch <= event.epoch <= self.epoch + 1 or not self.round_seq <= event.basis < record.seq:
            return
        keys = self.known.keys_at(event.basis) if self.known is not None else ()
        if keys and not is_round_signed_by(record.body, self.round_seq, keys):
            self.unsigned += 1
            return
        self.epoch = event.epoch
        for fact in event.events:
            match fact:
                case k.AppAccepted() if can_be_read(fact.spec):
                    self.apps.setdefault(fact.app, DesiredApp(fact.spec, tenant=tenant_in(fact.submission)))
                case k.Resized():
                    for change in fact.changes:
                        self._resize(change, record.time)
                        if change.adjustment != "live" and (app := self._current(change.app, change.to_generation)):
                            app.take_next()
                    for name, size in fact.batches.items():
                        if name in self.apps:
                            self.apps[name].batch = size
                case k.GenerationReleased() if app := self._current(fact.app, fact.generation):
                    self._release(fact, app)
                case k.MembersReleased() | k.MembersLost() if app := self._current(fact.app, fact.generation):
                    self._announce(fact, app)
                case k.MembershipCommitted() if app := self._current(fact.app, fact.generation):
                    app.placement = app.members
                case k.LiveResizeFailed():
                    self._resize(fact.restart, record.time)
                case k.GenerationFailed() if app := self._current(fact.app, fact.generation):
                    app.failed = True
                case k.AppCompleted() | k.AppFailed() | k.AppCancelled():
                    self._end_app(fact.app, record.time)
                case k.AppRevised() if app := self.apps.get(fact.app):
                    app.revise(fact)
                case k.AppRestarted() if fact.spec is not None and can_be_read(fact.spec):
                    self._revive(fact, fact.spec)
                case k.AppKilled() if fact.app in self.apps:
                    self.apps[fact.app].killed = True
                case k.NodeLost() | k.NodeRecovered() | k.NodeLeaseEnded():
                    self._node(fact)
                case _:
                    pass

    def _node(self, fact: k.NodeLost | k.NodeRecovered | k.NodeLeaseEnded) -> None:
        if isinstance(fact, k.NodeLost):
            for app in self.apps.values():  # Nothing more is prepared there; the next decision places the app again.
                if app.held is not None and fact.node in app.held.waits_for:
                    app.held = None
        if fact.node != self.node:
            return
        match fact:
            case k.NodeLost() if self.condition == "up":
                self.condition = "lost"
            case k.NodeRecovered() if self.condition == "lost":
                self.condition, self.lease_ended = "up", False
            case k.NodeLeaseEnded() if self.condition == "lost":
                self.lease_ended = True
                self._end_all()
            case _:
                pass

    def _current(self, app: str, generation: int) -> DesiredApp | None:
        known = self.apps.get(app)
        return known if known is not None and known.generation == generation else None

    def _prepared(self, event: k.ContainersPrepared) -> None:
        app = self._current(event.app, event.generation)
        if app is not None and app.held is not None:
            app.held.waits_for = [node for node in app.held.waits_for if node != event.node]

    def _resize(self, change: k.Resize, time: int) -> None:
        app = self.apps.get(change.app)
        if app is None or change.adjustment == "live" or change.to_generation != app.generation + 1:
            return  # A live adjustment begins with its release.
        app.ahead, app.held = change.adjustment == "restart", None
        if change.prepare_s and app.released and not app.failed:
            until = time + int(change.prepare_s * 1e9)
            app.held = Held(app.generation, until, sorted({placed.node for placed in change.placement}))
        app.generation, app.placement, app.master_port = change.to_generation, change.placement, change.master_port
        app.members, app.membership, app.founders, app.first = [], 0, [], {}
        app.released = app.failed = app.resume = False

    def _release(self, fact: k.GenerationReleased, app: DesiredApp) -> None:
        if app.released:
            return
        app.released, app.resume, app.checkpoints, app.held = True, fact.resume, fact.checkpoints, None
        app.earlier = None
        app.members, app.membership = app.placement, 1
        app.founders = sorted(placed.slot for placed in app.placement)
        for placed in app.placement:
            if placed.node == self.node:
                self.due.add(Key(fact.app, fact.generation, placed.slot))
                if self.condition == "left" or self.lease_ended:
                    self._end(Key(fact.app, fact.generation, placed.slot))

    def _end_app(self, name: str, time: int) -> None:
        app = self.apps.get(name)
        if app is None:
            return
        app.ended_at = app.ended_at or time
        if not any(key.app == name for known in (self.due, self.started, self.exited) for key in known):
            # It was never here: an agent must not remember every app of the cluster.
            del self.apps[name]

    def _revive(self, fact: k.AppRestarted, spec: AppSpec) -> None:
        """An ended app resumes. One that was never on this node was forgotten at its end."""
        app = self.apps.setdefault(fact.app, DesiredApp(spec, generation=fact.generation, tenant=fact.tenant))
        app.ended_at, app.killed, app.failed = 0, False, True

    # --- memberships ----------------------------------------------------------------------------------------------------

    def _announce(self, fact: k.MembersReleased | k.MembersLost, app: DesiredApp) -> None:
        """New members on this node start; every member learns the membership."""
        if not app.released or app.failed or app.ended_at or fact.membership != app.membership + 1:
            return
        lost = fact.lost if isinstance(fact, k.MembersLost) else []
        known = {placed.slot for placed in [*app.placement, *app.members]}
        app.membership, app.members = fact.membership, fact.members
        app.placement = [placed for placed in app.placement if placed.slot not in lost]
        for placed in fact.members:
            if placed.node != self.node or placed.slot in known:
                continue
            key = Key(fact.app, fact.generation, placed.slot)
            app.first[placed.slot] = fact.members
            self.due.add(key)
            if self.condition == "left" or self.lease_ended:
                self._end(key)

    @property
    def lease_s(self) -> float:
        return self.times.node_lease_s

    def retention_of(self, app: str) -> float:
        """Return how long (s) files of an ended app are kept."""
        return self.retentions.get(self.owner_of(app) or "", self.times.retention_s)

    def pace(self, interval_s: float) -> float:
        """Return seconds between two heartbeats of a node configured to send one every `interval_s`."""
        times = self.times
        return min(interval_s, times.heartbeat_s, times.node_lease_s / BEATS, times.node_grace_s / BEATS)

    def wanted(self) -> dict[Key, DesiredApp]:
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

    def to_prepare(self) -> dict[Key, DesiredApp]:
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
        self.told = {key: told for key, told in self.told.items() if key.app != app}

"""One app in the state: its submission, generations, gates and revisions, and what is remembered of it.

Only types, and what follows from one app's own fields.  The rules are where the concept is: gates and running time in
`dorm.core.gates` and `dorm.core.deadlines`, edits and restarts in `dorm.core.revisions`, sizes in `dorm.core.sizes`,
failures by place in `dorm.core.faults`.

"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from dorm.core.generation import Container, Generation
from events.identities import tenant_in
from events.kinds import Doubt, LossIs, PlannedSlot, Waiting
from events.spec import AppSpec
from events.spec.gates import When

if TYPE_CHECKING:
    from collections.abc import Iterator


# --- gates and running time -------------------------------------------------------------------------------------------


class Hold(msgspec.Struct, frozen=True, gc=False):
    """A user holds the app (`AppHoldRequested`, or `hold: true` in its spec)."""

    by: str
    at: int
    """Log time (UTC ns)."""
    reason: str
    operator: bool = False
    """Whether an operator holds another user's app, so that only operators release it."""


class Awaited(msgspec.Struct, frozen=True, gc=False):
    """Another app that this one waits for (`after` of its spec)."""

    app: str
    """Id of the app; "" once it has ended, because the state forgets it some time later."""
    name: str
    when: When
    """End that it has to have."""
    outcome: Literal["", "completed", "failed", "cancelled"] = ""
    """End that it had, "" before."""

    @property
    def holds(self) -> bool:
        """Whether it has ended as it has to."""
        return self.outcome != "" and self.when in ("ended", self.outcome)

    @property
    def broken(self) -> bool:
        """Whether it has ended otherwise, so that the wait would never end."""
        return self.outcome != "" and not self.holds


class Gates(msgspec.Struct):
    """The gates of an app.  While one is closed, the app has and gets no containers, and is not a demand for any policy."""

    hold: Hold | None = None
    """The hold; None while there is none."""
    after: list[Awaited] = []
    """Apps that it waits for, or has waited for."""
    starts_at: int = 0
    """Log time (UTC ns) before which it gets no containers; 0 for any time."""
    closed_at: int = 0
    """Log time (UTC ns) since which a gate is closed that a record opens, not before `starts_at`; 0 while there is
    none."""
    closed_ns: int = 0
    """Time for which gates were closed before that, until `starts_at` included: this time does not count towards an
    app's age."""


class RunTime(msgspec.Struct, gc=False):
    """How long an app with a limit has run."""

    ran_ns: int = 0
    """Running time of generations that have ended."""
    since: int = 0
    """Log time (UTC ns) since which the present one runs; 0 while none does."""


# --- edits and restarts -----------------------------------------------------------------------------------------------

MOST_REVISIONS = 20
"""Number of revisions of an app that are remembered."""


class Revision(msgspec.Struct, frozen=True):
    """One edit."""

    number: int
    seq: int
    at: int
    """Log time (UTC ns)."""
    by: str
    changed: list[str]
    """Changed fields of the spec."""


class Earlier(msgspec.Struct, frozen=True):
    """A spec that is in force no longer, and with which containers may still run."""

    spec: AppSpec
    upto: int
    """The last revision to which it belongs."""


class Revisions(msgspec.Struct):
    """An app's edits."""

    latest: int
    """Number of the latest spec: the submitted one is 1."""
    in_force: int
    """The revision that `App.spec` is of."""
    pending: AppSpec | None = None
    """The latest spec, if the app runs and needs a restart for it: its next generation starts with it."""
    earlier: Earlier | None = None
    history: list[Revision] = []
    """The latest edits, at most `MOST_REVISIONS`."""


class Restart(msgspec.Struct, frozen=True):
    """A restart that was accepted.  A generation that is decided after `seq` satisfies it."""

    seq: int
    fresh: bool
    """Whether it starts without a checkpoint."""
    by: str


class Asked(msgspec.Struct, frozen=True):
    """The content of a request about an existing app that waits for the master's answer."""

    what: Literal["edit", "restart"]
    made_from: str = ""
    """Fingerprint of the spec that was edited, for an edit."""
    fresh: bool = False
    reason: str = ""


# --- apps -------------------------------------------------------------------------------------------------------------

HISTORY = 50
"""Number of adjustments of an app that are remembered."""


class AdjustmentRecord(msgspec.Struct, gc=False):
    """One finished adjustment, by its phases (log times)."""

    from_generation: int
    to_generation: int
    containers_before: int
    containers_after: int
    decided_at: int
    stopped_at: int
    released_at: int
    started_at: int = 0
    checkpoint: int | None = None
    lost_steps: int = 0
    killed: int = 0
    """Containers that did not exit within their grace time and were killed."""
    prepared_at: int = 0
    """Log time until which the previous generation worked on, while the new one was prepared; 0 if it stopped at the
    decision."""
    resumed_at: int = 0
    """Log time at which the new generation first reported progress or a checkpoint; 0 before."""
    resumed_step: int = 0
    """The step that it reported then."""
    steps_per_s: float = 0.0
    """Speed of the previous generation, with `containers_before`; 0 if unknown."""
    live: bool = False
    """Whether it kept its generation: `released_at` is when the membership was announced, `started_at` when it trained.
    The next four are what its leader reported."""
    warm_up_s: float = 0.0
    barrier_s: float = 0.0
    pause_s: float = 0.0
    bytes_moved: int = 0
    revision: int = 1
    """The revision of the spec with which the new generation was started."""


class MeasuredSpeed(msgspec.Struct, frozen=True, gc=False):
    """How fast an app worked with one partition (`dorm.core.costs`)."""

    containers: int
    nodes: int
    """Number of nodes on which they were."""
    type: str
    """The value of the label `type` of these nodes; "" if they have none, or differ."""
    steps: int
    ns: int


class Held(msgspec.Struct, frozen=True, gc=False):
    """An adjustment that failed: the app stays for a while at the count with which it had worked
    (`dorm.core.sizes`)."""

    generation: int
    """The generation that did not start to work."""
    containers: int
    """Number of containers of that generation."""
    worked_with: int
    """Number of containers of the last generation that worked."""


class SizeRequest(msgspec.Struct, frozen=True, gc=False):
    """An app's own request for at most this many containers (`dorm.core.sizes`)."""

    containers: int
    """Requested number of containers; 0 if the request was withdrawn."""
    reason: str
    at: int
    """Log time (UTC ns)."""
    lowered_at: int
    """Log time at which a request last lowered what the app may get."""
    before: int = 0
    """Size that counts for a while if `containers` is higher; 0 if `containers` counts."""
    before_reason: str = ""


class Promise(msgspec.Struct, frozen=True, gc=False):
    """The plan of a policy that plans ahead: `AppPlanned`."""

    slots: list[PlannedSlot]
    worth: float
    cost: float
    seq: int
    """Sequence of the round that promised it."""
    at: int
    """Log time of that round (UTC ns)."""


TENANTS = "//"
"""Separator after the tenant in the key of a name; no name of an app or a tenant has it."""


def name_key(name: str, submission: str) -> str:
    """Return the key of an app's name in `State.names`: each tenant has its own names."""
    tenant = tenant_in(submission)
    return f"{tenant}{TENANTS}{name}" if tenant else name


class SkippedLines(msgspec.Struct, gc=False):
    """Lines of a progress file that could not be used: of the first container of a generation that had any."""

    generation: int
    slot: int
    lines: int
    example: str
    reason: str


class Note(msgspec.Struct, frozen=True, gc=False):
    """What a person noted about the app (`AppNoted`)."""

    seq: int
    """Sequence of its record."""
    at: int
    """Log time (UTC ns)."""
    by: str
    text: str


class Doubted(msgspec.Struct, frozen=True, gc=False):
    """Why the checkpoint that an app reported last may be incomplete: files changed after the report."""

    generation: int
    """The generation whose container left them so; if `how` is `found`, the one before whose start they were found."""
    slot: int
    how: Literal["killed", "ended", "found"]
    """`killed`: a container did not end within its grace time; `ended`: one ended otherwise without being done; `found`:
    its node did not report in time, so the next generation's node found them."""
    what: Doubt

    def concerns(self, generation: Generation) -> bool:
        """Return whether this generation started from files in doubt."""
        later = generation.number > self.generation or (self.how == "found" and generation.number == self.generation)
        return later and generation.resume and not self.what.aside


class PairFailure(msgspec.Struct, frozen=True, gc=False):
    """The last failure of an app on a node at its start, or shortly after it."""

    app: str
    node: str
    generation: int
    failure: str
    reason: str
    at: int
    """Log time."""
    tries: int
    """Number of failures there in a row."""
    proven: bool
    """Whether the app had run well there since its last failure there."""
    confirmed: bool = False
    """Whether the app has run well on another node since."""
    disproved: bool = False
    """Whether another app, which needs no less, has run well there since."""
    outvoted: bool = False
    """Whether that was an app of another owner."""
    needs: list[str] = []
    """Needs of the app of a node (`needs_of`)."""


Ended = Literal["", "completed", "failed", "cancelled"]


class App(msgspec.Struct):
    """An accepted app."""

    id: str
    name: str
    user: str
    spec: AppSpec
    demand: dict[str, int]
    weight: float
    n_min: int
    n_max: int
    submission: str
    submitted_at: int
    seq: int
    """Sequence of its submission: the order of arrival."""
    accepted_at: int = 0
    changed_seq: int = 0
    """The last record that overtakes decisions with an earlier basis."""
    generation: int = 0
    """Number of the latest generation, 0 before the first."""
    generations: dict[int, Generation] = {}
    """The latest, and earlier ones that may still have containers."""
    cancel_requested: bool = False
    cancel_reason: str = ""
    kill: Literal["", "requested", "ordered"] = ""
    """A request to kill the app (`dorm.core.operating`), and whether the master has answered it; "" without a request."""
    ended: Ended = ""
    ended_at: int = 0
    end_reason: str = ""
    failures: int = 0
    """Failures of its generations that were its own fault."""
    port_failures: int = 0
    """Generations that ended because a port was taken: not the app's fault, until there are too many of them."""
    retries_used: dict[str, int] = {}
    """Numbers of used retries, by what they count against (`dorm.core.failures`); reset, like the next two, once it has
    worked for long."""
    failures_in_a_row: int = 0
    """Number of failures of any kind in a row, which determines the next pause."""
    ran_ns: int = 0
    """Time for which all containers of its generations have run since the app's last own failure, excluding the current
    generation."""
    retry_at: int = 0
    reports_progress: bool = False
    """Whether it has ever reported progress or a checkpoint."""
    worked_with: int = 0
    """Number of containers of the last generation that worked; 0 if none ever did."""
    failed_trials: int = 0
    """Number of generations since then that failed by the app's own fault without having worked."""
    debt: int = 0
    """Failures that no node's loss excuses, since it last ran stably (`dorm.core.sizes`)."""
    disturbs: bool = False
    """Whether others were resized to make room for it while it was in debt."""
    room_taken: bool = False
    """Whether others were resized to use the room that it had left while it was in debt."""
    barred: bool = False
    """Whether it has failed again after either, so it keeps its place and no app is resized for it."""
    interrupted_at: int = 0
    """Log time at which it lost its partition because its nodes went away; 0 once it runs again."""
    held_most: Held | None = None
    held_least: Held | None = None
    checkpoint: int | None = None
    """Step of the last checkpoint that the app reported."""
    checkpoint_in: str = ""
    """The folder of that checkpoint, "" if its node had announced none."""
    doubt: Doubted | None = None
    """Reason why that checkpoint may be incomplete; None if nothing says so."""
    step: int = 0
    loss: float | None = None
    loss_is: LossIs = ""
    """The last loss, if it is not a finite number."""
    skipped_lines: SkippedLines | None = None
    """The unusable lines of its last generation that wrote any; None while none did."""
    notes: list[Note] = []
    """The latest notes of people, the oldest first."""
    samples_per_s: float | None = None
    waiting: Waiting | None = None
    """Reason why it waits or is below its n_max, as the last decision states it."""
    waiting_since: int = 0
    """Log time at which it was accepted, or lost its partition (after a failure: when its pause ends). A place that is
    revoked before its release does not restart the wait. 0 while a partition is released."""
    steps_per_s: float = 0.0
    """Speed of the last generation for which it could be measured; 0 before."""
    adjustments: int = 0
    """Number of adjustments of a running partition."""
    lost_steps: int = 0
    served_ns: int = 0
    """Attained service: container-nanoseconds, by log times, of its containers that have started and exited."""
    served_on: dict[str, int] = {}
    """Attained service on nodes that had a type, by type."""
    epoch: int = 0
    """The last epoch of data that a live app completed."""
    missed_live: bool = False
    """Whether its last live resize missed its deadline, and it has not reported a membership since: it is resized by
    restarts."""
    noise: float | None = None
    """The gradient noise scale that it reported last, in samples; None while it has reported none."""
    batch: int = 0
    """Batch size as decided last; 0 while it has its initial one, or none."""
    size_request: SizeRequest | None = None
    """Last request of the app for a size; None for n_max (`dorm.core.sizes`)."""
    history: list[AdjustmentRecord] = []
    """The latest adjustments, at most `HISTORY`."""
    speeds: list[MeasuredSpeed] = []
    """Measured speeds of its earlier partitions, without the present one."""
    plan: Promise | None = None
    """The promise of the current policy; None if the policy does not plan, or has refused the app."""
    gates: Gates | None = None
    """Its gates (`dorm.core.gates`); None if it never had one."""
    run_time: RunTime | None = None
    """The time that it has run, if that is limited (`dorm.core.deadlines`)."""
    awaited_by: list[str] = []
    """Live apps that wait for its end, by id in order of their acceptance."""
    end_code: str = ""
    """Code of the reason why the master cancelled it without a request (`AppCancelled.code`); "" for all other ends."""
    revisions: Revisions | None = None
    """Its edited specs; None until its spec is edited."""
    restart: Restart | None = None
    """A restart that its owner asked for, until the generation that satisfies it is released."""
    origin_digest: str = ""
    """Digest of the files that it started from, if `from` of its spec names another app's checkpoint."""
    failed_on: dict[str, PairFailure] = {}
    """Recent failures at its start or shortly after it, by node (`dorm.core.faults`)."""
    ran_well_on: list[str] = []
    """The nodes where it ran well last, and has not failed since."""
    parallel: int | None = None
    """The most apps of its group that may run at a time, if an edit has changed that (`dorm.core.gates`)."""

    @property
    def tenant(self) -> str:
        """Who owns it: the tenant of its submission, or its user if the cluster was open then."""
        return tenant_in(self.submission) or self.user

    @property
    def name_key(self) -> str:
        """Its key in `State.names`."""
        return name_key(self.name, self.submission)

    @property
    def current(self) -> Generation | None:
        """The latest generation, if it has a place (neither void nor empty nor failed)."""
        generation = self.generations.get(self.generation)
        if generation is None or generation.void or generation.failed or not generation.containers:
            return None
        return generation

    @property
    def revision(self) -> int:
        """The number of its latest spec; 1 is the submitted one."""
        return self.revisions.latest if self.revisions is not None else 1

    @property
    def next_spec(self) -> AppSpec:
        """What its next generation starts with."""
        pending = self.revisions.pending if self.revisions is not None else None
        return pending if pending is not None else self.spec

    @property
    def next_demand(self) -> dict[str, int]:
        """Resources of one container of its next generation."""
        return self.demand if self.next_spec is self.spec else self.next_spec.resources()

    @property
    def owners_spec(self) -> AppSpec:
        """Its latest spec as an editor shows it, with the bounds and the weight set by later updates."""
        spec = msgspec.structs.replace(self.next_spec, n_min=self.n_min, n_max=self.n_max, weight=self.weight)
        if spec.group is None or self.parallel is None:
            return spec
        return msgspec.structs.replace(spec, group=msgspec.structs.replace(spec.group, parallel=self.parallel))

    @property
    def restart_wanted(self) -> bool:
        """Whether its current generation has to be replaced, whatever the policy gives it."""
        current = self.current
        if current is None:
            return False
        if self.next_spec is not self.spec:
            return True
        return self.restart is not None and current.decided_seq <= self.restart.seq

    def starts_fresh(self, generation: Generation) -> bool:
        """Return whether this generation starts without a checkpoint, as its owner asked."""
        restart = self.restart
        return restart is not None and restart.fresh and generation.decided_seq > restart.seq

    def needs(self, generation: Generation) -> dict[str, int]:
        """Return the resources of one container of this generation: a revision may have changed them since it started."""
        earlier = self.revisions.earlier if self.revisions is not None else None
        if earlier is None or generation.revision > earlier.upto:
            return self.demand
        return earlier.spec.resources()

    @property
    def stopping(self) -> bool:
        """Whether a container of it may still run, or stop."""
        return not all(generation.ended for generation in self.generations.values())

    @property
    def settled(self) -> bool:
        """Runs as decided: every container of the latest generation is up and nothing earlier is left."""
        current = self.current
        return current is not None and len(self.generations) == 1 and current.settled

    def served_until(self, now: int) -> int:
        """Return `served_ns` plus the service of its running containers up to `now` (UTC ns)."""
        return self.served_ns + sum(max(0, now - container.started_at) for container in self.running_containers())

    def running_containers(self) -> Iterator[Container]:
        for generation in self.generations.values():
            if generation.running or generation.leaving or generation.change is not None:
                for container in generation.all_containers():
                    if container.state == "running":
                        yield container

    @property
    def phase(self) -> str:
        """One word for people: queued states first, then the phases of a generation, then the end."""
        if self.ended:
            return self.ended
        current = self.current
        stopping = any(not g.ended for g in self.generations.values() if g is not current)
        if current is None:
            if stopping:
                return "stopping"
            return "retrying" if self.retry_at else "waiting"
        if not current.released:
            return "adjusting" if stopping or current.adjustment == "restart" else "starting"
        if current.change is not None:
            return "adjusting"
        if not current.exited:
            return "running" if current.started_at else "starting"
        return "ending"

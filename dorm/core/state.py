"""The state: the log folded into apps, their generations, nodes and settings at one sequence.

`evolve` is the only writer.  Everything here follows from the records alone, so two folds of one log are equal byte for byte,
and `digest` proves it.  Times are log times (UTC nanoseconds), quantities integers in base units.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from dorm.core.app import (
    HISTORY,
    AdjustmentRecord,
    App,
    Asked,
    Doubted,
    Ended,
    Held,
    MeasuredSpeed,
    Note,
    PairFailure,
    Promise,
    SizeRequest,
    SkippedLines,
)
from dorm.core.generation import Container, ContainerState, Generation, LiveChange, Pace
from events.identities import Identities, tenant_in
from events.kinds import NodeOffers, PolicyPlugin, Unfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "HISTORY",
    "MOST",
    "REFUSED_CHANGES",
    "SCHEMA",
    "AdjustmentRecord",
    "App",
    "Container",
    "ContainerState",
    "Counters",
    "Doubted",
    "Ended",
    "FailedPolicy",
    "Figures",
    "Generation",
    "Held",
    "LiveChange",
    "MeasuredSpeed",
    "Node",
    "NodeCondition",
    "Note",
    "Pace",
    "PairFailure",
    "Pause",
    "Promise",
    "Refused",
    "RefusedChange",
    "Settings",
    "ShortenedTime",
    "ShownCondition",
    "SizeRequest",
    "SkippedLines",
    "State",
    "Submission",
    "Suspect",
    "can_be_kept",
    "digest",
]

SCHEMA = 6
"""Number of changes of meaning in this module and `evolve`: digests of different schemas are not comparable."""

_encoder = msgspec.msgpack.Encoder()


class Settings(msgspec.Struct):
    """Settings that `PolicyChanged` sets; see there."""

    policy: str = "dorm"
    params: dict[str, Any] = {}
    quiet_ms: int = 200
    quiet_limit_ms: int = 1000
    idle_s: float = 30.0
    heartbeat_s: float = 5.0
    node_grace_s: float = 15.0
    node_lease_s: float = 300.0
    retention_s: float = 86_400.0
    checkpoints: str = ""
    """The folder that an operator named, "" if none did."""
    tenant_retention_s: dict[str, float] = {}
    """The retention of tenants that have their own."""
    weights: str | None = None
    """`tenants` if weights divide a tenant's share (`dorm.core.asking`); None if they count against all apps."""
    tenant_apps: int | None = None
    """The most apps of a tenant that have not ended; None for `dorm.core.settings.TENANT_APPS`."""
    suspect_after: int = 3
    suspect_within_s: float = 3600.0


class RefusedChange(msgspec.Struct, frozen=True):
    """A `PolicyChanged`, or only its policy or folder, that was refused."""

    id: str
    seq: int
    at: int
    by: str
    reason: str
    whole: bool = True
    """Whether all of it is refused; false if the times that it sets hold anyway."""
    code: str = ""
    """The stable code of the reason."""


class ShortenedTime(msgspec.Struct, frozen=True):
    """A change that lowered one of the times (seconds)."""

    seq: int
    at: int
    by: str
    before: float
    after: float


class FailedPolicy(msgspec.Struct, frozen=True):
    """The policy's last answer was not usable (`PolicyFailed`)."""

    policy: str
    version: int
    code: str
    reason: str
    since: int
    """Log time of the first such failure in a row."""
    seq: int
    """The last record that reports it."""
    at: int
    """Log time of that record."""
    ticks: int = 0
    """Number of idle ticks without success; the next one comes later for each."""


class Pause(msgspec.Struct, frozen=True):
    """Scheduling is paused (`SchedulingPaused`): nothing new is decided."""

    seq: int
    at: int
    """Log time."""
    by: str
    reason: str


REFUSED_CHANGES = 8
"""Number of refused changes that are kept."""


class Submission(msgspec.Struct):
    """A submission (or a refused update) that the master still has to answer."""

    id: str
    seq: int
    at: int
    by: str
    spec: Any
    size: int
    refused: str = ""
    """Reason why it is refused already: set if the body was unreadable or the request invalid."""
    refused_code: str = ""
    app: str = ""
    """The app of a refused update, or of a request; "" for a submission."""
    who: str = ""
    """The sender by the record's subject, which the server's permissions enforce; `by` is the sender's own claim."""
    asked: Asked | None = None
    """The request about an existing app (`dorm.core.revisions`); None for a submission."""

    @property
    def tenant(self) -> str:
        """Who owns it; "" on an open cluster."""
        return tenant_in(self.id)


MOST = 2**62
"""Value at which monotonic counters stop: all integers of a state have to fit into 64 bits."""

NodeCondition = Literal["up", "lost", "left"]
ShownCondition = Literal["up", "draining", "maintenance", "unmounted", "unfit", "suspect", "lost", "left"]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Another machine that requested a node's name and was refused."""

    identity: str
    address: str
    at: int
    """Log time of its last request."""


class Suspect(msgspec.Struct, frozen=True):
    """Why a node takes nothing new: apps failed there (`dorm.core.faults`)."""

    since: int
    """Log time since which it is suspect."""
    seq: int
    apps: list[str]
    """Apps that failed there and are not known to be broken."""
    failures: list[str]
    """Failure of each of them in words."""
    needs: list[str]
    """Needs of all of them: a probe needs no less."""
    least: int
    """Number of these apps below which it returns."""
    reason: str
    probe_at: int
    """Log time from which one app may be tried there."""
    failed_probes: int = 0
    probe: str = ""
    """The app that was placed there last, as a probe."""


class Node(msgspec.Struct):
    """A machine with an agent on it."""

    id: str
    address: str
    capacity: dict[str, int]
    labels: dict[str, str]
    ports: tuple[int, int]
    runtime: str
    condition: NodeCondition = "up"
    draining: Literal["", "operator", "maintenance", "shutdown"] = ""
    joined_at: int = 0
    up_at: int = 0
    """Log time at which it joined or recovered."""
    lease_ended: bool = False
    lease_s: float = 300.0
    """The longest lease that its agent may assume: the maximum in force since it joined."""
    changed_seq: int = 0
    checkpoints: str = ""
    """Id of its folder of checkpoints, as it announced it."""
    foreign: bool = False
    """Whether its folder differs from the cluster's (`dorm.core.shared_folder`)."""
    foreign_at: int = 0
    """Log time since which it differs, or since which another node has the folder again that none had; 0 while it does
    not."""
    port_cursor: int = 0
    """The last port that was assigned here."""
    identity: str = ""
    """Identity of the agent that holds the name (`events.identities`); "" for agents older than 0.6.0."""
    refused: Refused | None = None
    """Another machine that requested the name while this one holds it."""
    prepares: bool = False
    """Whether its agent reports what it has prepared ahead."""
    abilities: list[str] = []
    """The abilities of its agent (`events.spec.abilities`), sorted."""
    offers: NodeOffers | None = None
    """Things that apps may use there in addition to resources; None if it has announced nothing."""
    process: str = ""
    """The process of its agent that joined last; "" for agents before 0.6.0."""
    failed: dict[str, PairFailure] = {}
    """Recent failures of apps here that are not known to be broken, by app (`dorm.core.faults`)."""
    suspect: Suspect | None = None
    """Reason why it takes nothing new for a while; None if it does."""
    relapses: int = 0
    """Number of returns by a probe, of which half are forgotten while it runs well, and all when an operator trusts it:
    the next pauses are longer."""
    trial_until: int = 0
    """Log time until which, after such a return, one failure is enough."""
    proven_at: int = 0
    """Log time at which a container was last known to have run well here; while it is suspect, only its probes count."""

    @property
    def type(self) -> str:
        """The node type, the value of the label `type`: nodes of one type are equally fast; "" without the label."""
        return self.labels.get("type", "")

    @property
    def gone(self) -> bool:
        """No container on it can run any more: it has left cleanly, or its lease has ended."""
        return self.condition == "left" or self.lease_ended

    @property
    def shown(self) -> ShownCondition:
        """Its condition as lists show it.  In maintenance it may be silent."""
        if self.draining == "maintenance":
            return "maintenance"
        if self.condition != "up":
            return self.condition
        if self.draining:
            return "draining"
        if self.foreign:
            return "unmounted"
        return "unfit" if self.unfit else "suspect" if self.suspect is not None else "up"

    @property
    def usable(self) -> bool:
        """Whether new containers may go there, except for a probe of a suspect node."""
        return self.condition == "up" and not self.draining and not self.foreign and self.suspect is None

    @property
    def unfit(self) -> list[Unfit]:
        """Why it takes nothing new, as its agent found; what runs there stays."""
        return self.offers.unfit if self.offers is not None else []

    @property
    def takes_new(self) -> bool:
        """Whether containers may go there that are not there yet."""
        return self.usable and not self.unfit


class Counters(msgspec.Struct):
    """Records that the fold saw and did not act on; never silent, never fatal."""

    unreadable: int = 0
    unknown: int = 0
    ignored: int = 0
    """Facts about unknown things, or that change nothing, such as repeats."""
    void_rounds: int = 0


class Figures(msgspec.Struct):
    """Figures of the last decision, for views."""

    seq: int = 0
    utilization: float = 0.0
    fairness_loss: float = 0.0
    overhead: int = 0
    decisions: int = 0


class State(msgspec.Struct):
    """The whole cluster at sequence `seq`."""

    seq: int = 0
    time: int = 0
    """Log time, which never goes back here."""
    epoch: int = 0
    leader: str = ""
    """Name of the last elected master."""
    elected_at: int = 0
    """Log time of its election: it cannot know what earlier masters heard."""
    round_seq: int = 0
    """Sequence of the last round, which fences the next one."""
    dirty_seq: int = 0
    """The last record that could change the allocation."""
    dirty_at: int = 0
    """Log time of that record."""
    rebalance_from: int = 0
    """Time of the latest cause for an idle tick; 0 while none is due."""
    ticked_at: int = 0
    """Time of the last idle tick."""
    settings: Settings = msgspec.field(default_factory=Settings)
    refused_changes: list[RefusedChange] = []
    """The latest refused changes of settings, at most `REFUSED_CHANGES`."""
    shortened: dict[str, ShortenedTime] = {}
    """Last change that lowered a time, by its name (`node_grace_s`, `node_lease_s`)."""
    nodes: dict[str, Node] = {}
    apps: dict[str, App] = {}
    checkpoints: str = ""
    """Id of the cluster's folder of checkpoints, "" until a node has announced one."""
    names: dict[str, str] = {}
    """Names of apps that have not ended, with their ids.  A name that belongs to a tenant is `TENANT//NAME`
    (`App.name_key`)."""
    submissions: dict[str, Submission] = {}
    figures: Figures = msgspec.field(default_factory=Figures)
    counters: Counters = msgspec.field(default_factory=Counters)
    next_drop_at: int = 0
    """Log time at which the first ended app leaves the state; 0 for none."""
    plugins: dict[str, PolicyPlugin] = {}
    """The plug-in policies of the leading master, by name."""
    policy_failure: FailedPolicy | None = None
    """Last failure of the policy; None while it works."""
    known: Identities | None = None
    """Known users and nodes; None while the cluster is open."""
    paused: Pause | None = None
    """Pause of scheduling; None while decisions are made."""
    set_back: int = 0
    """Nanoseconds by which log time is ahead of the clock of the log's server: 0 unless that clock was set back."""

    def live_apps(self) -> Iterator[App]:
        """Apps that have not ended, in order of arrival."""
        return iter(sorted((app for app in self.apps.values() if not app.ended), key=lambda app: (app.seq, app.id)))

    def find_app(self, name_or_id: str, tenant: str = "") -> App | None:
        """Return an app by id, by the name of a live app, or otherwise the latest ended app of that name; None if
        there is none.

        Each tenant has its own names: those of `tenant` come first. A live app of any tenant is also found as
        `TENANT//NAME`."""
        if name_or_id in self.apps:
            return self.apps[name_or_id]
        namesakes = [app for app in self.apps.values() if app.name == name_or_id]
        if tenant and (own := [app for app in namesakes if app.tenant == tenant]):
            return _latest(own)
        if name_or_id in self.names:
            return self.apps[self.names[name_or_id]]
        return _latest(namesakes)

    def namesakes(self, name: str) -> list[App]:
        """Return the apps of this name, the latest of each tenant, in order of tenants; the live ones if there are any.  An id
        names one app alone."""
        if name in self.apps:
            return [self.apps[name]]
        of: dict[str, list[App]] = {}
        for app in self.apps.values():
            if app.name == name:
                of.setdefault(app.tenant, []).append(app)
        latest = [app_of_tenant for tenant in sorted(of) if (app_of_tenant := _latest(of[tenant])) is not None]
        return [app for app in latest if not app.ended] or latest


def _latest(apps: Sequence[App]) -> App | None:
    """Return the latest live app, otherwise the latest ended one."""
    live = [app for app in apps if not app.ended]
    return max(live or apps, key=lambda app: app.seq, default=None)


def can_be_kept(value: Any) -> bool:
    """Return whether an untrusted document can be part of a state that has a digest (integers beyond 64 bits can't)."""
    try:
        _encoder.encode(value)
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return False
    return True


def digest(state: State) -> str:
    """Return 32 hex digits that are equal for equal states only.

    Maps are encoded in the order in which the fold filled them, which follows from the log and is part of the state."""
    return hashlib.blake2b(_encoder.encode(state), digest_size=16).hexdigest()

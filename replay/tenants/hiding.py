"""Events and states as other tenants see them: without the tenants' own data.

Built on the rules that anonymize whole logs (`replay.export.disguise`): a field that is added later shows nothing until it has
a rule there.  Beyond these rules, only those fields of an app are kept that determine its containers: demand, weight,
bounds, gang, placements.  Names that belong to no tenant are not renamed (`names.Names`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.admission import name_of
from dorm.core.app import AdjustmentRecord, App, Earlier, Gates, Revisions, SizeRequest
from dorm.core.generation import Container, Generation
from dorm.core.state import Node, PairFailure, Pause, ShortenedTime, State, Submission, Suspect
from events import kinds as k
from events.identities import Identities, tenant_in
from events.quantities import CPU
from events.spec import AppSpec, Group, can_be_read
from events.spec.declared import declared_in
from events.spec.gates import After, awaited
from replay.export.disguise import WITHHELD, Disguise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from replay.tenants.names import Names

SHOWN: tuple[type[k.Event], ...] = (*(kind for kind in k.EVENTS if kind.KIND.shown), k.Round)
"""Kinds that the fold of an app's share depends on.  Of all others, other tenants only see that there was a record."""
REQUESTS: tuple[type[Any], ...] = tuple(kind for kind in k.EVENTS if kind.KIND.by_name and kind.KIND.stored == "log")
"""Kinds that name an app as their author does."""
_ANSWERED: tuple[type[k.Event], ...] = tuple(kind for kind in k.EVENTS if kind.KIND.answered)
_SHOWN_OF_SPEC = tuple(name for name, declared in declared_in(AppSpec).items() if declared.shown)


class Hiding(Disguise):
    """Hides what belongs to tenants."""

    def __init__(self, names: Names) -> None:
        super().__init__(names)
        self._names = names

    def struct(self, value: msgspec.Struct) -> Any:
        rule = _SPECIAL.get(type(value))
        return rule(self, value) if rule is not None else super().struct(value)

    def event(self, event: Any, app: App | None) -> Any:
        """Return an event.  `app` is the app that a request names, by id or by name."""
        made = self.struct(event)
        more: dict[str, Any] = {"by": self._names.user(event.by)}
        if isinstance(event, _ANSWERED):
            more["id"] = self._names.request(event.id)
        if isinstance(event, REQUESTS) and app is not None:
            more["app"] = self._names.app(app)
        if isinstance(event, k.Round):
            more["by"] = event.by
        return msgspec.structs.replace(made, **more)

    # --- parts of events ------------------------------------------------------------------------------------------------

    def spec(self, spec: AppSpec, name: str, user: str, tenant: str = "") -> AppSpec:
        """Return the resources of a spec, under a name that is already a pseudonym."""
        if not can_be_read(spec):
            return AppSpec(name=name, command=["-"], demand={CPU: WITHHELD})
        return AppSpec(
            name=name,
            command=["-"],
            demand={self.name("resources", kind): amount for kind, amount in spec.demand.items()},
            after=[After(self.name("app_references", gate.app), gate.when) for gate in awaited(spec)],
            user=self._names.user(user),
            group=spec.group and self._group(spec.group, tenant),
            **{field: getattr(spec, field) for field in _SHOWN_OF_SPEC},
        )

    def _group(self, group: Group, tenant: str) -> Group:
        """Return the part of a spec that determines its group's limit."""
        return Group(self._names.app_name(group.name, tenant), "", group.index, group.count, group.parallel)

    def _submitted(self, event: k.AppSubmitted) -> k.AppSubmitted:
        name = name_of(event.spec)
        spec = {"name": self._names.app_name(name, tenant_in(event.id))} if name else None
        return k.AppSubmitted(at=event.at, spec=spec)

    def _accepted(self, event: k.AppAccepted) -> k.AppAccepted:
        app = self._names.state.apps.get(event.app)
        tenant = app.tenant if app is not None else tenant_in(event.submission)
        name = self._names.app_name(event.spec.name, tenant)
        return k.AppAccepted(
            at=event.at,
            app=self._names.app_of(event.spec.name, event.submission, tenant),
            spec=self.spec(event.spec, name, event.spec.user, tenant),
            submission=self._names.request(event.submission),
            after=[self.name("app_references", other) for other in event.after],
            cause=self.cause(event.cause),
        )

    def _edit_requested(self, event: k.AppEditRequested) -> k.AppEditRequested:
        return k.AppEditRequested(at=event.at, app=self.name("app_references", event.app))

    def _revised(self, event: k.AppRevised) -> k.AppRevised:
        made: k.AppRevised = super().struct(event)
        app = self._names.state.apps.get(event.app)
        name = self._names.app_name(event.spec.name, app.tenant if app is not None else "")
        later = self.spec(event.next, name, event.next.user) if event.next is not None else None
        after = [self.name("app_references", other) for other in event.after]
        spec = self.spec(event.spec, name, event.spec.user)
        return msgspec.structs.replace(made, spec=spec, next=later, changed=[], after=after)

    def _of_operator(self, event: Any) -> Any:
        """All tenants whose containers have to leave a node may know the statements of an operator or its agent about
        it."""
        made = super().struct(event)
        return msgspec.structs.replace(made, reason=event.reason if event.node in self._names.state.nodes else "")

    def _suspected(self, event: k.NodeSuspected) -> k.NodeSuspected:
        """That a node takes nothing new affects everyone; the reason counts apps, and names none."""
        made: k.NodeSuspected = super().struct(event)
        return msgspec.structs.replace(made, reason=event.reason)

    def secrets(self, value: Mapping[str, list[str]]) -> None:
        """Show nothing of secrets, neither names nor how many there are: unknown ones."""
        return

    def _unfit(self, reason: k.Unfit) -> k.Unfit:
        """What is wrong with a node affects everyone, so everyone may know it, as the reason of a drain."""
        return reason

    def _scheduling(self, event: Any) -> Any:
        """A pause affects everyone, so everyone may know its reason."""
        return msgspec.structs.replace(super().struct(event), reason=event.reason)

    def _pause(self, pause: Pause) -> Pause:
        return msgspec.structs.replace(pause, by=self._names.user(pause.by))

    def _started(self, event: k.ContainerStarted) -> k.ContainerStarted:
        made: k.ContainerStarted = super().struct(event)
        return msgspec.structs.replace(made, origin_digest="", doubt=None)

    def _exited(self, event: k.ContainerExited) -> k.ContainerExited:
        made: k.ContainerExited = super().struct(event)
        return msgspec.structs.replace(made, usage=None, origin_digest="", doubt=None)

    def _progressed(self, event: k.AppProgressed) -> k.AppProgressed:
        app = self.name("app_references", event.app)
        return k.AppProgressed(at=event.at, app=app, generation=event.generation, step=0)

    def _checkpointed(self, event: k.AppCheckpointed) -> k.AppCheckpointed:
        app = self.name("app_references", event.app)
        return k.AppCheckpointed(at=event.at, app=app, generation=event.generation, step=0)

    def _epoch(self, event: k.EpochCompleted) -> k.EpochCompleted:
        app = self.name("app_references", event.app)
        return k.EpochCompleted(at=event.at, app=app, generation=event.generation, epoch=event.epoch, step=0, samples=0)

    def _membership(self, event: k.MembershipChanged) -> k.MembershipChanged:
        made: k.MembershipChanged = super().struct(event)
        return msgspec.structs.replace(made, step=0)

    def _released(self, event: k.GenerationReleased) -> k.GenerationReleased:
        made: k.GenerationReleased = super().struct(event)
        checkpoint = None if event.checkpoint is None else 0
        return msgspec.structs.replace(made, checkpoint=checkpoint, lost_steps=0)

    def _placed(self, placed: k.Placed) -> k.Placed:
        return k.Placed(placed.slot, placed.node, placed.address, 0)

    def _resize(self, resize: k.Resize) -> k.Resize:
        made: k.Resize = super().struct(resize)
        return msgspec.structs.replace(made, master_port=0, lost_s=0.0)

    def _waiting(self, waiting: k.Waiting) -> k.Waiting:
        return k.Waiting(code=waiting.code, text=WITHHELD)

    # --- parts of a state -----------------------------------------------------------------------------------------------

    def _container(self, container: Container) -> Container:
        made: Container = super().struct(container)
        return msgspec.structs.replace(made, port=0, delay=None)

    def _generation(self, generation: Generation) -> Generation:
        made: Generation = super().struct(generation)
        return msgspec.structs.replace(
            made, master_port=0, pace=None, same_since=None, preparing=list(generation.preparing)
        )

    def _revisions(self, known: Revisions, name: str) -> Revisions:
        pending, earlier = known.pending, known.earlier
        by = self._names.user
        return msgspec.structs.replace(
            known,
            pending=self.spec(pending, name, pending.user) if pending is not None else None,
            earlier=Earlier(self.spec(earlier.spec, name, earlier.spec.user), earlier.upto)
            if earlier is not None
            else None,
            history=[msgspec.structs.replace(revision, by=by(revision.by), changed=[]) for revision in known.history],
        )

    def _adjusted(self, record: AdjustmentRecord) -> AdjustmentRecord:
        return msgspec.structs.replace(record, checkpoint=None, lost_steps=0, resumed_step=0, steps_per_s=0.0)

    def _size_request(self, request: SizeRequest) -> SizeRequest:
        return msgspec.structs.replace(
            request, reason=WITHHELD, before_reason=WITHHELD if request.before_reason else ""
        )

    def _app(self, app: App) -> App:
        made: App = super().struct(app)
        name = self._names.app_name(app.name, app.tenant)
        return msgspec.structs.replace(
            made,
            id=self._names.app(app),
            name=name,
            user=self._names.user(app.user),
            spec=self.spec(app.spec, name, app.spec.user, app.tenant),
            submission=self._names.request(app.submission),
            loss=None,
            loss_is="",
            skipped_lines=None,
            notes=[],
            origin_digest="",
            doubt=None,
            samples_per_s=None,
            noise=None,
            step=0,
            checkpoint=None if app.checkpoint is None else 0,
            steps_per_s=0.0,
            lost_steps=0,
            retries_used={},
            speeds=[],
            gates=self._gates(app),
            revisions=self._revisions(app.revisions, name) if app.revisions is not None else None,
        )

    def _gates(self, app: App) -> Gates | None:
        """Apps only wait for apps of their own tenant."""
        if app.gates is None:
            return app.gates
        made: Gates = super().struct(app.gates)
        after = [
            msgspec.structs.replace(
                gate,
                app=self.name("app_references", gate.app) if gate.app else "",
                name=self._names.app_name(gate.name, app.tenant),
            )
            for gate in app.gates.after
        ]
        return msgspec.structs.replace(made, after=after)

    def _pair(self, pair: PairFailure) -> PairFailure:
        """Of what an app needs, only resources are shown, as in its spec."""
        made: PairFailure = super().struct(pair)
        return msgspec.structs.replace(made, needs=self._needs(pair.needs))

    def _needs(self, needs: list[str]) -> list[str]:
        names = ("secrets", "environment")
        return sorted(self.name("resources", need) for need in needs if "/" not in need and need not in names)

    def _suspect(self, suspect: Suspect) -> Suspect:
        made: Suspect = super().struct(suspect)
        return msgspec.structs.replace(made, reason=suspect.reason, needs=self._needs(suspect.needs))

    def _node(self, node: Node) -> Node:
        """Nodes belong to no tenant; apps that failed there do."""
        if not node.failed and node.suspect is None:
            return node
        failed = {self.name("app_references", app): self.struct(pair) for app, pair in node.failed.items()}
        suspect = self.struct(node.suspect) if node.suspect is not None else None
        return msgspec.structs.replace(node, failed=failed, suspect=suspect)

    def _submission(self, waiting: Submission) -> Submission:
        tenant, name = waiting.tenant or waiting.who, name_of(waiting.spec)
        app = self.name("app_references", waiting.app) if waiting.app else ""
        return Submission(
            id=self._names.request(waiting.id),
            seq=waiting.seq,
            at=waiting.at,
            by=self._names.user(waiting.by),
            spec={"name": self._names.app_name(name, tenant)} if name and not waiting.app else None,
            size=waiting.size,
            refused=WITHHELD if waiting.refused else "",
            refused_code=waiting.refused_code,
            app=app,
            who=self._names.user(waiting.who),
            asked=self.struct(waiting.asked) if waiting.asked is not None else None,
        )

    def _identities(self, known: Identities) -> Identities:
        """Refusals are for readers of the whole log, and the digest of a token is for its user."""
        made: Identities = super().struct(known)
        return msgspec.structs.replace(made, refusals=[], tokens={}, masters=[], masters_before=[])

    def _state(self, state: State) -> State:
        made: State = super().struct(state)
        names = self._names
        return msgspec.structs.replace(
            made,
            nodes={name: self._node(node) for name, node in state.nodes.items()},
            names={names.key_of(state.apps[app]): names.app(state.apps[app]) for app in state.names.values()},
            refused_changes=[],
            shortened={
                time: ShortenedTime(lease.seq, lease.at, names.user(lease.by), lease.before, lease.after)
                for time, lease in state.shortened.items()
            },
            plugins=state.plugins,
        )


_SPECIAL: dict[type, Callable[[Hiding, Any], Any]] = {
    AppSpec: lambda hiding, spec: hiding.spec(spec, hiding.name("app_references", spec.name), spec.user),
    k.AppSubmitted: Hiding._submitted,
    k.AppAccepted: Hiding._accepted,
    k.AppEditRequested: Hiding._edit_requested,
    k.AppRevised: Hiding._revised,
    k.NodeDrainRequested: Hiding._of_operator,
    k.NodeTrustRequested: Hiding._of_operator,
    k.NodeSuspected: Hiding._suspected,
    k.Unfit: Hiding._unfit,
    PairFailure: Hiding._pair,
    Suspect: Hiding._suspect,
    k.SchedulingPaused: Hiding._scheduling,
    k.SchedulingResumed: Hiding._scheduling,
    Pause: Hiding._pause,
    k.ContainerStarted: Hiding._started,
    k.ContainerExited: Hiding._exited,
    k.AppProgressed: Hiding._progressed,
    k.AppCheckpointed: Hiding._checkpointed,
    k.EpochCompleted: Hiding._epoch,
    k.MembershipChanged: Hiding._membership,
    k.GenerationReleased: Hiding._released,
    k.Placed: Hiding._placed,
    k.Resize: Hiding._resize,
    k.Waiting: Hiding._waiting,
    Container: Hiding._container,
    Generation: Hiding._generation,
    SizeRequest: Hiding._size_request,
    AdjustmentRecord: Hiding._adjusted,
    App: Hiding._app,
    Submission: Hiding._submission,
    Identities: Hiding._identities,
    State: Hiding._state,
}

"""The story of one app, written by an observer of the fold.

A chapter has each change of the app's partition, and what took time: waits and their reasons, phases of adjustments,
containers that failed, nodes that left, requests with their authors.  Progress is summed up by generation.  The story is about
the newest app of a name, from its submission on; refused submissions of the name are included.

`AppNodes` writes the chapters about its nodes: they are drained, leave, are lost, come back.  `Spent` adds up where the time
went: every moment from the app's acceptance to its end is spent waiting, paused, or running.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec

from dorm.core.admission import app_id, name_of
from dorm.core.costs import cost_s, first_step_at
from dorm.core.query.views import sizes
from dorm.core.submissions import app_of_request
from events import kinds as k
from events.quantities import SECOND
from replay.story import story_words
from replay.story.chapters import AppTotals, Cause, Changed, Chapter, Exit, Phases, Places, Work, gained, kind_of
from replay.story.settings_causes import blaming, killed_because, lease_ended_because, lost_because, settings_changed
from replay.story.surroundings import Surroundings, closed, name_in, placed_by, still_wanted
from replay.words import containers, moment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.core.folded import Folded
    from dorm.core.state import App, Generation, State
    from events.log.records import Record
    from replay.story.chapters import Places


# --- the app itself ---------------------------------------------------------------------------------------------------


class AppTeller:
    """Follows a fold for one app, by name or id (`see` is the `seen` of `replay.travel`).  Keeps only its story."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.around = Surroundings()
        self._pending: dict[str, Chapter] = {}
        """Unanswered submissions of this name, by id."""
        self._ignored = self._void = 0
        self._fresh(None)

    def _fresh(self, app: App | None) -> None:
        self.id, self.name = (app.id, app.name) if app is not None else ("", "")
        self._app = app
        """The app in the state, or as it was last there."""
        self._chapters: list[Chapter] = []
        self.partition: Places = {}
        """Present places."""
        self._code = ""
        self._spent = Spent()
        self._ended = False
        self._released = 0
        self._sizes: dict[int, int] = {}
        self._decided: Cause | None = None
        """The latest change."""
        self._owed: Cause | None = None
        """Event since which it waits for a place: its acceptance, or the event that took its place away."""
        self._phases: Phases | None = None
        self._ready: Cause | None = None
        """The event that the latest generation's containers, or its work, followed from."""
        self._works: dict[int, Work] = {}
        self._exit: Cause | None = None
        """The latest container since the latest change that ended well, or on request."""
        self._killed: set[int] = set()
        """Generations with a container that a shortened lease killed."""
        self._failing: dict[int, tuple[Cause, int]] = {}
        """The first container of each generation that failed, and how many did."""
        self._nodes = AppNodes(self._tell)
        self._last_failed = 0
        self._cancel: Cause | None = None
        self._updates: dict[str, Cause] = {}

    @property
    def known(self) -> bool:
        """Whether there is a story."""
        return bool(self._chapters or self._pending)

    def story(self) -> list[Chapter]:
        """Return all chapters so far.  Unanswered submissions come last."""
        return [*self._chapters, *self._pending.values()]

    def totals(self, state: State) -> AppTotals | None:
        """Return its life in numbers until now; None for an app that was never accepted."""
        return None if self._app is None else self._spent.totals(self._app, self._released, state.time)

    # --- following ------------------------------------------------------------------------------------------------------

    def begin(self, state: State) -> None:
        """Start from a state instead of the log's first record; an app that is in it is adopted."""
        self.around.begin(state)
        app = state.find_app(self.wanted)
        if app is None:
            return
        self._fresh(app)
        self._code = app.waiting.code if app.waiting else ""
        self._ended = bool(app.ended)
        self._sizes = {number: len(generation.containers) for number, generation in app.generations.items()}
        self._note(state)
        self._tell(state, str(state.seq), "known", f"already {app.phase} where this reading of the log starts")

    def see(self, state: State, record: Record, folded: Folded) -> None:
        """Follow one record after it was folded."""
        event = folded.event
        if isinstance(event, k.AppProgressed | k.AppCheckpointed):
            if folded.outcome == "applied" and event.app == self.id:
                self._progress(state, event)
            return
        if isinstance(event, k.Round):
            if folded.outcome == "void":
                return
            for index, fact in enumerate(event.events):
                self._fact(state, event, index, fact)
                self.around.fact(state, folded, index)
        elif folded.outcome == "forbidden" and not isinstance(event, k.AppSubmitted | k.AppUpdated):
            pass  # It changed nothing, and the master reports it.
        elif folded.outcome != "ignored":
            # A refused request may still have been applied in part, and is part of the story.
            if text := story_words.doubted(self._app, event, self._chapters):
                self._tell(state, str(state.seq), "doubtful", text)
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, state, event)
            self.around.record(state, folded)
            if getattr(event, "app", self.id) != self.id:
                return
        self._note(state)

    def _note(self, state: State) -> None:
        if self._app is not None:
            self._spent.note(self._app, state.time)

    def _tell(
        self,
        state: State,
        position: str,
        what: str,
        text: str,
        causes: Sequence[Cause | None] = (),
        *,
        of_it: bool = True,
        **fields: Any,
    ) -> Cause:
        """Append a chapter.  Without `of_it` it is not about the app, so it does not include the app's places."""
        app = self._app
        placed = sizes(app) if app is not None else {}
        cause = Cause(position, text.split(";")[0])
        if of_it and placed != self.partition:
            self.partition = fields["partition"] = placed
            self._owed = None if placed else cause
        known = [cause for cause in causes if cause is not None]
        self._chapters.append(Chapter(position=position, time=state.time, what=what, text=text, causes=known, **fields))
        return cause

    @property
    def _found(self) -> App:
        assert self._app is not None
        return self._app

    # --- requests of clients --------------------------------------------------------------------------------------------

    def _submitted(self, state: State, event: k.AppSubmitted) -> None:
        name = name_of(event.spec)
        if event.id in state.submissions and self.wanted in (name, app_id(name, event.id)) and name:
            user = story_words.user_of(event.spec)
            text = f"submitted by {event.by}" + (f" for {user}" if user and user != event.by else "")
            self._pending[event.id] = Chapter(
                position=str(state.seq), time=state.time, what="submitted", text=text, by=event.by
            )

    def _updated(self, state: State, event: k.AppUpdated) -> None:
        app = state.find_app(event.app, event.by)
        if app is None or app.id != self.id:
            return
        request = f"{event.by} requested {story_words.updated(event)}"
        if event.id in state.submissions:
            self._updates[event.id] = Cause(str(state.seq), request)
        else:
            self._tell(state, str(state.seq), "updated", request, by=event.by)

    def _cancel_requested(self, state: State, event: k.AppCancelRequested) -> None:
        app = app_of_request(state, event.app, event.by)
        if app is None or app.id != self.id or app.changed_seq != state.seq or not app.cancel_requested:
            return
        request = "asked to kill it" if event.kill else "asked to cancel it"
        text = f"{event.by} {request}{story_words.why(event.reason)}"
        self._cancel = self._tell(state, str(state.seq), "cancel_requested", text, by=event.by)

    def _operated(self, state: State, event: story_words.Operated) -> None:
        if self._app is not None and (chapter := story_words.operated(state, event, self._app)) is not None:
            self._tell(state, str(state.seq), *chapter, by=getattr(event, "user", event.by))

    # --- containers and progress ----------------------------------------------------------------------------------------

    def _progress(self, state: State, event: k.AppProgressed | k.AppCheckpointed) -> None:
        work = self._works.get(event.generation)
        if work is None:
            app = self._found
            work = self._works[event.generation] = Work(
                generation=event.generation,
                first_at=state.time,
                first_step=event.step,
                last_at=state.time,
                last_step=event.step,
            )
            if self._phases is not None and event.generation == self._phases.generation:
                self._resumed(state, app, work)
            self._note(state)
        if isinstance(event, k.AppCheckpointed):
            work.checkpoint = event.step
            return
        work.last_at, work.last_step = state.time, event.step
        if event.loss is not None or event.loss_is:
            work.loss, work.loss_is = event.loss, event.loss_is
        work.samples_per_s = work.samples_per_s if event.samples_per_s is None else event.samples_per_s
        generation = self._found.generations[event.generation]
        work.steps_per_s = generation.pace.steps_per_s if generation.pace else 0.0

    def _resumed(self, state: State, app: App, work: Work) -> None:
        assert self._phases is not None
        worked = first_step_at(app, work.generation, state.time)
        seconds = (worked - app.generations[work.generation].decided_at) / SECOND
        last = app.history[-1] if app.history else None
        cost = cost_s(last) if last is not None and last.to_generation == work.generation else None
        work_s = None if self._phases.total_s is None else seconds - self._phases.total_s
        phases = self._phases = msgspec.structs.replace(self._phases, work_s=work_s, resumed_s=seconds, cost_s=cost)
        text = story_words.resumed(work, phases, app.steps_per_s)
        self._tell(state, str(state.seq), "resumed", text, [self._ready], phases=phases)

    def _started(self, state: State, event: k.ContainerStarted) -> None:
        if event.app != self.id:
            return
        generation = self._found.generations[event.generation]
        phases = self._phases
        if phases is None or phases.generation != event.generation or generation.running < len(generation.containers):
            return
        phases = self._phases = msgspec.structs.replace(
            phases,
            start_s=(state.time - generation.released_at) / SECOND,
            total_s=(state.time - generation.decided_at) / SECOND,
        )
        text = story_words.running(phases, generation.running)
        self._ready = self._tell(state, str(state.seq), "running", text, [self._ready], phases=phases)

    def _delayed(self, state: State, event: k.ContainerDelayed) -> None:
        if event.app == self.id:
            self._tell(state, str(state.seq), "delayed", story_words.delayed(event))

    def _exited(self, state: State, event: k.ContainerExited) -> None:
        if event.app != self.id:
            return
        ended = Exit(
            app=event.app,
            generation=event.generation,
            slot=event.slot,
            node=event.node,
            exit_code=event.exit_code,
            reason=event.reason,
            message=event.message,
        )
        changed = killed_because(state, event)
        on_request = event.asked and event.message != k.CUT_OFF and not still_wanted(self._found, event)
        text = story_words.stopped(ended) if on_request else story_words.exited(ended)
        cause = Cause(str(state.seq), blaming(text, changed))
        if event.asked or event.exit_code == 0 or self._ended:
            self._exit = cause
            if changed is not None and not self._ended and event.generation not in self._killed:
                self._killed.add(event.generation)
                self._tell(state, str(state.seq), "killed", cause.text, [changed], exit=ended)
            return
        first, count = self._failing.get(event.generation, (cause, 0))
        self._failing[event.generation] = first, count + 1
        if not count:
            self._tell(state, str(state.seq), "container_failed", cause.text, exit=ended)

    def _size_requested(self, state: State, event: k.AppResizeRequested) -> None:
        if event.app == self.id and not self._ended:
            self._tell(
                state, str(state.seq), "size_requested", story_words.size_requested(self._found, event, state.time)
            )

    # --- nodes ----------------------------------------------------------------------------------------------------------

    def _node_event(
        self, state: State, event: k.NodeJoined | k.NodeLeft | k.NodeDrainRequested | k.NodeTrustRequested
    ) -> None:
        if self._app is not None and not self._ended:
            self._nodes.event(state, event, self._app, self.partition)

    def _settings(self, state: State, event: k.PolicyChanged) -> None:
        if self._app is not None and not self._ended and (text := settings_changed(state, event)):
            self._tell(state, str(state.seq), "settings", text)

    # --- facts of the master --------------------------------------------------------------------------------------------

    def _fact(self, state: State, event: k.Round, index: int, fact: Any) -> None:
        kind = type(fact)
        position = f"{state.seq}.{index}"
        if kind is k.AppAccepted:
            self._accepted(state, position, fact)
        elif kind is k.AppRejected:
            self._rejected(state, position, fact)
        elif not self.id or (self._ended and kind is not k.AppRestarted):
            return
        elif kind is k.Resized:
            self._resized(state, event, position, fact)
        elif kind is k.RecordsRefused:
            self._refused(state, position, fact)
        elif kind in (k.NodeLost, k.NodeRecovered, k.NodeLeaseEnded, k.NodeSuspected, k.NodeTrusted):
            self._nodes.fact(state, position, fact, self._found, self.partition)
        elif kind is k.PolicyFailed and story_words.is_first_failure(state, fact):
            self._tell(state, position, "policy_failed", story_words.policy_failed(fact))
        elif getattr(fact, "app", "") != self.id:
            return
        elif kind in (k.AppPlanned, k.AppRevised, k.AppRestarted):
            self._ended = bool(self._found.ended)
            self._tell(state, position, *story_words.answered(fact))
        elif kind is k.GenerationReleased:
            self._generation_released(state, position, fact)
        elif kind in (k.MembersReleased, k.MembersLost, k.LiveResizeFailed):
            self._live(state, position, fact)
        elif kind is k.GenerationFailed:
            self._generation_failed(state, position, fact)
        elif kind in (k.AppCompleted, k.AppFailed, k.AppCancelled):
            self._end(state, position, fact)

    def _refused(self, state: State, position: str, fact: k.RecordsRefused) -> None:
        for record in fact.records:
            if record.about in (self.id, self._found.name):
                cause = Cause(str(record.seq), f"{record.who} published {record.of}")
                self._tell(
                    state, position, "refused", f"{record.of} by {record.who} was refused: {record.reason}", [cause]
                )

    def _accepted(self, state: State, position: str, fact: k.AppAccepted) -> None:
        app = state.apps.get(fact.app)
        if self.wanted not in (fact.app, fact.spec.name) or app is None or fact.app == self.id:
            return
        submitted = self._pending.pop(fact.submission, None)
        self._fresh(app)
        cause = None
        if submitted is not None:
            self._chapters.append(submitted)
            cause = Cause(submitted.position, f"{app.name} was {submitted.text}")
        self._owed = self._tell(state, position, "accepted", story_words.accepted(app), [cause])
        if app.cancel_requested:
            self._cancel = self._tell(
                state, position, "cancel_requested", "its cancellation was requested before it was accepted"
            )
        self._note(state)

    def _rejected(self, state: State, position: str, fact: k.AppRejected) -> None:
        submitted = self._pending.pop(fact.submission, None)
        if submitted is not None:
            cause = Cause(submitted.position, f"{self.wanted} was {submitted.text}")
            if not self.id:
                self._chapters.append(submitted)
            later = "a later submission of this name was " if self.id else ""
            self._tell(state, position, "refused", f"{later}refused: {fact.reason}", [cause], of_it=not self.id)
        elif fact.refused == "update" and (request := self._updates.pop(fact.submission, None)) is not None:
            self._tell(state, position, "update_refused", f"this update was refused: {fact.reason}", [request])

    def _resized(self, state: State, event: k.Round, position: str, fact: k.Resized) -> None:
        app = self._found
        change = next((change for change in fact.changes if change.app == self.id), None)
        reason = fact.reasons.get(self.id) or (app.waiting if fact.unsaid else None)
        code = app.waiting.code if app.waiting else ""
        if change is not None:
            generation = app.generations.get(change.to_generation)
            if generation is not None and _applied(generation, change, state.seq):
                self._change(state, event, position, fact, change)
        elif reason is not None and code != self._code:
            waits = app.current is None
            what = "waits" if waits else "limited"
            text = f"{'waits' if waits else 'has no more'} because {reason.text} ({reason.code})"
            self._tell(state, position, what, text, self.around.behind(state, event, fact, self.id))
        self._code = code

    def _change(self, state: State, event: k.Round, position: str, fact: k.Resized, change: k.Resize) -> None:
        app = self._found
        after, before = placed_by(change), self.around.places.get(self.id, {})
        left = gained(after, before)
        changed = Changed(
            adjustment=change.adjustment,
            generation=change.to_generation,
            before=before,
            after=after,
            trigger=fact.trigger,
            policy=fact.policy,
            waited_s=self._spent.waits_s(state.time),
            room_to=self.around.room_to(state, fact, self.id),
            room_from=self.around.room_from(state, fact, self.id),
            closed=closed(state, left),
            still_waiting=[name_in(state, other) for other in sorted(fact.shortage) if other != self.id][:3],
            reason=fact.reasons.get(self.id),
            overtaken=app.generations[change.to_generation].void,
            why=change.why,
            **({"lost_s": change.lost_s} if change.lost_s else {}),
        )
        what = kind_of(changed, first=not self._sizes)
        causes = self.around.behind(state, event, fact, self.id)
        there = {cause.position for cause in causes}
        if self._owed is not None and self._owed.position not in there and str(app.seq) not in there:
            causes = [self._owed, *causes]
        cause = self._tell(state, position, what, story_words.changed(what, changed), causes, changed=changed)
        self._owed = cause if changed.overtaken or not changed.after else None
        self._sizes[change.to_generation] = len(change.placement)
        self._decided, self._ready, self._phases, self._exit = cause, cause, None, None

    def _generation_released(self, state: State, position: str, fact: k.GenerationReleased) -> None:
        app = self._found
        if fact.generation not in app.generations or (self._phases and self._phases.generation >= fact.generation):
            return
        self._released += 1
        self._phases = phases = Phases(
            generation=fact.generation,
            previous=fact.previous,
            prepare_s=fact.prepare_s,
            stop_s=fact.stop_s,
            wait_s=fact.wait_s,
            resume=fact.resume,
            checkpoint=fact.checkpoint,
            lost_steps=fact.lost_steps,
            killed=fact.killed,
            lease_ended=fact.lease_ended,
        )
        decided = self._decided
        self._ready = Cause(position, "its containers could start")
        if fact.previous or sizes(app) != self.partition:
            work = self._works.get(fact.previous)
            text = story_words.released(phases, self._sizes.get(fact.previous, 0), work)
            self._ready = self._tell(state, position, "released", text, [decided, self._exit], phases=phases, work=work)
        elif decided is not None:
            self._ready = decided
        self._works = {number: work for number, work in self._works.items() if number >= fact.generation}
        self._sizes = {number: size for number, size in self._sizes.items() if number >= fact.generation}
        self._failing = {number: exits for number, exits in self._failing.items() if number >= fact.generation}

    def _live(self, state: State, position: str, fact: k.MembersReleased | k.MembersLost | k.LiveResizeFailed) -> None:
        if isinstance(fact, k.MembersReleased):
            self._ready = self._tell(state, position, "announced", story_words.members_released(fact), [self._decided])
        elif isinstance(fact, k.MembersLost):
            first, _ = self._failing.pop(fact.generation, (self._exit, 0))
            self._decided = self._tell(state, position, "members_lost", story_words.lost(fact), [first])
        else:
            self._decided = self._tell(state, position, "live_failed", story_words.resize_failed(fact), [self._ready])
            self._sizes[fact.restart.to_generation] = len(fact.restart.placement)
            self._ready, self._phases, self._exit = self._decided, None, None

    def _membership(self, state: State, event: k.MembershipChanged) -> None:
        if event.app == self.id and not self._ended:
            text = story_words.trains(self._found, event, state.time)
            self._tell(state, str(state.seq), "membership", text, [self._ready])

    def _generation_failed(self, state: State, position: str, fact: k.GenerationFailed) -> None:
        app = self._found
        if fact.generation <= self._last_failed or fact.generation not in app.generations:
            return
        self._last_failed = fact.generation
        first, count = self._failing.get(fact.generation, (self._nodes.why_lost(app, fact.generation), 0))
        text = story_words.tried_again(fact, app, count - 1)
        work = self._works.get(fact.generation)
        self._tell(state, position, "retried", text, [first or self._exit], work=work)
        self._code = "retry"

    def _end(self, state: State, position: str, fact: k.AppCompleted | k.AppFailed | k.AppCancelled) -> None:
        app = self._found
        if not app.ended:
            return
        self._note(state)
        totals = self._spent.totals(app, self._released, state.time)
        reason = getattr(fact, "reason", "")
        text = f"{app.ended}{story_words.why(reason)}; it {story_words.totals(totals)}"
        causes: list[Cause | None] = [self._exit]
        if isinstance(fact, k.AppFailed):
            causes = [self._failing.get(fact.generation, (self._exit, 0))[0]]
        elif isinstance(fact, k.AppCancelled):
            causes = [self._cancel]
        work = self._works.get(fact.generation)
        self._tell(
            state,
            position,
            app.ended,
            text + (story_words.worked(work) if work else ""),
            causes,
            totals=totals,
            work=work,
        )
        self._ended = True


_HANDLERS: dict[type, Callable[[AppTeller, State, Any], None]] = {
    k.AppSubmitted: AppTeller._submitted,
    k.AppUpdated: AppTeller._updated,
    k.AppCancelRequested: AppTeller._cancel_requested,
    **dict.fromkeys(get_args(story_words.Operated), AppTeller._operated),
    k.ContainerDelayed: AppTeller._delayed,
    k.ContainerStarted: AppTeller._started,
    k.ContainerExited: AppTeller._exited,
    k.MembershipChanged: AppTeller._membership,
    k.AppResizeRequested: AppTeller._size_requested,
    k.PolicyChanged: AppTeller._settings,
    k.NodeJoined: AppTeller._node_event,
    k.NodeLeft: AppTeller._node_event,
    k.NodeDrainRequested: AppTeller._node_event,
    k.NodeTrustRequested: AppTeller._node_event,
}


def _applied(generation: Generation, change: k.Resize, seq: int) -> bool:
    """Return whether the decision in record `seq` took effect; an adjustment that was overtaken later did."""
    if change.adjustment == "live":
        return generation.change is not None and generation.change.decided_seq == seq
    return generation.decided_seq == seq


# --- its nodes --------------------------------------------------------------------------------------------------------


class AppNodes:
    """Follows the nodes of one app that has not ended; `tell` appends a chapter.  Each call has the app after the record was
    folded, and its `partition` before."""

    def __init__(self, add: Callable[..., Cause]) -> None:
        self._tell = add
        self._latest: dict[str, Cause] = {}
        """The latest event of each node."""
        self._suspected: dict[str, Cause] = {}
        """Chapters by suspect node, of when it became suspect."""

    def event(
        self,
        state: State,
        event: k.NodeJoined | k.NodeLeft | k.NodeDrainRequested | k.NodeTrustRequested,
        app: App,
        partition: Places,
    ) -> None:
        """Follow the events of a node or an operator."""
        node = event.node
        if isinstance(event, k.NodeTrustRequested):
            self._trusted(state, str(state.seq), node, story_words.trust_requested(event), app, partition, by=event.by)
            return
        ended = _ended_with(state, app, node) if isinstance(event, k.NodeLeft) else 0
        if not ended and not _on(app, node, partition):
            return
        if isinstance(event, k.NodeDrainRequested):
            what = "node_drained" if event.drain else "node_undrained"
            text = f"{story_words.drain(event)}; {story_words.has(_on(app, node, partition))} there"
        elif isinstance(event, k.NodeLeft):
            what, text = "node_left", f"{node} left" + _and_ended(ended)
        elif sizes(app) != partition:
            what, text = "node_rejoined", f"{node} rejoined, not as it was before"
        else:
            return
        self._latest[node] = self._tell(
            state, str(state.seq), what, text + _void_place(app, partition), by=getattr(event, "by", "")
        )

    def fact(
        self,
        state: State,
        position: str,
        fact: k.NodeLost | k.NodeRecovered | k.NodeLeaseEnded | k.NodeSuspected | k.NodeTrusted,
        app: App,
        partition: Places,
    ) -> None:
        """Follow the master's conclusions about a node."""
        if isinstance(fact, k.NodeSuspected):
            self._suspect(state, position, fact, app, partition)
            return
        if isinstance(fact, k.NodeTrusted):
            self._trusted(state, position, fact.node, f"{fact.node} is {story_words.trusted(fact)}", app, partition)
            return
        ended = _ended_with(state, app, fact.node) if isinstance(fact, k.NodeLeaseEnded) else 0
        count = _on(app, fact.node, partition)
        if not ended and not count:
            return
        before, changed = self._latest.get(fact.node), None
        if isinstance(fact, k.NodeLost):
            what, changed = "node_lost", lost_because(state, fact)
            text = (
                f"{fact.node}, where {story_words.has(count)}, has not been heard since {moment(fact.last_heard)}; "
                "whether they run is unknown"
            )
        elif isinstance(fact, k.NodeRecovered):
            what, text = "node_recovered", f"{fact.node}, where {story_words.has(count)}, was heard again"
        else:
            what, text = "node_lease_ended", f"the lease of {fact.node} ended" + _and_ended(ended)
            changed = lease_ended_because(state, fact)
        text = blaming(text + _void_place(app, partition), changed)
        self._latest[fact.node] = self._tell(state, position, what, text, [before, changed])

    def _suspect(self, state: State, position: str, fact: k.NodeSuspected, app: App, partition: Places) -> None:
        """Name no other app: it may be another tenant's."""
        count = _on(app, fact.node, partition)
        if app.id in fact.apps:
            others = len(fact.apps) - 1
            text = (
                f"{fact.node} is suspect, because {others} other app{'' if others == 1 else 's'} failed there as well"
            )
            text = f"{text}; what failed there is the node's fault" if others else f"{fact.node} is suspect again"
        elif count:
            text = (
                f"{fact.node}, where {story_words.has(count)}, is suspect and takes nothing new; what runs there stays"
            )
        else:
            return
        self._suspected[fact.node] = self._tell(state, position, "node_suspected", text + _void_place(app, partition))

    def _trusted(
        self, state: State, position: str, node: str, text: str, app: App, partition: Places, by: str = ""
    ) -> None:
        before = self._suspected.pop(node, None)
        if before is not None or _on(app, node, partition):
            self._tell(state, position, "node_trusted", text, [before], by=by)

    def why_lost(self, app: App, number: int) -> Cause | None:
        """Return the latest event of a node that took containers of this generation with it."""
        lost = [c.node for c in app.generations[number].containers.values() if c.reason == "lost"]
        return next((self._latest[node] for node in lost if node in self._latest), None)


def _on(app: App, node: str, partition: Places) -> int:
    """Return how many of its containers are, or may be, on a node."""
    may_run = [
        container
        for generation in app.generations.values()
        if generation.released
        for container in generation.containers.values()
        if container.node == node and container.state != "exited"
    ]
    return max(len(may_run), partition.get(node, 0))


def _void_place(app: App, partition: Places) -> str:
    lost = partition and not sizes(app)
    return "; its placement is void, and it is placed again" if lost else ""


def _ended_with(state: State, app: App, node: str) -> int:
    """Return how many of its containers this record ended because of their node."""
    return sum(
        container.node == node and container.reason == "lost" and container.exited_at == state.time
        for generation in app.generations.values()
        for container in generation.containers.values()
    )


def _and_ended(count: int) -> str:
    return f", which ended the app's {containers(count)} there" if count else ""


# --- where its time went ----------------------------------------------------------------------------------------------


def _works(app: App) -> bool:
    """Return whether its containers run and, if it reports progress, whether it has reported any since they started: loading,
    up to the first step, is part of a pause."""
    current = app.current
    return current is not None and bool(current.started_at) and (current.worked or not app.reports_progress)


class Spent:
    """Takes the app after each event that can change which of the three it is; times are log times (UTC ns)."""

    def __init__(self) -> None:
        self._spent = {"waited": 0, "paused": 0, "ran": 0}
        self._doing = ""
        self._since = 0

    def note(self, app: App, time: int) -> None:
        """Record the app's activity from this time on."""
        current = app.current
        doing = "" if app.ended else "waited" if current is None else "ran" if _works(app) else "paused"
        if doing != self._doing:
            if current is not None and (self._doing, doing) == ("paused", "ran") and app.reports_progress:
                time = max(self._since, first_step_at(app, current.number, time))
            self._end(self._spent, time)
            self._doing, self._since = doing, time

    def _end(self, spent: dict[str, int], time: int) -> None:
        if self._doing:
            spent[self._doing] += time - self._since

    def waits_s(self, time: int) -> float:
        """Return for how many seconds it has been without a place; 0 if it has one."""
        return (time - self._since) / SECOND if self._doing == "waited" else 0.0

    def totals(self, app: App, generations: int, time: int) -> AppTotals:
        """Return the totals until now.  `generations`: how many of its generations could start."""
        spent = dict(self._spent)
        self._end(spent, time)
        return AppTotals(
            waited_s=spent["waited"] / SECOND,
            paused_s=spent["paused"] / SECOND,
            ran_s=spent["ran"] / SECOND,
            generations=generations,
            adjustments=app.adjustments,
            failures=app.failures,
            lost_steps=app.lost_steps,
            step=app.step,
        )

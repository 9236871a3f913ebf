"""A virtual cluster whose clients and operators hold and release apps at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.core.apps.gates import hold_of
from events import kinds as k
from events.codec import decode
from tests.core.virtual import World

if TYPE_CHECKING:
    from dorm.core.state import App

OFTEN = 0.4


class GatedWorld(World):
    """One history.  Nothing is decided for an app while a gate is closed that the decision knew of."""

    def append(self, subject: str, body: bytes, msg_id: str = "", expected_last: int | None = None) -> int | None:
        before, void = len(self.log), self.whole.counters.void_rounds
        held = {app.id: seq for app in self.whole.live_apps() if (seq := self.held_since(app))}
        seq = super().append(subject, body, msg_id, expected_last)
        if len(self.log) > before and void == self.whole.counters.void_rounds:
            event = decode(self.log[-1])
            for fact in event.events if isinstance(event, k.Round) else ():
                self.check_fact(fact, event, held)
        return seq

    def check_fact(self, fact: Any, event: k.Round, held: dict[str, int]) -> None:
        known = {app: seq for app, seq in held.items() if seq <= event.basis}
        if isinstance(fact, k.GenerationReleased | k.MembersReleased):
            self.hold(fact.app not in known, f"{fact.app} is held, and released: {fact}")
        for change in fact.changes if isinstance(fact, k.Resized) else ():
            self.hold(not change.placement or change.app not in known, f"{change.app} is held, and placed: {change}")
        for app in fact.reasons if isinstance(fact, k.Resized) else ():
            self.hold(app not in known, f"{app} is held, and was part of a decision")

    def held_since(self, app: App) -> int:
        """The record that closed a gate, 0 where all are open.  A hold moves the app's `changed_seq`, and little else does."""
        return app.changed_seq or app.seq if hold_of(app) is not None else 0

    def publish(self, event: k.Event, who: str, msg_id: str = "") -> int:
        if isinstance(event, k.AppSubmitted) and isinstance(event.spec, dict):
            event = msgspec.structs.replace(event, spec={**event.spec, **self.gates()})
        return super().publish(event, who, msg_id)

    def gates(self) -> dict[str, Any]:
        return {"hold": True} if self.chance.random() < OFTEN / 2 else {}

    def client_step(self) -> None:
        if self.chance.random() > OFTEN:
            super().client_step()
            return
        name = self.chance.choice(["ant", "bee", "cat", "dog", "eel"])
        app = self.whole.names.get(name, name)
        kind = self.chance.choice([k.AppHoldRequested, k.AppReleaseRequested, k.AppReleaseRequested])
        self.publish(kind(app=self.chance.choice([name, app])), "ann")

    def recover(self) -> None:
        for app in list(self.whole.live_apps()):
            if hold_of(app) is not None:
                self.publish(k.AppReleaseRequested(app=app.id), "ann")
        for submission in list(self.whole.submissions.values()):
            self.publish(k.AppCancelRequested(app=str((submission.spec or {}).get("name", ""))), "ann")
        super().recover()

"""A virtual cluster whose clients hold and release apps at any moment, and submit apps that wait for others."""

from __future__ import annotations

from typing import Any

import msgspec

from dorm.core.gates import hold_of, may_start_at, waits_for_record
from events import kinds as k
from events.codec import decode
from tests.core.virtual.people import NAMES
from tests.core.virtual.world import World

OFTEN = 0.4


class GatedWorld(World):
    """One history.  Nothing is decided for an app while a gate is closed that the decision knew of."""

    def __init__(self, seed: int, **more: Any) -> None:
        self.shut: dict[str, int] = {}
        """By app with a gate that only a record opens, the record since which it is closed."""
        super().__init__(seed, **more)

    def append(self, subject: str, body: bytes, msg_id: str = "", expected_last: int | None = None) -> int | None:
        before, void = len(self.log), self.whole.counters.void_rounds
        seq = super().append(subject, body, msg_id, expected_last)
        if len(self.log) > before:
            if void == self.whole.counters.void_rounds and isinstance(event := decode(self.log[-1]), k.Round):
                for fact in event.events:
                    self.check_fact(fact, event)
            shut = [app.id for app in self.whole.live_apps() if waits_for_record(app)]
            self.shut = {app: self.shut.get(app, len(self.log)) for app in shut}
        return seq

    def check_fact(self, fact: Any, event: k.Round) -> None:
        # One with a time only is open for a decision that was made after it.
        now = max(self.whole.time, event.at)
        early = {app.id for app in self.whole.live_apps() if may_start_at(app) > now}
        known = early | {app for app, seq in self.shut.items() if seq <= event.basis}
        if isinstance(fact, k.GenerationReleased | k.MembersReleased):
            self.hold(fact.app not in known, f"{fact.app} has a closed gate, and is released: {fact}")
        for change in fact.changes if isinstance(fact, k.Resized) else ():
            self.hold(
                not change.placement or change.app not in known, f"{change.app}: a closed gate, and placed: {change}"
            )
        for app in fact.reasons if isinstance(fact, k.Resized) else ():
            self.hold(app not in known, f"{app} has a closed gate, and was part of a decision")
        if isinstance(fact, k.AppCompleted):
            self.hold(fact.app not in self.whole.apps or self.whole.apps[fact.app].ended == "completed", fact)

    def publish(self, event: k.Event, who: str, msg_id: str = "") -> int:
        if isinstance(event, k.AppSubmitted) and isinstance(event.spec, dict):
            event = msgspec.structs.replace(event, spec={**event.spec, **self.gates()})
        return super().publish(event, who, msg_id)

    def gates(self) -> dict[str, Any]:
        found: dict[str, Any] = {"hold": True} if self.chance.random() < OFTEN / 2 else {}
        if self.chance.random() < OFTEN:
            whens = ["completed", "failed", "ended", "ended"]
            names = self.chance.sample(NAMES, self.chance.choice([1, 1, 2]))
            found["after"] = [{"app": name, "when": self.chance.choice(whens)} for name in names]
        if self.chance.random() < OFTEN / 2:
            found["start_after"] = self.chance.choice(["1s", "5s", "20s"])
        if self.chance.random() < OFTEN / 2:
            found["max_runtime"] = self.chance.choice(["1s", "4s", "1h"])
        return found

    def client_step(self) -> None:
        if self.chance.random() > OFTEN:
            super().client_step()
            return
        name = self.chance.choice(NAMES)
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

    def cycle(self) -> bool:
        """An app with a limit ends while its containers run."""
        left = [toy for node in self.nodes for toy in node.engine.values() if toy.state == "running"]
        return super().cycle() or bool(left)

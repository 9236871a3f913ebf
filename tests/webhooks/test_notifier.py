"""Concurrent notifications of one webhook, without a server: waiting ones are held, and nothing is left over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from dorm.webhooks.endpoints import TOPIC, Endpoint
from dorm.webhooks.notifier import Notifier
from dorm.webhooks.sending import Measured, Outcome
from events import subjects
from events.codec import encode
from events.kinds import AppCompleted, Round
from events.log.records import LogUnavailable, Record
from tests.core.records import Bench

if TYPE_CHECKING:
    from dorm.core.state import App
    from events.nats.places import Delivery
    from events.positions import Logged

BASE = "https://hooks.org/teams"


class Given:
    """A delivery of a record, whose server may be away."""

    def __init__(self, seq: int, *apps: App) -> None:
        facts: list[Any] = [AppCompleted(app=app.id, generation=1) for app in apps]
        body = encode(Round(id=f"m.{seq}", by="m", epoch=1, basis=seq - 1, allocated=False, events=facts))
        self.record = Record(seq, 1, subjects.rounds("lab"), body, f"m.{seq}")
        self.attempt = 1
        self.done_at = 0
        self.holds = 0
        self.held = asyncio.Event()
        self.away = False

    async def working(self) -> None:
        assert not self.done_at, "it is done, and would come again"
        self.holds += 1
        self.held.set()
        if self.away:
            raise LogUnavailable("the server is away")

    async def done(self) -> None:
        self.done_at = self.holds

    async def retry(self, after_s: float) -> None:
        self.done_at = self.holds


class Setting:
    """A notifier of a webhook.  `answer` is the endpoints' answer."""

    def __init__(self) -> None:
        self.bench = Bench(n1=64)
        self.sent: list[str] = []
        self.answered = asyncio.Event()
        self.outcome = Outcome(204, "")
        endpoint = Endpoint("teams", BASE, (TOPIC,), "key", "", 0, 60.0, 0, "op")
        self.notifier = Notifier(
            endpoint, None, None, None, "lab",
            clock=lambda: 1, left_out=_never, reports=None, measured=Measured(), find=self._find, again_s=0.02,
        )  # fmt: skip
        self.notifier._post = self._post  # type: ignore[method-assign]

    def app(self, name: str, user: str) -> App:
        self.bench.submit(name, user=user, notify=f"{BASE}/{name}")
        self.bench.settle()
        return self.bench.app(name)

    async def _find(self, seq: int, app: str) -> App | None:
        return self.bench.state.apps.get(app)

    async def _post(self, url: str, message: str, body: bytes, time: int) -> Outcome:
        self.sent.append(url.rpartition("/")[2])
        await self.answered.wait()
        return self.outcome

    def take(self, given: Given) -> asyncio.Task[bool]:
        return asyncio.create_task(self.notifier._pass_on(cast("Delivery", given)))


async def _never(one: Logged) -> bool:
    return False


@pytest.mark.parametrize("away", [False, True])
async def test_events_that_wait_for_their_tenants_turn_are_held(away: bool) -> None:
    """Or the server would give it out again after a while: it would be sent twice, and its attempts be used up."""
    setting = Setting()
    first, second = Given(1, setting.app("first", "ann")), Given(2, setting.app("second", "ann"))
    second.away = away
    tasks = [setting.take(first), setting.take(second)]
    async with asyncio.timeout(60):
        for given in (first, second):
            while given.holds < 3:
                await given.held.wait()
                given.held.clear()
        assert setting.sent == ["first"]
        setting.answered.set()
        assert await asyncio.gather(*tasks) == [True, True]
    assert setting.sent == ["first", "second"]
    await asyncio.sleep(0.05)
    assert (first.done_at, second.done_at) == (first.holds, second.holds), "nothing is held after it is done"


async def test_a_part_that_breaks_ends_the_others_and_takes_nothing_from_its_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setting = Setting()
    given = Given(1, setting.app("bad", "ann"), setting.app("broken", "bob"))
    post: Any = setting.notifier._post

    async def breaks(url: str, *more: Any) -> Outcome:
        if url.endswith("broken"):
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            raise ZeroDivisionError
        return cast("Outcome", await post(url, *more))

    monkeypatch.setattr(setting.notifier, "_post", breaks)
    setting.outcome = Outcome(503, "it answers 503")
    for _ in range(3):
        setting.answered.set()
        with pytest.raises(ExceptionGroup):
            await setting.take(given)
        assert setting.notifier._waits._of.total() <= 1
    setting.answered.clear()
    with pytest.raises(ExceptionGroup):  # Bad's endpoint has not answered: nobody waits for it any more.
        await setting.take(given)
    assert len(asyncio.all_tasks()) == 1

"""Users of `make overload`: those who keep a number of apps running, and one who sometimes waits for an answer."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from events import subjects
from events.codec import decode, encode
from events.kinds import (
    AppAccepted,
    AppCancelled,
    AppCompleted,
    AppFailed,
    AppRejected,
    AppSubmitted,
    AppUpdated,
    Round,
)

if TYPE_CHECKING:
    from events.log.interface import EventLog

_EVERY_S = 0.5
"""Between two submissions of the user who waits for answers."""
_LENGTHS_S = (4, 15, 25, 40, 60)
_POLITE = "polite"
_BURST = 100
"""Submissions of the others in a fifth of a second, at most."""
_ENOUGH = 0.95
"""Part of the apps: some always end and are followed by others."""


class Answer(NamedTuple):
    """One submission of the user who waits for answers, by its own clock."""

    sent_at: float
    """Monotonic seconds."""
    took_s: float
    """From just before it was published until its answer was read."""


def spec(name: str, seconds: float, *, n_max: int = 4, user: str = "others") -> dict[str, Any]:
    return {
        "name": name,
        "user": user,
        "command": ["toy", str(seconds)],
        "demand": {"cpu": 2, "memory": "1GiB"},
        "n_max": n_max,
        "grace": "5s",
        "retries": {"limit": 3},
    }


class Users:
    """A context in which there are always `apps` apps."""

    def __init__(self, log: EventLog, cluster: str, apps: int) -> None:
        self.answers: list[Answer] = []
        self.refused = 0
        self._log = log
        self._cluster = cluster
        self._apps = apps
        self._alive: dict[str, str] = {}
        """Live apps of these users by id, with their submissions."""
        self._waiting: dict[str, float] = {}
        """Submissions without an answer, and when they were sent."""
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._made = 0

    async def __aenter__(self) -> Self:
        end = await self._log.end()
        self._tasks = [
            asyncio.create_task(self._follow(end)),
            asyncio.create_task(self._keep_going()),
            asyncio.create_task(self._be_polite()),
            asyncio.create_task(self._change_bounds()),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settle(self, *, timeout: float) -> None:
        """Wait until every submission so far has its answer.  Raises what ended a user."""
        owed = set(self._waiting)
        async with asyncio.timeout(timeout):
            while owed & self._waiting.keys() or not self._made:
                self._raise_ended()
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._changed.wait()
        self._raise_ended()

    @property
    def alive(self) -> int:
        """How many apps were accepted and have not ended."""
        return len(self._alive)

    async def reach(self, *, timeout: float) -> None:
        """Until there are as many apps as there are to be, or the time is over.  Raises what ended a user."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while len(self._alive) < _ENOUGH * self._apps:
                    self._raise_ended()
                    self._changed.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            await self._changed.wait()

    def _raise_ended(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()

    async def _follow(self, after: int) -> None:
        async for batch in self._log.read(after=after, subjects=[subjects.rounds(self._cluster)], follow=True):
            for event in map(decode, batch):
                for fact in event.events if isinstance(event, Round) else ():
                    self._hear(fact)
            self._changed.set()

    def _hear(self, fact: Any) -> None:
        match fact:
            case AppAccepted() | AppRejected() if fact.submission in self._waiting:
                sent = self._waiting.pop(fact.submission)
                if fact.submission.startswith(_POLITE):
                    self.answers.append(Answer(sent, time.monotonic() - sent))
                if isinstance(fact, AppAccepted):
                    self._alive[fact.app] = fact.submission
                else:
                    self.refused += 1
            case AppCompleted() | AppFailed() | AppCancelled():
                self._alive.pop(fact.app, None)
            case _:
                pass

    async def _submit(self, who: str, seconds: float, n_max: int) -> None:
        self._made += 1
        name = f"{who}-{self._made}"
        event = AppSubmitted(
            id=f"{name}.{secrets.token_hex(4)}", at=time.time_ns(), by=who, spec=spec(name, seconds, n_max=n_max)
        )
        self._waiting[event.id] = time.monotonic()
        await self._log.append(
            subjects.fact(self._cluster, "AppSubmitted", who), encode(event), msg_id=event.id, timeout=30.0
        )

    async def _keep_going(self) -> None:
        while True:
            missing = self._apps - len(self._alive) - len(self._waiting)
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._made, self._made + min(missing, _BURST)):
                    length_s = _LENGTHS_S[number % len(_LENGTHS_S)]
                    tasks.create_task(self._submit(f"user-{number % 10}", length_s, 1 + number % 8))
            await asyncio.sleep(0.2)

    async def _be_polite(self) -> None:
        while True:
            await self._submit(_POLITE, 10, 1)
            await asyncio.sleep(_EVERY_S)

    async def _change_bounds(self) -> None:
        """Change the bounds of an app now and then, so that it is resized even if no other app comes or goes."""
        while True:
            await asyncio.sleep(1.0)
            if self._alive:
                app = list(self._alive)[self._made % len(self._alive)]
                event = AppUpdated(id=f"update.{secrets.token_hex(6)}", by="others", app=app, n_max=1 + self._made % 6)
                subject = subjects.fact(self._cluster, "AppUpdated", "others")
                await self._log.append(subject, encode(event), msg_id=event.id, timeout=30.0)

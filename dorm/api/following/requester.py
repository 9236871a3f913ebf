"""A client for one request of one user: it asks as `dorm.client` does, and reads from the follower."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dorm.client.client import Client
from dorm.client.finding import find_app
from dorm.core.snapshot import copy, restore
from dorm.core.state import App

if TYPE_CHECKING:
    from collections.abc import Callable

    from dorm.api.following.follower import Follower
    from dorm.core.state import State
    from events.log.interface import Bus

T = TypeVar("T")

_CATCH_UP_S = 5.0
_APP = msgspec.msgpack.Decoder(App)


class Requester(Client):
    """Made for each request that changes something, and for container output."""

    def __init__(self, follower: Follower, bus: Bus, user: str, clock: Callable[[], int]) -> None:
        super().__init__(follower.log, bus, follower.cluster, user=user, clock=clock, begin=self._copied)
        self._follower = follower

    async def look(self, question: Callable[[State], T]) -> T:
        await self._follower.latest(_CATCH_UP_S)
        return await self._follower.look(question)

    async def glance(self, question: Callable[[State], T]) -> T:
        return await self._follower.look(question)

    async def _copied(self) -> State:
        """Return a copy of the follower's state, for a request that has to fold the log itself."""
        await self._follower.latest(_CATCH_UP_S)
        taken = await self._follower.look(copy)
        return await asyncio.to_thread(restore, taken)

    async def app(self, name_or_id: str) -> App:
        """Return a copy, because the follower continues to fold."""
        taken = await self.look(lambda state: msgspec.msgpack.encode(find_app(state, name_or_id, self.user)))
        return _APP.decode(taken)

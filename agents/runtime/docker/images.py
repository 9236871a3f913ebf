"""Images that an engine lacks: each is pulled once for all callers, in bounded time, or refused in one line."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from agents.runtime.docker.engine import Rejected
from agents.runtime.interface import Refused, Unavailable

if TYPE_CHECKING:
    from agents.runtime.docker.engine import Engine

_FIRST_S: Final = 10.0
_TOTAL_S: Final = 600.0
_WAIT_S: Final = 12.0
_REMEMBERED_S: Final = 30.0
_ABSENT: Final = re.compile(
    r"not found|not exist|denied|unauthorized|manifest unknown|no matching manifest", re.IGNORECASE
)
_UNREACHABLE: Final = re.compile(
    r"dial |lookup |no such host|no answer|timeout|canceled|refused|unreachable|\bEOF\b|x509|tls", re.IGNORECASE
)
_FULL: Final = re.compile(r"no space left|disk quota|read-only file system|input/output error", re.IGNORECASE)
"""The node's own trouble, which must not count against an app."""
_KEPT_WORDS: Final = 300


class Images:
    """The pulls of one engine.  A pull continues when its callers are cancelled, and ends with `close`."""

    def __init__(
        self, engine: Engine, *, first_s: float = _FIRST_S, total_s: float = _TOTAL_S, wait_s: float = _WAIT_S
    ) -> None:
        """`first_s`: seconds to the registry's first answer; `total_s`: for the whole pull; `wait_s`: how long one call
        waits.  `wait_s` exceeds `first_s`, so that one call suffices to report an unreachable registry, and is small, since a
        waiting agent cannot act on new records."""
        self._engine = engine
        self._first_s = first_s
        self._total_s = total_s
        self._wait_s = wait_s
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self.ended = 0
        """How many pulls have ended, successfully or not."""

    async def fetch(self, image: str) -> None:
        """Wait until the engine has pulled it.

        Raises `Refused` ("image") if it cannot be pulled, `Unavailable` if that takes longer than one call waits: the next
        call waits for the same pull.
        """
        pull = self._pulls.get(image)
        if pull is None:
            pull = self._pulls[image] = asyncio.create_task(self._pull(image), name=f"pull {image}")
            pull.add_done_callback(lambda done: self._ended(image, done))
        await asyncio.wait([pull], timeout=self._wait_s)
        if not pull.done():
            raise Unavailable(f"{image} is being pulled", code="container.image.pulling")
        if self._pulls.get(image) is pull:
            del self._pulls[image]  # a later call starts a new try
        if pull.cancelled():
            raise Unavailable(f"the pull of {image} was ended", code="container.image.pull_ended")
        pull.result()

    async def close(self) -> None:
        """End all pulls; the engine keeps the layers that it has."""
        pulls = list(self._pulls.values())
        self._pulls.clear()
        for pull in pulls:
            pull.cancel()
        if pulls:
            await asyncio.wait(pulls)

    async def _pull(self, image: str) -> None:
        try:
            await self._engine.pull(image, self._first_s, self._total_s)
        except Rejected as answer:
            if _FULL.search(answer.message):
                raise Unavailable(
                    f"{image} cannot be pulled: {answer.message}",
                    code="container.image.disk_full",
                    doing="pull",
                    said=answer.message,
                ) from answer
            raise refused(image, answer.message) from answer

    def _ended(self, image: str, pull: asyncio.Task[None]) -> None:
        """Keep the outcome for a while for callers between two calls, and no longer: it gets stale."""
        self.ended += 1
        if not pull.cancelled():
            pull.exception()  # marks it as retrieved: perhaps no caller waits
        asyncio.get_running_loop().call_later(_REMEMBERED_S, self._forget, image, pull)

    def _forget(self, image: str, pull: asyncio.Task[None]) -> None:
        if self._pulls.get(image) is pull:
            del self._pulls[image]


def refused(image: str, message: str) -> Refused:
    """Return which image, why, and what to do, in one line; `message` is the engine's."""
    words = " ".join(message.split())[:_KEPT_WORDS]
    load = "load it on this node (docker pull, docker load or docker build)"
    if _ABSENT.search(words) and "no such host" not in words:
        why, then = f"the registry does not have it, or not for everyone ({words})", f"check the name, or {load}"
    elif _UNREACHABLE.search(words):
        why, then = f"no registry can be reached ({words})", load
    else:
        why, then = words, load
    return Refused(
        "image",
        f"this node does not have the image {image}, and cannot pull it: {why}; {then}",
        code="container.image.unavailable",
    )

"""Answer questions for container logs: logs are not events; they stay with the engine and are read from there."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from agents.runtime.interface import Key, RuntimeFault, Unavailable
from events.log.interface import AskRefused
from events.requests import LogQuestion

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agents.desired import Desired
    from agents.runtime.interface import Runtime


class LogAnswerer:
    """The answerer of one node."""

    def __init__(self, runtime: Runtime, desired: Desired) -> None:
        self._runtime = runtime
        self._desired = desired

    async def __call__(self, question: bytes) -> AsyncIterator[bytes]:
        try:
            asked = msgspec.json.decode(question, type=LogQuestion)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise AskRefused(f"a question for logs is a JSON map: {error}", code="agent.question.malformed") from None
        key = Key(asked.app, asked.generation, asked.slot)
        try:
            async with contextlib.aclosing(self._runtime.logs(key, follow=asked.follow, tail=asked.tail)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except KeyError:
            raise AskRefused(
                f"slot {key.slot} of generation {key.generation} is not (or no longer) on node {self._desired.node}",
                code="slot.not_found",
            ) from None
        except Unavailable as error:
            raise AskRefused(
                f"the engine on node {self._desired.node} does not answer: {error}", code=error.code
            ) from None
        except RuntimeFault as error:
            raise AskRefused(str(error), code=error.code) from None

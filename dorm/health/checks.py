"""A check, what several of them say together, and the checks of one process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Source = Callable[[], Awaitable[Sequence["Check"]]]

_SOURCE_S = 5.0


class Check(msgspec.Struct, frozen=True):
    """One thing that has to be true of a process that does its work."""

    name: str
    """Such as `log`; of an agent with the node before it, as `node-1/engine`."""
    ok: bool
    text: str
    """What is; if it is not `ok`, also what to do."""


class Report(msgspec.Struct, frozen=True):
    """What the checks of one process say."""

    ready: bool
    """Whether all of them hold."""
    version: str
    checks: list[Check]

    @property
    def status(self) -> str:
        """One line: what is wrong, or what the process does, which its last check says."""
        wrong = [check.text for check in self.checks if not check.ok]
        return "; ".join(wrong or [check.text for check in self.checks[-1:]])


class Health:
    """The checks of one process, which are made once at a time: who asks meanwhile gets the same report."""

    def __init__(self, version: str, waits_for: str) -> None:
        """`version` is that of this process, `waits_for` says what it does until there is something to check."""
        self._version = version
        self._waits_for = waits_for
        self._sources: list[Source] = []
        self._checking: asyncio.Task[Report] | None = None

    def watch(self, *sources: Source) -> None:
        """Check these from now on."""
        self._sources += sources

    @property
    def version(self) -> str:
        return self._version

    async def report(self) -> Report:
        """Return what the checks say now."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())
        return await asyncio.shield(self._checking)

    async def _check(self) -> Report:
        """Ask every source, each within its own time.  One that fails or does not answer is a check that does not hold."""
        found = [check for checks in await asyncio.gather(*map(_ask, self._sources)) for check in checks]
        if not self._sources:
            found = [Check("start", False, self._waits_for)]
        return Report(ready=all(check.ok for check in found), version=self._version, checks=found)


async def _ask(source: Source) -> Sequence[Check]:
    try:
        async with asyncio.timeout(_SOURCE_S):
            return await source()
    except TimeoutError:
        return [Check("checks", False, f"a check did not end within {_SOURCE_S:g} s; look at the process's log")]
    except Exception as error:
        return [Check("checks", False, f"a check failed: {error!r}; please report this")]

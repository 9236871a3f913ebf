"""A check, a report of several, and the checks of one process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Source = Callable[[], Awaitable[Sequence["Check"]]]

_SOURCE_S = 5.0


class Check(msgspec.Struct, frozen=True):
    """A condition that holds while a process does its work."""

    name: str
    """Such as `log`; for an agent with the node in front, such as `node-1/engine`."""
    ok: bool
    text: str
    """The situation; if it is not `ok`, also what to do."""


class Report(msgspec.Struct, frozen=True):
    """The results of the checks of one process."""

    ready: bool
    """Whether all of them hold."""
    version: str
    checks: list[Check]

    @property
    def status(self) -> str:
        """One line: what is wrong, or else what the process does, from its last check."""
        wrong = [check.text for check in self.checks if not check.ok]
        return "; ".join(wrong or [check.text for check in self.checks[-1:]])


class Health:
    """The checks of one process.  Only one run is active at a time; concurrent callers get the same report."""

    def __init__(self, version: str, waits_for: str) -> None:
        """`version` is that of this process, `waits_for` says what it does until there is something to check."""
        self._version = version
        self._waits_for = waits_for
        self._sources: list[Source] = []
        self._checking: asyncio.Task[Report] | None = None

    def watch(self, *sources: Source) -> None:
        """Add these checks."""
        self._sources += sources

    @property
    def version(self) -> str:
        return self._version

    async def report(self) -> Report:
        """Run the checks, and return their report."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check())
        return await asyncio.shield(self._checking)

    async def _check(self) -> Report:
        """Ask every source, each with its own time limit.  A source that fails or does not answer counts as a failed check."""
        results = [check for checks in await asyncio.gather(*map(_ask, self._sources)) for check in checks]
        if not self._sources:
            results = [Check("start", False, self._waits_for)]
        return Report(ready=all(check.ok for check in results), version=self._version, checks=results)


async def _ask(source: Source) -> Sequence[Check]:
    try:
        async with asyncio.timeout(_SOURCE_S):
            return await source()
    except TimeoutError:
        return [Check("checks", False, f"a check did not end within {_SOURCE_S:g} s; look at the process's log")]
    except Exception as error:
        return [Check("checks", False, f"a check failed: {error!r}; please report this")]

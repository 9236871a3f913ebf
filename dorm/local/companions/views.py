"""The views of users, as a process next to a master: its work never delays the master.

It starts once the log knows a plain user, so a cluster without any pays nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dorm.local.companions.companion import Companion

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dorm.core.state import State

_LOOK_S = 0.5


def has_plain_users(state: State) -> bool:
    """Return whether any user may only read a view."""
    return state.known is not None and any(user.role == "user" for user in state.known.users.values())


class ViewsProcess(Companion):
    """`dorm views` for a cluster whose master runs here."""

    def __init__(
        self,
        state: Callable[[], State],
        url: str,
        cluster: str,
        *,
        credentials: Path | str,
        key: Path,
        log: Path | None = None,
    ) -> None:
        """`state` returns the master's present state, `credentials` are the master's, and `key` is what it signs with.  `log`
        is the file for the process's output; None for this one's standard error."""
        self._state = state
        # Not an argument: everyone on the machine sees those, and the address may hold a password.
        environment = {"DORM_URL": url, "DORM_CREDENTIALS": str(credentials)}
        arguments = ("views", "--cluster", cluster, "--key", str(key))
        super().__init__("the process of users' views", arguments, environment, log)

    async def wanted(self) -> None:
        """Wait for a plain user."""
        while not has_plain_users(self._state()):  # noqa: ASYNC110  (nothing reports that a field of a state changes)
            await asyncio.sleep(_LOOK_S)

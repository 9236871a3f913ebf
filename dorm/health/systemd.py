"""sd_notify: what a service manager learns about a unit with `Type=notify`.

    READY=1                once all checks hold for the first time: units that come after this one start
    EXTEND_TIMEOUT_USEC=   until then, as long as the event loop turns: a process that waits for its NATS servers is not
                           killed for that, whatever `TimeoutStartSec` says
    STATUS=                one line that `systemctl status` shows
    WATCHDOG=1             twice in each `WatchdogSec`, as long as the event loop turns; problems that a restart cannot fix,
                           such as a log that does not answer, never hold it back
    STOPPING=1             when the process begins to end

The protocol is one datagram to the socket that `NOTIFY_SOCKET` names (sd_notify(3)), which is less than the interface of a
library for it.  Without that variable nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

from events.logger import Logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, MutableMapping

    from dorm.health.checks import Health

_START_S = 1.0
"""Seconds between two looks at the checks while the process starts."""
_STATUS_S = 10.0
"""Seconds between two looks once it is ready."""
_LONGEST_START_S = 60.0
"""A starting process that is silent for this long is stuck."""
_STATUS_LENGTH = 512
_log = Logger(__name__)


class ServiceManager:
    """The service manager that started this process, if one did."""

    def __init__(self, address: str, watchdog_s: float | None) -> None:
        """`address` is that of its socket, "" for none; `watchdog_s` is `WatchdogSec`, None for no watchdog."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_s = watchdog_s
        self._failed = False

    @classmethod
    def of_environment(cls, environment: MutableMapping[str, str]) -> ServiceManager:
        """Return the one that the variables name, and remove the variables, so that containers of the process runtime cannot
        speak for the agent."""
        address = environment.pop("NOTIFY_SOCKET", "")
        usec, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        own = pid in ("", str(os.getpid()))
        return cls(address, int(usec) / 1e6 if own and usec.isdecimal() and int(usec) else None)

    def __bool__(self) -> bool:
        return bool(self._address)

    def stopping(self) -> None:
        """The process begins to end."""
        self.notify("STOPPING=1", "STATUS=ending")

    def notify(self, *lines: str) -> None:
        """Send one message of assignments, such as `READY=1`.  One that can't be sent is logged, once."""
        if not self._address:
            return
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as sender:
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._failed:
                _log.warning("the service manager can't be notified", address=self._address, reason=str(error))
            self._failed = True


@contextlib.asynccontextmanager
async def notifying(manager: ServiceManager, health: Health) -> AsyncIterator[None]:
    """Keep the service manager informed about a process while the context is open."""
    if not manager:
        yield
        return
    tasks = [asyncio.create_task(_report(manager, health))]
    if manager.watchdog_s is not None:
        tasks.append(asyncio.create_task(_feed(manager, manager.watchdog_s)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _report(manager: ServiceManager, health: Health) -> None:
    ready, sent = False, ""
    while True:
        report = await health.report()
        lines = []
        if report.ready and not ready:
            ready = True
            lines.append("READY=1")
        if not ready:
            lines.append(f"EXTEND_TIMEOUT_USEC={int(_LONGEST_START_S * 1e6)}")
        if report.status != sent:
            sent = report.status
            lines.append(f"STATUS={_line(sent)}")
        if lines:
            manager.notify(*lines)
        await asyncio.sleep(_STATUS_S if ready else _START_S)


async def _feed(manager: ServiceManager, watchdog_s: float) -> None:
    while True:
        manager.notify("WATCHDOG=1")
        await asyncio.sleep(watchdog_s / 2)


def _line(text: str) -> str:
    return " ".join(text.split())[:_STATUS_LENGTH]

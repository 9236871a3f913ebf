"""A cluster's connection: its log, the bus next to it, and the masters' lease, over one link to its servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from events import subjects as names
from events.addresses import shown
from events.errors import code_of
from events.log.records import (
    LogRefused,
    LogUnavailable,  # fmt: skip
    until_answered,
)
from events.nats.access import ADMIN
from events.nats.bus import Answer, NatsBus, ask_everyone
from events.nats.leadership import JetStreamLeadership
from events.nats.link import Link
from events.nats.log import JetStreamLog
from events.nats.places import Places
from events.nats.settings import endangered, nearly_full, uncompress
from events.nats.stores import Comparisons
from events.nats.streams import (
    NO_CLUSTER,
    ClockState,
    ServerState,
    StreamState,
    all_streams,
    find_streams,
    make_streams,
    report_stream,
    server_clock,
    server_states,
    stream_states,
)
from events.nats.views import USER, ViewedBus, ViewedLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from events.log.interface import Bus, EventLog
    from events.nats.access import Credentials

__all__ = ["Connection"]

_RECONNECT_S = 5.0


class Connection:
    """One connection to a NATS server, with the cluster's log, bus and masters' lease over it."""

    def __init__(self, link: Link, cluster: str, imported: int = 0) -> None:
        self._link = link
        self.url = link.url
        self.cluster = cluster
        self.leadership = JetStreamLeadership(link, cluster)
        self.stream = JetStreamLog(link, cluster, imported, self.leadership)
        """The log as its server has it; after a rotation that is its last part."""
        self.log: EventLog = self.stream
        """The log to read and append to.  A program that can read archives puts one here that reads them as well
        (`dorm.history`)."""
        self.bus: Bus = NatsBus(link, names.reports(cluster), report_stream(cluster))
        if link.credentials is not None and link.credentials.role == USER:
            viewed = ViewedLog(link, self.stream, cluster, link.credentials.name)
            self.log, self.bus = viewed, ViewedBus(link, names.reports(cluster), report_stream(cluster), viewed)
        self.places = Places(link, cluster, imported)

    @classmethod
    async def open(
        cls,
        url: str,
        cluster: str,
        *,
        name: str = "dorm",
        timeout: float = 5.0,
        create: bool = False,
        replicas: int | None = None,
        patient: bool = False,
        credentials: Credentials | None = None,
    ) -> Connection:
        """Connect, check the server's version, and look up the cluster.  With `create`, which is for processes that run the
        cluster, missing streams are created, unless it connects with credentials: then only an admin creates them
        (`dorm init`).

        `url` names one server or, separated by commas, several of one NATS cluster: any of them will do, now and after each
        outage.  `replicas` of the streams, with `create`: None chooses 3 for new streams if there are enough servers;
        existing streams with fewer than requested are raised.

        Raises LogUnavailable if no server answers (at once if the port is closed), LogTooOld, or LogRefused (no such cluster,
        bad cluster name or address, no JetStream, no permission).  With `patient` it waits for an answer instead, and logs
        that it waits: servers may start later, or be about to elect their leader.  With credentials, which name their
        cluster, it also waits for an admin to make the cluster.
        """
        if patient:

            async def once() -> Connection:
                try:
                    return await cls.open(
                        url,
                        cluster,
                        name=name,
                        timeout=timeout,
                        create=create,
                        replicas=replicas,
                        credentials=credentials,
                    )
                except LogRefused as error:
                    if credentials is None or error.code != NO_CLUSTER:
                        raise
                    raise LogUnavailable(str(error), code=error.code) from None

            return await until_answered(once, f"connecting to {shown(url)}")
        try:
            names.check_cluster(cluster)
        except ValueError as error:
            raise LogRefused(str(error), code=code_of(error)) from None
        if credentials is not None and credentials.cluster != cluster:
            raise LogRefused(
                f"the credentials of {credentials} are for cluster {credentials.cluster!r}, not for {cluster!r}; name others "
                "with --credentials or --context",
                code="credentials.other_cluster",
            )
        link = await Link.open(url, name=name, timeout=timeout, credentials=credentials)
        try:
            if create and (credentials is None or credentials.role == ADMIN):
                imported = await make_streams(link, cluster, timeout, replicas)
            elif credentials is not None and credentials.role == USER:
                imported = 0  # A user reads no stream; the view says what is imported.
            else:
                imported = await find_streams(link, cluster, timeout)
        except LogUnavailable:
            await link.close()
            if not link.has_jetstream:
                raise LogRefused(
                    f"JetStream is off at the NATS server at {link.url}; start it with -js", code="log.no_jetstream"
                ) from None
            if link.denied:
                raise LogRefused(
                    f"the NATS server at {link.url} does not let us use the log: {link.denied}",
                    code="log.no_permission",
                ) from None
            raise
        except BaseException:
            await link.close()
            raise
        return cls(link, cluster, imported)

    @property
    def credentials(self) -> Credentials | None:
        """With which it was opened."""
        return self._link.credentials

    @property
    def user(self) -> str:
        """The name of its identity, "" on an open cluster."""
        return self._link.credentials.name if self._link.credentials is not None else ""

    def comparisons(self, policy: str, who: str) -> Comparisons:
        """Return where a shadow publishes its findings."""
        return Comparisons(self._link, self.cluster, policy, who)

    async def uncompress(self) -> None:
        """Turn off compression on streams that an earlier release created with it.  Raises LogUnavailable, LogRefused."""
        await uncompress(self._link, all_streams(self.cluster), _RECONNECT_S)

    async def endangered(self) -> str:
        """Return in one line what threatens the log, and what to do: copies that can be lost, or a limit that will soon be
        reached; "" if nothing does.  Raises LogUnavailable, LogRefused."""
        return await endangered(self._link, all_streams(self.cluster), _RECONNECT_S) or nearly_full(
            await self.stream.room()
        )

    async def everyone(self, subject: str, *, wait_s: float) -> list[Answer]:
        """Ask all listeners on a subject; return their answers within this many seconds. Raises LogUnavailable,
        LogRefused."""
        return await ask_everyone(self._link, subject, b"{}", wait_s=wait_s)

    async def inspect(self) -> tuple[list[ServerState], list[StreamState], ClockState | None]:
        """Return how the servers and the streams are, and the clock of the server that leads the log."""
        return (
            await server_states(self._link),
            await stream_states(self._link, self.cluster),
            await server_clock(self._link, self.cluster),
        )

    def report_outages(self, report: Callable[[bool], None]) -> None:
        """From now on call `report(True)` when the connection is lost, and `report(False)` when it is back."""
        self._link.on_outage = report

    async def connected(self) -> None:
        """Wait until there is a connection. Raises LogUnavailable if it was closed permanently."""
        await self._link.connected()

    async def close(self) -> None:
        await self._link.close()

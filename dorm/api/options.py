"""Where the API listens, and its limits."""

from __future__ import annotations

from pathlib import Path

import msgspec

from events.addresses import is_loopback

DEFAULT_PORT = 4280


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of the API takes at most.  Sizes in bytes, times in seconds."""

    body: int = 1 << 20
    """A request's body.  The largest spec is far below."""
    line: int = 8190
    """The request line."""
    header: int = 8190
    """One header."""
    headers: int = 64
    """Number of headers."""
    connections: int = 4096
    connections_per_address: int = 2048
    streams: int = 2048
    streams_per_address: int = 1024
    idle_s: float = 30.0
    """A connection without a whole request for this long is closed."""
    head_s: float = 10.0
    """For a request's head to arrive, once it has begun."""
    body_s: float = 10.0
    """Seconds for a request's body to arrive."""
    answer_s: float = 30.0
    """Seconds for an answer to be computed."""
    long_answer_s: float = 90.0
    """The same for plans, stories and forecasts."""
    write_s: float = 30.0
    """Seconds for a client to take an answer, or anything of a stream that waits for it."""
    behind_s: float = 5.0
    """Seconds for which a read waits for the sequence that it names as `min_seq`."""
    heartbeat_s: float = 15.0
    """Seconds between two heartbeats on a stream if nothing happens."""
    waiting: int = 1 << 20
    """Bytes that may wait for the reader of a stream; one that is further behind is ended, and resumes."""
    heavy: int = 2
    """Plans, stories, folds of the past and forecasts that are computed at once."""
    heavy_waiting: int = 64
    """Number of further computations that may wait."""
    writes: int = 64
    """Requests to the cluster in progress at once."""
    past: int = 128 << 20
    """Bytes of states of the past that are kept."""
    answers: int = 32 << 20
    """Bytes of answers that are kept."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How `dorm serve` runs."""

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    """0 takes any free one."""
    allow_hosts: tuple[str, ...] = ()
    """Further accepted host names, such as the name of a reverse proxy."""
    embed_in: tuple[str, ...] = ()
    """Sites that may show the dashboard in a frame, as sources of a Content-Security-Policy (`https://wiki.example`)."""
    user: str | None = None
    """User of requests that name no user; None for the login name of the process."""
    certificate: Path | None = None
    """PEM file of the server's certificate; None for connections that are not encrypted."""
    key: Path | None = None
    """PEM file of its key; None if the certificate's file holds it."""
    clients: Path | None = None
    """PEM file of the authority whose certificates name users."""
    pseudonyms: bytes = b""
    """Secret from which plain users get pseudonyms of others; the same as that of `dorm views`, so that both name the same
    apps alike.  It also seals the sessions of browsers.  Without it both are drawn at random."""
    limits: Limits = Limits()
    archive: str = ""
    """The name of the archive that is served instead of a cluster; the page then offers no actions."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

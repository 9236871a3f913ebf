"""How the API's connections are encrypted, with a certificate that may be renewed while the server runs.

Each new connection uses the newest files that belong together; connections that exist keep what they began with.  The server
looks at its files every few seconds, and at once on SIGHUP.  It compares what the file system says of them only for equality,
so a clock that was set changes nothing.  Programs write a certificate and its key one after the other: a pair that does not
match, or that can't be read, leaves the earlier one in use, and is reported once.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import structlog

from dorm.api.errors import CannotListen

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.api.options import Options

    Seen = tuple[tuple[int, ...] | None, ...]

LOOK_S = 5.0
_log = structlog.get_logger(__name__)


class Encryption(ssl.SSLContext):
    """What a listening socket needs to know: it passes each connection on to the newest usable context."""

    certificate: Path
    key: Path | None
    clients: Path | None
    _newest: ssl.SSLContext
    _seen: Seen

    @classmethod
    def of(cls, options: Options) -> Encryption | None:
        """Return the encryption that the options name, None for none.  It reads files.  Raises CannotListen."""
        if options.certificate is None:
            return None
        made = cls(ssl.PROTOCOL_TLS_SERVER)
        made.certificate, made.key, made.clients = options.certificate, options.key, options.clients
        made._seen = made._look()
        try:
            made._newest = made._load()
        except (OSError, ValueError) as error:  # An SSLError is an OSError.
            raise CannotListen(
                f"{made._files}: {error}; name PEM files of a certificate, its key and the clients' authority",
                code="api.certificate.unusable",
            ) from None
        return made

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a connection."""
        return self._newest.wrap_bio(*args, **options)

    async def follow(self, hurry: asyncio.Event) -> None:
        """Use renewed files, until cancelled.  `hurry` is set to look at once."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await hurry.wait()
            hurry.clear()
            await asyncio.to_thread(self.renew)

    def renew(self) -> bool:
        """Use the files if they have changed and belong together; return whether that is so.  It reads files."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._newest = self._load()
        except (OSError, ValueError) as error:
            _log.warning(
                "the renewed certificate can't be used; connections keep the earlier one",
                files=self._files,
                reason=str(error),
            )
            return False
        _log.info("new connections use the renewed certificate", files=self._files)
        return True

    def _load(self) -> ssl.SSLContext:
        """Raises OSError, ValueError."""
        made = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.load_cert_chain(self.certificate, self.key)
        if self.clients is not None:
            made.load_verify_locations(self.clients)
            made.verify_mode = ssl.CERT_OPTIONAL
        return made

    @property
    def _paths(self) -> tuple[Path, ...]:
        return tuple(file for file in (self.certificate, self.key, self.clients) if file is not None)

    @property
    def _files(self) -> str:
        return ", ".join(map(str, self._paths))

    def _look(self) -> Seen:
        """Return what changes with the content of the files, or with whether this process may read them."""
        return tuple(map(_state_of, self._paths))


def _state_of(file: Path) -> tuple[int, ...] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

"""Archives in a bucket of an S3-compatible store, by obstore.

Endpoint, region and keys come from the environment, as for other S3 programs (`AWS_ENDPOINT_URL`, `AWS_REGION`,
`AWS_ACCESS_KEY_ID`, …), so nothing secret is on the log or in a command line.  An object appears complete or not at
all. To read an archive, the whole object is fetched into a file without a name: archives are small (at most several
hundred MB), and its hash is checked before any of it is used."""

from __future__ import annotations

import asyncio
import os
import tempfile
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError

from events.archive.stores import ArchiveMissing, ArchiveStore, Name, StoreError, name_of

if TYPE_CHECKING:
    from pathlib import Path

_REQUEST_S, _CONNECT_S = 60.0, 5.0
_RETRIES, _RETRY_S = 4, 30.0
_PART = 8 << 20
"""Bytes of a part of an upload, and of a piece that is fetched."""


class S3Store(ArchiveStore):
    """Objects `PREFIX/CLUSTER/<name>` of a bucket."""

    def __init__(self, place: str, cluster: str) -> None:
        self._place = place
        bucket, _, prefix = place.removeprefix("s3://").partition("/")
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        try:
            self._store = obstore.store.S3Store(
                bucket,
                prefix="/".join(part for part in (prefix.strip("/"), cluster) if part),
                client_options={
                    "timeout": timedelta(seconds=_REQUEST_S),
                    "connect_timeout": timedelta(seconds=_CONNECT_S),
                    "allow_http": endpoint.startswith("http://"),
                },
                retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_S)},
            )
        except (BaseError, ValueError) as error:
            raise self._failed(error) from None

    @property
    def place(self) -> str:
        return self._place

    async def names(self) -> list[Name]:
        listed: list[Name | None] = []
        try:
            async for page in obstore.list(self._store):
                listed += [name_of(object_["path"].rpartition("/")[2]) for object_ in page]
        except BaseError as error:
            raise self._failed(error) from None
        return sorted(name for name in listed if name is not None)

    async def put(self, name: Name, file: Path) -> None:
        try:
            await obstore.put_async(self._store, str(name), file, chunk_size=_PART, max_concurrency=2)
        except BaseError as error:
            raise self._failed(error) from None
        except OSError as error:
            raise StoreError(f"{file}: {error.strerror}") from None

    async def fetch(self, name: Name) -> int:
        with tempfile.TemporaryFile() as spool:
            try:
                reply = await obstore.get_async(self._store, str(name))
                async for piece in reply.stream(min_chunk_size=_PART):
                    await asyncio.to_thread(spool.write, bytes(piece))
                spool.flush()
            except (NotFoundError, FileNotFoundError):
                raise ArchiveMissing(
                    f"records {name.after + 1:,} to {name.upto:,} are in the archive {name}, which is not in {self._place}; "
                    "put it back from a copy, or name another place with --archives"
                ) from None
            except BaseError as error:
                raise self._failed(error) from None
            except OSError as error:
                raise StoreError(f"no room to read an archive in {tempfile.gettempdir()}: {error.strerror}") from None
            return os.dup(spool.fileno())

    def _failed(self, error: Exception) -> StoreError:
        """Return the error in one line: the library's texts have several, with the whole request."""
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            why = "the store does not accept the keys in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or they may not do this"
        else:
            why = " ".join(str(error).split("\n")[0].split())[:300]
        return StoreError(f"the archives at {self._place} can't be used: {why}")

    async def close(self) -> None:
        return None

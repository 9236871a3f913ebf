"""Open the store of a place, as people name it: a folder's path, or `s3://BUCKET/PREFIX`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from events.archive.stores import FolderStore, StoreError

if TYPE_CHECKING:
    from events.archive.stores import ArchiveStore

_S3 = "s3://"


def check_place(place: str) -> str:
    """Return the place, a folder's path made absolute.  Raises StoreError if it is none."""
    if place.startswith(_S3):
        bucket = place.removeprefix(_S3).partition("/")[0]
        if not bucket or "@" in place:
            raise StoreError(
                f"{place[:100]!r} names no bucket; write s3://BUCKET or s3://BUCKET/PREFIX, and give keys in the environment "
                "(AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL)",
                code="archive.place.malformed",
            )
        return place.rstrip("/")
    if "://" in place or not place.strip():
        raise StoreError(
            f"{place[:100]!r} is not a place for archives; name a folder, or s3://BUCKET/PREFIX",
            code="archive.place.malformed",
        )
    return str(Path(place).expanduser().absolute())


def open_store(place: str, cluster: str) -> ArchiveStore:
    """Return the store of a cluster's archives; nothing is asked of it yet.  Raises StoreError."""
    place = check_place(place)
    if not place.startswith(_S3):
        return FolderStore(Path(place), cluster)
    try:
        from events.archive.s3 import S3Store
    except ImportError:
        raise StoreError(
            "archives in S3 need the extra `s3`: pip install 'dorm[s3]'", code="archive.store.no_client"
        ) from None
    return S3Store(place, cluster)

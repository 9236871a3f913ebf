"""A folder of archives: `PLACE/CLUSTER/<name>`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from typing import TYPE_CHECKING

from events.archive.files import create, make_folder
from events.archive.stores.interface import ArchiveMissing, ArchiveStore, Name, StoreError, name_of

if TYPE_CHECKING:
    from pathlib import Path


class FolderStore(ArchiveStore):
    """Files appear under their names whole and durable: written aside, synced, renamed, and the folder synced."""

    def __init__(self, folder: Path, cluster: str) -> None:
        self._folder = folder / cluster
        self._place = str(folder)

    @property
    def place(self) -> str:
        return self._place

    async def names(self) -> list[Name]:
        return await asyncio.to_thread(self._names)

    def _names(self) -> list[Name]:
        try:
            found = [name_of(entry) for entry in os.listdir(self._folder)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._failed(error) from None
        return sorted(name for name in found if name is not None)

    async def put(self, name: Name, file: Path) -> None:
        await asyncio.to_thread(self._put, name, file)

    def _put(self, name: Name, file: Path) -> None:
        target = self._folder / str(name)
        aside = self._folder / f".{name}.{secrets.token_hex(4)}.unfinished"
        try:
            make_folder(self._folder)
            try:
                with file.open("rb") as source, create(aside) as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())
                aside.replace(target)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    aside.unlink()
            _sync_folder(self._folder)
            _sync_folder(self._folder.parent)
        except OSError as error:
            raise self._failed(error) from None

    async def fetch(self, name: Name) -> int:
        return await asyncio.to_thread(self._open, name)

    def _open(self, name: Name) -> int:
        try:
            return os.open(self._folder / str(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise ArchiveMissing(
                f"records {name.after + 1:,} to {name.upto:,} are in the archive {name}, which is not in {self._folder}; put "
                "it back from a copy, or name another place with --archives"
            ) from None
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> StoreError:
        return StoreError(f"the archives in {self._folder} can't be used: {error.strerror}")

    async def close(self) -> None:
        return None


def _sync_folder(folder: Path) -> None:
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

"""Notes that an agent needs after its own crash and can't read back from engine or log, as small files.

    KEY.asked     it asked this container to stop: an exit code of 0 then does not mean that the app is done
    KEY.killed    it had to kill the container, since the grace time was over
    KEY.devices   GPU ids assigned to this container

A note of devices is written whole.  If the disk damaged one, nobody knows which devices its container has, so none is free
until that container is gone.

Every method blocks for the time of a small file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import structlog

from agents.runtime.interface import Key, Unavailable, key_name

if TYPE_CHECKING:
    from pathlib import Path


_log = structlog.get_logger(__name__)


class Ledger:
    """Files below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._named: set[Path] = set()
        """Damaged notes that the log has named."""

    def open(self) -> None:
        """Create the folder.  Raises OSError if it can't be created."""
        self._root.mkdir(parents=True, exist_ok=True)

    def note_asked(self, key: Key) -> None:
        (self._root / f"{key_name(key)}.asked").touch()

    def asked(self, key: Key) -> bool:
        return (self._root / f"{key_name(key)}.asked").exists()

    def note_killed(self, key: Key) -> None:
        (self._root / f"{key_name(key)}.killed").touch()

    def killed(self, key: Key) -> bool:
        return (self._root / f"{key_name(key)}.killed").exists()

    def take_devices(self, key: Key, count: int, all_devices: tuple[str, ...]) -> tuple[str, ...] | None:
        """Take the first free devices (dockerd does not allocate), the same ones on a repeated call; None if too few are
        free.  Raises Unavailable if that can't be known."""
        own = self._root / f"{key_name(key)}.devices"
        if count == 0:
            return self._devices_of(own) or ()
        if (had := self._devices_of(own)) is not None and len(had) == count:
            return had
        others = [(file, self._devices_of(file)) for file in sorted(self._root.glob("*.devices")) if file != own]
        taken = {device for _, devices in others for device in devices or ()}
        free = [device for device in all_devices if device not in taken]
        if len(free) < count:
            return None
        if unknown := next((file for file, devices in others if devices is None), None):
            raise Unavailable(
                f"{unknown} is damaged, so nobody knows which devices are free: wait until its container is gone",
                code="container.record.damaged",
            )
        aside = own.with_suffix(".new")
        with aside.open("w") as file:
            file.write(" ".join(free[:count]))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(own)
        return tuple(free[:count])

    def _devices_of(self, file: Path) -> tuple[str, ...] | None:
        """Return the devices of a note, () if there is none; None if it is damaged."""
        try:
            text = file.read_text()
        except FileNotFoundError:
            return ()
        except UnicodeDecodeError:
            text = ""
        if text.isprintable() and text.split():
            return tuple(text.split())
        if file not in self._named:
            self._named.add(file)
            _log.error("a record of a container is damaged, so what it says is not known", file=str(file))
        return None

    def free_devices(self, key: Key) -> None:
        (self._root / f"{key_name(key)}.devices").unlink(missing_ok=True)

    def forget(self, key: Key) -> None:
        self.free_devices(key)
        for note in ("asked", "killed"):
            (self._root / f"{key_name(key)}.{note}").unlink(missing_ok=True)

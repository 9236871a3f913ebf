"""Notes that an agent needs after its own crash and can't read back from engine or log, as small files.

    KEY.asked     it asked this container to stop: an exit code of 0 then does not mean that the app is done
    KEY.killed    it had to kill the container, since the grace time was over
    KEY.devices   GPU ids assigned to this container

Every method blocks for the time of a small file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.runtime.interface import Key, key_name

if TYPE_CHECKING:
    from pathlib import Path


class Ledger:
    """Files below one folder."""

    def __init__(self, root: Path) -> None:
        self._root = root

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
        free."""
        own = self._root / f"{key_name(key)}.devices"
        if own.exists():
            return tuple(own.read_text().split())
        if count == 0:
            return ()
        taken = {device for file in sorted(self._root.glob("*.devices")) for device in file.read_text().split()}
        free = [device for device in all_devices if device not in taken]
        if len(free) < count:
            return None
        own.write_text(" ".join(free[:count]))
        return tuple(free[:count])

    def free_devices(self, key: Key) -> None:
        (self._root / f"{key_name(key)}.devices").unlink(missing_ok=True)

    def forget(self, key: Key) -> None:
        self.free_devices(key)
        for note in ("asked", "killed"):
            (self._root / f"{key_name(key)}.{note}").unlink(missing_ok=True)

"""Notes that an agent needs after its own crash and can't read back from engine or log, as small files.

    KEY.asked     it asked this container to stop: an exit code of 0 then does not mean that the app is done
    KEY.killed    it had to kill the container, since the grace time was over
    KEY.devices   GPU ids assigned to this container
    KEY.lost-device    why this container was stopped, or failed: its GPU is gone
    gpus.json     which GPU each index of the configuration meant when it was first looked up

Every method blocks for the time of a small file.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from agents.runtime.interface import Key, key_name
from events.durable import write_whole

if TYPE_CHECKING:
    from pathlib import Path

UNKNOWN_DEVICE: Final = "?"
"""Device of a container whose note can't be read: it may be any GPU of the node."""
_KNOWN: Final = "gpus.json"
_NAME: Final = re.compile(r"(.+)-(\d+)-(\d+)")
"""Name of a key, as `key_name` writes it."""


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

    def devices(self, key: Key) -> tuple[str, ...]:
        """Return what this container holds."""
        return _ids(self._root / f"{key_name(key)}.devices")

    def held_devices(self) -> dict[Key, tuple[str, ...]]:
        """Return what all containers hold."""
        devices: dict[Key, tuple[str, ...]] = {}
        for file in sorted(self._root.glob("*.devices")):
            if (name := _NAME.fullmatch(file.stem)) is not None:
                devices[Key(name[1], int(name[2]), int(name[3]))] = _ids(file)
        return devices

    def note_devices(self, key: Key, devices: tuple[str, ...]) -> None:
        self._write(f"{key_name(key)}.devices", " ".join(devices))

    def known_devices(self) -> dict[str, str]:
        """Return which GPU (UUID) an index of the configuration meant when it was first looked up."""
        try:
            return msgspec.json.decode((self._root / _KNOWN).read_bytes(), type=dict[str, str])
        except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}  # It can be looked up again.

    def note_known_devices(self, known: dict[str, str]) -> None:
        self._write(_KNOWN, msgspec.json.encode(known).decode())

    def note_lost_device(self, key: Key, why: str) -> None:
        self._write(f"{key_name(key)}.lost-device", why)

    def lost_device(self, key: Key) -> str:
        """Return why a GPU's loss ended this container, in words; "" if it did not."""
        try:
            return (self._root / f"{key_name(key)}.lost-device").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _write(self, name: str, text: str) -> None:
        """Write a note whole or not at all, even if the machine fails meanwhile."""
        write_whole(self._root / name, text.encode())

    def free_devices(self, key: Key) -> None:
        (self._root / f"{key_name(key)}.devices").unlink(missing_ok=True)

    def forget(self, key: Key) -> None:
        self.free_devices(key)
        for note in ("asked", "killed", "lost-device"):
            (self._root / f"{key_name(key)}.{note}").unlink(missing_ok=True)


def _ids(file: Path) -> tuple[str, ...]:
    """Return what a note of devices says; a disk or a crash may have left it empty, or full of NUL."""
    try:
        text = file.read_text()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError):
        text = ""
    return tuple(text.split()) if text.isprintable() and text.split() else (UNKNOWN_DEVICE,)

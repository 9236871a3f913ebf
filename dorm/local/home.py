"""Where a cluster on this machine keeps what it needs, and how commands find the cluster that runs."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import platformdirs
import psutil

DEFAULT_CLUSTER = "local"
DEFAULT_URL = "nats://127.0.0.1:4222"
KEY_NAME = "master.nk"


class Running(msgspec.Struct, frozen=True):
    """What `dorm up` writes down for the other commands."""

    url: str
    cluster: str
    pid: int


def home() -> Path:
    """$DORM_HOME, else the user's data folder."""
    return Path(os.environ.get("DORM_HOME") or platformdirs.user_data_path("dorm"))


def key_file(cluster: str) -> Path:
    """Where the master of a cluster has the key that it seals the log with: in the cluster's data folder."""
    return home() / cluster / KEY_NAME


def witness_file(key: Path) -> Path:
    """Where the master with this key remembers what it has seen of the log: beside the key."""
    return key.with_suffix(".seen")


def _file() -> Path:
    return home() / "running.json"


def write_running(running: Running) -> Running | None:
    """Unless another cluster that still runs is written down: then that one stays, and is given back."""
    other = read_running()
    if other is not None and other.pid != running.pid and _runs(other.pid):
        return other
    _file().parent.mkdir(parents=True, exist_ok=True)
    temporary = _file().with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(running))
    temporary.replace(_file())
    return None


def _runs(pid: int) -> bool:
    try:
        return any("dorm" in part for part in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def read_running() -> Running | None:
    try:
        return msgspec.json.decode(_file().read_bytes(), type=Running)
    except (OSError, msgspec.MsgspecError):
        return None


def forget_running(running: Running) -> None:
    """Only what this very cluster wrote down."""
    if read_running() == running:
        _file().unlink(missing_ok=True)

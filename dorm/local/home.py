"""Where a cluster on this machine keeps its data, and how commands find the running cluster."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import platformdirs
import psutil

from events.durable import write_whole

DEFAULT_CLUSTER = "local"
DEFAULT_URL = "nats://127.0.0.1:4222"
KEY_NAME = "master.nk"


class Running(msgspec.Struct, frozen=True):
    """What `dorm up` records for the other commands."""

    url: str
    cluster: str
    pid: int
    data: str = ""
    """Data folder of the cluster; "" from earlier releases."""
    credentials: str = ""
    """Path of the credentials of the user who started it; "" for an open cluster."""
    dashboard: str = ""
    """Address of the dashboard and the API; "" without them."""


def home() -> Path:
    """Return $DORM_HOME, else the user's data folder."""
    return Path(os.environ.get("DORM_HOME") or platformdirs.user_data_path("dorm"))


def key_file(cluster: str) -> Path:
    """Return the file of the key that a cluster's master seals the log with: in the cluster's data folder."""
    return home() / cluster / KEY_NAME


def contexts_file() -> Path:
    """Return the file of the contexts that `dorm context` manages."""
    return home() / "contexts.json"


def witness_file(key: Path) -> Path:
    """Return the file in which the master with this key records what it has seen of the log: beside the key."""
    return key.with_suffix(".seen")


def metrics_file(key: Path) -> Path:
    """Return the file in which the master with this key keeps the counters of its metrics."""
    return key.with_suffix(".metrics")


def _file() -> Path:
    return home() / "running.json"


def write_running(running: Running) -> Running | None:
    """Record the running cluster; if another one that still runs is recorded, return that instead."""
    other = read_running()
    if other is not None and other.pid != running.pid and _runs(other.pid):
        return other
    _file().parent.mkdir(parents=True, exist_ok=True)
    write_whole(_file(), msgspec.json.encode(running), sync=False)
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
    """Remove the record if it is this cluster's."""
    if read_running() == running:
        _file().unlink(missing_ok=True)

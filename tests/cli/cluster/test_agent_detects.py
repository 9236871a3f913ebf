"""What `dorm agent` detects, and says, once it has reached the NATS servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from agents import machine
from agents.config import NodeConfig
from agents.machine import Detected, OwnAddress
from dorm.cli.agent import _completed

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(("address", "level"), [("10.0.0.7", "info"), ("127.0.0.1", "warning"), ("::1", "warning")])
def test_it_says_what_it_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, level: str) -> None:
    monkeypatch.setattr(machine, "detect_address", lambda servers: OwnAddress(address, f"towards {servers}"))
    given = NodeConfig(name="n", address="", capacity={"cpu": 1, "gpu": 1}, gpus=("0",), checkpoints=tmp_path)
    with capture_logs() as lines:
        found = _completed(given, Detected({"cpu": 2000}, "2 of 64 cores: CPU affinity"), "nats://a")
    assert (found.address, found.capacity) == (address, {"cpu": 2000, "gpu": 1})
    assert [(line["log_level"], line["reason"]) for line in lines] == [
        ("info", "2 of 64 cores: CPU affinity"),
        (level, "towards nats://a"),
    ]


def test_what_is_given_is_not_detected(tmp_path: Path) -> None:
    given = NodeConfig(name="n", address="host1", capacity={"cpu": 1}, checkpoints=tmp_path)
    with capture_logs() as lines:
        assert _completed(given, None, "nats://a") == given
    assert lines == []

"""A machine without IPv4: everything listens on `::1`, and containers meet there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.nats, pytest.mark.slow]

_ONLY_IPV6 = 'ip link set lo up && ip -4 addr flush dev lo && test -n "$(ip -6 addr show dev lo)" && exec "$@"'
"""Even loopback has no IPv4 address, so that nothing can listen on 127.0.0.1."""
NAMESPACE = ("unshare", "--net", "sh", "-c", _ONLY_IPV6, "sh")


def _can() -> bool:
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("ip"):
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


async def test_containers_meet_over_ipv6(tmp_path: Path) -> None:
    if not _can():
        pytest.skip("needs root, unshare, ip and IPv6")
    process = await asyncio.create_subprocess_exec(
        *NAMESPACE, sys.executable, "-m", "tests.e2e.ipv6_machine", str(tmp_path)
    )
    assert await process.wait() == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ends"] == {"plain": "completed", "elastic": "completed"}
    assert found["nodes"] == ["::1"]
    assert all("//[::1]:" in url for url in found["listening"])
    for told in found["told"].values():
        assert len(told) == 2
        for text in told:
            variables = dict(line.split("=", 1) for line in text.splitlines())
            assert [peer.rpartition(":")[0] for peer in variables["DORM_PEERS"].split(",")] == ["[::1]", "[::1]"]
            assert variables["DORM_MASTER_ADDR"] == "::1"

"""What a program that uses this package as a library finds on its output."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

PROGRAM = """\
import asyncio, sys
import structlog
from dorm.client import Client
from events.log.records import LogUnavailable

if sys.argv[2] == "configured":
    structlog.configure()

async def main():
    try:
        await Client.open(sys.argv[1])
    except LogUnavailable:
        print("nobody is there")

asyncio.run(main())
"""


@pytest.mark.parametrize("structlog", ["unconfigured", "configured"])
def test_debugging_lines_are_for_programs_that_configured_structlog(structlog: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, structlog], capture_output=True, text=True, timeout=60, check=True
    )
    *before, last = ended.stdout.splitlines()
    assert (last, ended.stderr) == ("nobody is there", "")
    assert any("nats error" in line for line in before) == (structlog == "configured")
    assert bool(before) == (structlog == "configured")

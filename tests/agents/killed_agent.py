"""An agent in a separate process that is killed (-9) in the middle of a start."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from agents.runtime.interface import ContainerSpec

_SCRIPT = """
import asyncio, sys, msgspec
from pathlib import Path
from agents.runtime.docker.runtime import DockerRuntime
from agents.runtime.process.runtime import ProcessRuntime
from agents.runtime.interface import ContainerSpec

async def main():
    runtime = eval(sys.argv[1])
    await runtime.open()
    print("ready", flush=True)
    await runtime.ensure(msgspec.msgpack.decode(bytes.fromhex(sys.argv[2]), type=ContainerSpec))
    if len(sys.argv) > 3:
        await runtime.extend_lease(float(sys.argv[3]))
    print("started", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def start_and_kill(
    expression: str, spec: ContainerSpec, after_s: float | None, *, lease_s: float | None = None
) -> None:
    """Let an agent whose runtime is made by `expression` start a container, and kill it `after_s` seconds after the
    request, or, with None, once it has started and has extended the lease to `lease_s` seconds from then."""
    agent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _SCRIPT,
        expression,
        msgspec.msgpack.encode(spec).hex(),
        *([] if lease_s is None else [str(lease_s)]),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert agent.stdout is not None
    try:
        wanted = b"ready\n" if after_s is not None else b"started\n"
        async with asyncio.timeout(60):
            while (line := await agent.stdout.readline()) != wanted:
                assert line, "the agent ended by itself"
        await asyncio.sleep(after_s or 0)  # where in the start it is cut does not matter: any point must do
    finally:
        agent.kill()
        await agent.wait()

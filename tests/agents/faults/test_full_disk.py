"""A node whose disk is full: nothing is lost by it, and no app is charged with it."""

from __future__ import annotations

import asyncio
import subprocess
from typing import TYPE_CHECKING

import pytest

from agents.runtime.docker import container_config
from agents.runtime.interface import Unavailable
from agents.runtime.process.runtime import ProcessRuntime
from tests.agents.harness import PATIENCE_S, POLITE, Harness, container_dir, ended, says
from tests.lab.machines.dockerd import why_not
from tests.lab.machines.engines import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Disk:
    """A small one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        with (self.path / "ballast").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * 4096)
            except OSError:
                return

    def free(self) -> None:
        (self.path / "ballast").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if reason := why_not():
        unavailable(f"no file system can be mounted: {reason}")
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)], check=True)
    yield Disk(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


async def test_running_containers_continue_and_their_ends_are_recorded(disk: Disk, tmp_path: Path) -> None:
    harness = Harness(lambda: ProcessRuntime("node", disk.path / "node"), "", tmp_path, "")
    async with harness.opened() as runtime:
        running, later = harness.shell(POLITE), harness.shell("exit 0")
        await runtime.ensure(running)
        await says(runtime, running.key, b"ready")
        await runtime.extend_lease(100.0)
        disk.fill()
        with pytest.raises(Unavailable, match="No space left"):
            await runtime.ensure(later)
        await runtime.extend_lease(500.0)
        left = await runtime.lease_left()
        assert left is not None
        assert left > 400
        await runtime.stop(running.key, 10.0)
        assert (await ended(runtime, running.key)).exit_code == 7
        disk.free()
        await runtime.ensure(later)
        assert (await ended(runtime, later.key)).exit_code == 0
    await harness.clean()


async def test_a_log_without_room_to_move_aside_does_not_end_the_watch(disk: Disk, tmp_path: Path) -> None:
    harness = Harness(lambda: ProcessRuntime("node", disk.path / "node", log_cap=150_000), "", tmp_path, "")
    async with harness.opened() as runtime:
        spec = harness.shell(f"head -c 200000 /dev/zero; {POLITE}")
        await runtime.ensure(spec)
        log = container_dir(runtime, spec.key) / "log"
        async with asyncio.timeout(PATIENCE_S):
            while not log.exists() or log.stat().st_size < 200_000:  # noqa: ASYNC110  (no event reports it)
                await asyncio.sleep(0.01)
            while log.stat().st_size > 150_000:  # noqa: ASYNC110  (nor of this)
                await asyncio.sleep(0.05)
        assert not (log.parent / "log.1.new").exists()
        await runtime.stop(spec.key, 10.0)
        assert (await ended(runtime, spec.key)).exit_code == 7
    await harness.clean()


@pytest.mark.parametrize(
    ("message", "own"),
    [
        ("write /var/lib/docker/x: no space left on device", True),
        ("failed to create shim task: ttrpc: closed: unknown", True),
        ("OCI runtime create failed: context deadline exceeded: unknown", True),
        ("exec: \"nope\": executable file not found in $PATH", False),
        ("could not select device driver \"nvidia\"", False),
    ],
)  # fmt: skip
def test_an_engines_own_failure_is_distinguished_from_a_bad_request(message: str, own: bool) -> None:
    assert container_config.trouble(message) is own

"""The process runtime: the suite of all runtimes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.runtime.interface import ContainerSpec, Key, Refused
from agents.runtime.process.runtime import ProcessRuntime
from agents.runtime.process.times import read
from tests.agents.harness import PATIENCE_S, container_dir, ended, output
from tests.agents.runtime.conformance import RuntimeConformance
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents.runtime.interface import Runtime
    from tests.agents.harness import Harness


class TestProcessRuntime(RuntimeConformance):
    """All of it; what is its own is in test_process_crashes.py."""

    @pytest.fixture
    def harness(self, process_harness: Harness) -> Harness:
        return process_harness

    @pytest.fixture
    def deep(self) -> Callable[[Path], Runtime]:
        return lambda root: ProcessRuntime("node", root)

    def check_temporary(self, runtime: Runtime, key: Key, found: dict[str, object]) -> None:
        folder = container_dir(runtime, key)
        assert os.path.samefile(str(found["temporary"]), folder / "tmp"), (
            "on the node's disk, removed with the container"
        )
        assert (found["private"], found["owner"]) == (0o700, os.getuid())
        assert Path(str(found["temporary"])).parents[1].stat().st_mode & 0o777 == 0o700

    async def test_the_folder_above_a_working_directory_is_empty(self, harness: Harness) -> None:
        script = """
            [ "$(pwd -P)" = "$(cd "$HOME" && pwd -P)" ] && [ "$(ls -A ..)" = run ] && [ "$(ls -A ../..)" = up ] || exit 9
            echo first; echo mine > ../log; rm -rf ../tmp ../home; mkdir ../hash ../../lock; echo mine > ../../log
            echo 1 >> "$DORM_PROGRESS"; mktemp > /dev/null && echo last
        """
        async with harness.opened() as runtime:
            spec = harness.shell(script)
            await runtime.ensure(spec)
            assert (await ended(runtime, spec.key)).exit_code == 0
            assert await output(runtime, spec.key) == b"first\nlast\n"
            await runtime.remove(spec.key)
            assert not container_dir(runtime, spec.key).exists()

    async def noted(self, runtime: Runtime, key: Key) -> None:
        """Wait until its supervisor has looked."""
        index = container_dir(runtime, key) / "times"
        async with asyncio.timeout(PATIENCE_S):
            while not read(index.read_bytes())[1]:  # noqa: ASYNC110  (no event reports it)
                await asyncio.sleep(0.05)

    async def test_a_program_sees_only_the_gpus_it_was_given(self, harness: Harness) -> None:
        async with harness.opened() as runtime:
            two = harness.spec("printenv", "CUDA_VISIBLE_DEVICES", resources={"gpu": 2}, devices=("0", "2"))
            none = harness.spec("sh", "-c", 'echo "<$CUDA_VISIBLE_DEVICES>"')
            for spec, said in ((two, b"0,2\n"), (none, b"<>\n")):
                await runtime.ensure(spec)
                await ended(runtime, spec.key)
                assert await output(runtime, spec.key) == said


async def test_a_node_of_processes_serves_one_tenant(tmp_path: Path) -> None:
    """Also after a restart, and when no container of the first one runs any more."""

    async def run(generation: int, tenant: str, serves: str = "", *, trust_apps: bool = False) -> None:
        runtime = ProcessRuntime("node", tmp_path / "node", trust_apps=trust_apps)
        await runtime.open()
        try:
            assert runtime.serves == serves
            spec = ContainerSpec(Key("app", generation, 0), "", ("true",), env={}, resources={}, tenant=tenant)
            await runtime.ensure(spec)
            assert runtime.serves == ("" if trust_apps else tenant), "the agent announces it"
            await ended(runtime, spec.key)
            await runtime.remove(spec.key)
        finally:
            await runtime.close()

    await run(1, "alice")
    await run(2, "alice", "alice")
    with raises(Refused, "container.tenant.not_served"):
        await run(3, "bob", "alice")
    assert not (tmp_path / "node" / "app-3-0").exists()
    await run(4, "bob", trust_apps=True)
    (tmp_path / "node" / "tenant").unlink()
    await run(5, "bob")

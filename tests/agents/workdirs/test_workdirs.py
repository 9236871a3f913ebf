"""A container that starts in a copy of a shipped folder, on each runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agents.runtime.interface import Unavailable
from events.workdir import File, Folder, Link, Manifest, Part, encode, hash_of, seal_blob
from tests.agents.harness import container_dir, ended, output
from tests.errors import raises

if TYPE_CHECKING:
    from agents.runtime.interface import Runtime
    from tests.agents.harness import Harness

_RUN = (
    b"#!/bin/sh\ncat data/words; ls -l run.sh | cut -c1-10; echo mine > data/words; cat latest; echo new > made; ls\n"
)
_WORDS = b"shipped\n"


def kept(runtime: Runtime, tenant: str = "") -> str:
    """Put a tenant's folder among the parts that the node has; return its hash."""
    blob = _RUN + _WORDS
    entries: list[File | Link | Folder] = [
        File("data/words", False, [Part(0, len(_RUN), len(_WORDS))]), Link("latest", "data/words"),
        File("run.sh", True, [Part(0, 0, len(_RUN))]),
    ]  # fmt: skip
    name, content = encode(Manifest(1, [bytes.fromhex(hash_of(blob))], entries))
    runtime.blobs.of(tenant).put(name, seal_blob(content))
    runtime.blobs.of(tenant).put(hash_of(blob), seal_blob(blob))
    return name


class Workdirs:
    async def test_each_container_starts_in_a_copy_of_its_own(self, harness: Harness) -> None:
        async with harness.opened() as runtime:
            workdir = kept(runtime, "alice")
            for _ in range(2):
                spec = harness.spec("./run.sh", workdir=workdir, tenant="alice")
                await runtime.prepare(spec)
                await runtime.ensure(spec)
                seen = await ended(runtime, spec.key)
                said = await output(runtime, spec.key)
                assert (seen.exit_code, said) == (0, b"shipped\n-rwxr-xr-x\nmine\ndata\nlatest\nmade\nrun.sh\n")
                await runtime.remove(spec.key)
                assert not container_dir(runtime, spec.key).exists()

    async def test_a_container_without_all_parts_is_not_started_and_leaves_nothing(self, harness: Harness) -> None:
        async with harness.opened() as runtime:
            spec = harness.spec("./run.sh", workdir=kept(runtime))
            (container_dir(runtime, spec.key).parent / "workdirs").rename(harness.checkpoint_root / "elsewhere")
            with raises(Unavailable, "container.folder.not_writable"):
                await runtime.ensure(spec)
            assert not runtime.run_dir(spec.key).exists()
            kept(runtime)
            await runtime.ensure(spec)
            assert (await ended(runtime, spec.key)).exit_code == 0


class TestProcesses(Workdirs):
    @pytest.fixture
    def harness(self, process_harness: Harness) -> Harness:
        return process_harness


@pytest.mark.docker
class TestDocker(Workdirs):
    @pytest.fixture
    def harness(self, docker_harness: Harness) -> Harness:
        return docker_harness

"""A container that starts in a copy of a shipped folder, on each runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agents.runtime.docker.disk import measured
from agents.runtime.interface import Unavailable
from agents.runtime.run_dirs import RunDirs, work_copy
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
_ALONE = '[ "$(ls -A ..)" = work ] && [ "$(ls -A ../..)" = up ] || exit 9'
_WHOLE = (
    'cat "$(dirname "$DORM_PROGRESS")/progress.jsonl" && echo 1 >> "$DORM_PROGRESS" && touch "$HOME/x" '
    "&& mktemp -q > made"
)
_WAYS = {
    "folder": "mkdir -p ../log ../data ../../data; echo mine > ../log/mine",
    "file": "echo mine > ../log; echo mine > ../../log; echo mine > ../launch",
    "removed": 'rm -rf ../tmp ../run ../../tmp ../home; mkdir -p ../run ../tmp; [ -d "${TMPDIR:-/tmp}" ]',
    "large": "head -c 100000 /dev/zero > ../large",
}
"""What scripts do with the folders around theirs."""


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

    @pytest.mark.parametrize(("way", "script"), _WAYS.items())
    async def test_what_is_next_to_the_copy_is_nobodys(self, harness: Harness, way: str, script: str) -> None:
        async with harness.opened() as runtime:
            spec = harness.shell(f"{_ALONE}; echo first; {script}; {_WHOLE} && echo last", workdir=kept(runtime))
            await runtime.ensure(spec)
            seen = await ended(runtime, spec.key)
            said = await output(runtime, spec.key)
            assert (seen.exit_code, said) == (0, b"first\nlast\n"), way
            work_dirs = RunDirs(container_dir(runtime, spec.key).parent).work_dirs(spec.key)
            assert work_dirs[-1] == work_copy(runtime.run_dir(spec.key))
            assert (work_dirs[-1] / "run.sh").is_file()
            assert bool(measured([work_dirs[0]], 50_000)) == (way == "large"), "it counts as the container's"
            await runtime.remove(spec.key)
            assert not container_dir(runtime, spec.key).exists()


class TestProcesses(Workdirs):
    @pytest.fixture
    def harness(self, process_harness: Harness) -> Harness:
        return process_harness


@pytest.mark.docker
class TestDocker(Workdirs):
    @pytest.fixture
    def harness(self, docker_harness: Harness) -> Harness:
        return docker_harness

    async def test_a_program_can_replace_no_folder_above_its_copy(self, harness: Harness) -> None:
        """The agent opens the copy by its path on the host, as root."""
        async with harness.opened() as runtime:
            script = "cd /; for one in /dorm/project/up/work /dorm/project/up /dorm/project; do mv $one /dorm/project/away || "
            script += (
                "mv $one ${one%/*}/away || rm -rf $one || ln -sfn /etc $one; [ -L $one ] && echo replaced; done; true"
            )
            spec = harness.shell(
                f"({script}) 2>/dev/null; ls -d /dorm/project/up/work /dorm/work", workdir=kept(runtime)
            )
            await runtime.ensure(spec)
            await ended(runtime, spec.key)
            assert await output(runtime, spec.key) == b"/dorm/project/up/work\n/dorm/work\n"
            work = work_copy(runtime.run_dir(spec.key))
            assert [path.is_dir() and not path.is_symlink() for path in (work, *work.parents[:2])] == [True] * 3

"""What every runtime keeps of volumes, as tests; part of `conformance`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agents.runtime.interface import Mount
from tests.agents.harness import Harness, ended, output, says

if TYPE_CHECKING:
    from pathlib import Path

    from agents.runtime.interface import ContainerSpec, Runtime

_TRY = (
    'for at in "$DATA" "$SCRATCH"; do cat "$at/file"; '
    '(echo new > "$at/file") 2>/dev/null && echo written || echo refused; rm -rf "$at"/* 2>/dev/null; done; '
)


class VolumesConformance:
    """The tests of volumes."""

    async def test_a_volume_is_read_only_unless_it_is_offered_for_writing(
        self, harness: Harness, runtime: Runtime, tmp_path: Path
    ) -> None:
        spec = _mounting(harness, runtime, tmp_path, _TRY)
        await runtime.ensure(spec)
        assert (await ended(runtime, spec.key)).exit_code == 0
        assert (await output(runtime, spec.key)).split() == [b"data", b"refused", b"scratch", b"written"]
        assert (tmp_path / "data" / "file").read_text() == "data\n"
        assert not (tmp_path / "scratch" / "file").exists(), "it may delete there too"
        await runtime.remove(spec.key)
        assert (tmp_path / "data" / "file").read_text() == "data\n", "nothing of a volume goes with the container"

    async def test_commands_inside_see_the_volumes_too(
        self, harness: Harness, runtime: Runtime, tmp_path: Path
    ) -> None:
        spec = _mounting(harness, runtime, tmp_path, "echo ready; exec sleep 60")
        await runtime.ensure(spec)
        await says(runtime, spec.key, b"ready")
        look = 'test "$(cat "$DATA/file")" = data && ! echo new > "$DATA/file"'
        assert await runtime.run(spec.key, ("sh", "-c", look), 20.0) == 0
        assert await runtime.run(spec.key, ("no-such-command",), 20.0) == 127
        await runtime.stop(spec.key, 0)
        await runtime.remove(spec.key)
        assert (tmp_path / "data" / "file").read_text() == "data\n"


def _mounting(harness: Harness, runtime: Runtime, folder: Path, script: str) -> ContainerSpec:
    """A container with two volumes, whose paths are in `DATA` and `SCRATCH`."""
    folder.chmod(0o755)
    for parent in folder.parents[:2]:
        parent.chmod(0o755)  # The folders of a test are the tester's alone, and containers have other users.
    mounts = []
    spec = harness.shell(script)
    for name, read_only in (("data", True), ("scratch", False)):
        source = folder / name
        source.mkdir(mode=0o777)
        source.chmod(0o777)
        (source / "file").write_text(f"{name}\n")
        (source / "file").chmod(0o666)
        inside = f"/volumes/{name}" if runtime.mounts else f"{runtime.run_mount(spec.key)}/volumes/{name}"
        mounts.append(Mount(name, str(source), inside, read_only))
    env = {one.name.upper(): one.target for one in mounts}
    return harness.shell(script, key=spec.key, mounts=tuple(mounts), env=env)

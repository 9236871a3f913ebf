"""What a container is held to, and how it might try to get out: on a real engine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from agents.runtime.docker import container_config
from agents.runtime.docker.container_config import Profile
from agents.runtime.interface import Refused
from tests.agents.harness import POLITE, ended, output, says
from tests.agents.runtime.conformance import lines
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agents.runtime.docker.engine import Engine
    from agents.runtime.docker.runtime import DockerRuntime
    from agents.runtime.interface import ContainerSpec
    from tests.agents.harness import Harness

pytestmark = pytest.mark.docker

MIB = 1024 * 1024


async def inspected(engine: Engine, runtime: DockerRuntime, spec: ContainerSpec) -> dict[str, Any]:
    info = await engine.inspect(container_config.container_name(runtime._host, spec.key))
    assert info is not None
    return info


async def test_limits_and_confinement_are_in_force_in_the_engine(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    assert runtime.limits
    spec = docker_harness.shell(POLITE, resources={"cpu": 500, "memory": 64 * MIB, "licence": 3})
    await runtime.ensure(spec)
    info = await inspected(engine, runtime, spec)
    host = info["HostConfig"]
    assert (host["NanoCpus"], host["Memory"], host["MemorySwap"]) == (500_000_000, 64 * MIB, 64 * MIB)
    assert host["PidsLimit"] == container_config.PIDS_LIMIT
    assert (host["CapDrop"], host["CapAdd"], host["Privileged"]) == (["ALL"], None, False)
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert (host["NetworkMode"], host["Init"], host["AutoRemove"]) == ("host", True, False)
    assert host["RestartPolicy"]["Name"] in ("no", "")
    assert (host["PidMode"], host["UTSMode"], host["UsernsMode"], host["CgroupParent"]) == ("", "", "", "")
    assert (host["IpcMode"], host["CgroupnsMode"]) == ("private", "private")
    assert (host["ReadonlyRootfs"], host["OomScoreAdj"]) == (True, container_config.OOM_SCORE)
    assert {limit["Name"]: limit["Hard"] for limit in host["Ulimits"]}["core"] == 0
    assert host["LogConfig"]["Config"] == {
        "max-size": container_config.LOG_BYTES,
        "max-file": container_config.LOG_FILES,
    }
    assert host["Binds"] is None
    assert [(mount["Type"], mount["Source"]) for mount in host["Mounts"]] == [("bind", str(runtime.run_dir(spec.key)))]
    assert info["Config"]["User"] not in ("", "0", "0:0")


async def test_a_container_runs_without_root_and_without_capabilities(
    docker_harness: Harness, runtime: DockerRuntime
) -> None:
    spec = docker_harness.shell("grep -E '^(Uid|Gid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status")
    await runtime.ensure(spec)
    await ended(runtime, spec.key)
    status = dict(line.split(":", 1) for line in (await output(runtime, spec.key)).decode().splitlines())
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert "0" not in status["Uid"].split()
    assert "0" not in status["Gid"].split()
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")


@pytest.mark.skipif(os.getuid() != 0, reason="only root may choose another user")
async def test_the_user_can_be_chosen(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints" / "app"
    folder.mkdir()
    runtime = docker_node(user="4321:1234")
    await runtime.open()
    spec = docker_harness.shell(
        'id -u; id -g; echo x > /dorm/checkpoints/x && echo x >> "$DORM_PROGRESS" && echo fine',
        checkpoint_dir=str(folder),
    )
    await runtime.ensure(spec)
    await ended(runtime, spec.key)
    assert lines(await output(runtime, spec.key)) == [b"4321", b"1234", b"fine"]
    await runtime.close()


def test_only_root_chooses_a_user(docker_node: Callable[..., DockerRuntime], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(os, "getgid", lambda: 100)
    assert docker_node(user="1000:100")._host.profile.user == (1000, 100)
    with raises(ValueError, "config.user.not_root"):
        docker_node(user="0:0")


@pytest.mark.parametrize("user", ["root", "1000:staff", "", "-1"])
def test_a_user_is_a_number(docker_node: Callable[..., DockerRuntime], user: str) -> None:
    with raises(ValueError, "config.user.malformed"):
        docker_node(user=user)


async def test_a_limit_above_the_number_of_cpus_has_no_effect(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    spec = docker_harness.shell(POLITE, resources={"cpu": 4_000_000})
    assert (await runtime.ensure(spec)).state == "running"
    cpus = (await engine.open())["NCPU"]
    assert (await inspected(engine, runtime, spec))["HostConfig"]["NanoCpus"] == cpus * 10**9


async def test_out_of_memory_is_seen(docker_harness: Harness, runtime: DockerRuntime) -> None:
    spec = docker_harness.spec("python3", "-c", "bytearray(500_000_000)", resources={"memory": 32 * MIB})
    await runtime.ensure(spec)
    seen = await ended(runtime, spec.key)
    assert (seen.exit_code, seen.out_of_memory) == (137, True)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"image": "dorm/no-such-image:9"}, "image"),
        ({"image": "UPPER CASE"}, "spec"),
        ({"resources": {"memory": 1000}}, "spec"),
        ({"resources": {"gpu": 1}}, "spec"),
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "spec"),
        ({"env": {"nvidia_driver_capabilities": "all"}}, "spec"),
        ({"resources": {"gpu": 1}, "devices": ("no-such-gpu",)}, "device"),
    ],
    ids=repr,
)
async def test_impossible_containers_are_refused_and_leave_nothing(
    docker_harness: Harness, runtime: DockerRuntime, fields: dict[str, Any], cause: str
) -> None:
    spec = docker_harness.shell(POLITE, **fields)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            await runtime.ensure(spec)
        assert refused.value.cause == cause
        assert await runtime.list() == []
        assert not runtime.run_dir(spec.key).exists()


async def test_no_path_leads_out_of_the_checkpoint_root(
    docker_harness: Harness, runtime: DockerRuntime, tmp_path: Path
) -> None:
    root = docker_harness.checkpoint_root
    (root / "link").symlink_to("/etc")
    (root / "file").write_text("x")
    (root / "app").mkdir()
    (root / "app" / "deeper").symlink_to("../..")
    (tmp_path / "checkpoints-elsewhere").mkdir()
    (root / "loop").symlink_to("loop")
    ways = [root / "link", root / "link" / "ssl", root / "app" / "deeper" / "node", root / ".." / "node", root]
    ways += [root / "missing", root / "file", root / "loop", tmp_path / "checkpoints-elsewhere"]
    for way in [*map(str, ways), "/", "/var/run/docker.sock", "relative", "/etc"]:
        with pytest.raises(Refused) as refused:
            await runtime.ensure(docker_harness.shell(POLITE, checkpoint_dir=way))
        assert refused.value.cause == "spec", way
    assert await runtime.list() == []
    fine = docker_harness.shell(POLITE, checkpoint_dir=str(root / "link" / ".." / root / "app"))
    assert (await runtime.ensure(fine)).state == "running"


async def test_a_link_inside_the_run_directory_leads_nowhere_on_the_host(
    docker_harness: Harness, runtime: DockerRuntime, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("keep me")
    spec = docker_harness.shell(
        f"cd /dorm/run; rm progress.jsonl; ln -s {secret} progress.jsonl; ln -s {tmp_path} folder; "
        "cat progress.jsonl || echo hidden; echo ready; exec sleep 600"
    )
    await runtime.ensure(spec)
    await says(runtime, spec.key, b"hidden")
    await runtime.stop(spec.key, 0)
    await runtime.remove(spec.key)
    assert secret.read_text() == "keep me"


async def test_without_a_checkpoint_root_checkpoints_are_refused(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], tmp_path: Path
) -> None:
    runtime = docker_node(checkpoint_root=None)
    await runtime.open()
    with pytest.raises(Refused):
        await runtime.ensure(docker_harness.shell(POLITE, checkpoint_dir=str(tmp_path / "checkpoints")))
    await runtime.close()


@pytest.mark.parametrize(
    "weaker",
    [
        {"NanoCpus": 0},
        {"ReadonlyRootfs": False},
        {"Tmpfs": {"/tmp": "rw"}},
        {"Ulimits": []},
        {"OomScoreAdj": 0},
        {"Memory": 128 * MIB, "MemorySwap": 128 * MIB},
        {"PidsLimit": 0},
        {"CapDrop": []},
        {"SecurityOpt": []},
        {"AutoRemove": True},
        {"RestartPolicy": {"Name": "always"}},
        {"Mounts": [{"Type": "bind", "Source": "/etc", "Target": "/etc2"}]},
        {"Mounts": [], "Binds": ["/etc:/etc2"]},
    ],
    ids=repr,
)
async def test_a_container_that_differs_from_its_spec_is_never_started(
    docker_harness: Harness,
    runtime: DockerRuntime,
    engine: Engine,
    weaker: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an engine makes it that ignores a field which it does not know."""
    spec = docker_harness.shell(POLITE, resources={"cpu": 500, "memory": 64 * MIB})
    create = runtime._engine.create

    async def weakened(name: str, wanted: container_config.Json) -> str:
        return await create(name, {**wanted, "HostConfig": {**wanted["HostConfig"], **weaker}})

    monkeypatch.setattr(runtime._engine, "create", weakened)
    with raises(Refused, "container.differs"):
        await runtime.ensure(spec)
    assert await engine.inspect(container_config.container_name(runtime._host, spec.key)) is None


async def test_a_container_prepared_under_another_configuration_is_made_again(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], engine: Engine
) -> None:
    """After an upgrade or with another option, the app is not charged for it."""
    spec = docker_harness.shell("touch /x || echo read-only; exec sleep 600")
    before = docker_node(profile=Profile(allow=("writable-root",)))
    await before.open()
    await before.prepare(spec)
    assert not (await inspected(engine, before, spec))["HostConfig"]["ReadonlyRootfs"]
    await before.close()
    runtime = docker_node()
    await runtime.open()
    assert (await runtime.ensure(spec)).state == "running"
    await says(runtime, spec.key, b"read-only")
    await runtime.close()


async def test_shell_syntax_in_a_name_is_not_executed(docker_harness: Harness, runtime: DockerRuntime) -> None:
    """Words of a command are words, whatever is in them."""
    spec = docker_harness.spec("echo", "$(id)", ";", "`reboot`", "--help me", "")
    await runtime.ensure(spec)
    await ended(runtime, spec.key)
    assert await output(runtime, spec.key) == b"$(id) ; `reboot` --help me \n"


async def test_the_images_entry_point_does_not_matter(
    docker_harness: Harness, runtime: DockerRuntime, engine: Engine
) -> None:
    spec = docker_harness.shell("exit 3")
    await runtime.ensure(spec)
    assert (await inspected(engine, runtime, spec))["Config"]["Entrypoint"] == ["sh", "-c", "exit 3"]
    assert (await ended(runtime, spec.key)).exit_code == 3


async def test_shared_memory_grows_with_the_limit(docker_harness: Harness, runtime: DockerRuntime) -> None:
    spec = docker_harness.shell("df -k /dev/shm | tail -1", resources={"memory": 512 * MIB})
    await runtime.ensure(spec)
    await ended(runtime, spec.key)
    assert int((await output(runtime, spec.key)).split()[1]) == 256 * 1024

"""Attempts to get out of a container, from inside a real one.  Each succeeds in a container that is not confined: that shows
that the attempt itself works here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from agents.runtime.docker import config, disk, launcher
from agents.runtime.docker.config import Profile
from agents.runtime.docker.engine import Rejected
from agents.runtime.interface import ENVIRONMENT_MOUNT, Key, Mount, Refused
from agents.runtime.run_dirs import RunDirs
from tests.agents.harness import ended, output
from tests.agents.workdirs.test_workdirs import kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agents.runtime.docker.engine import Engine
    from agents.runtime.docker.runtime import DockerRuntime
    from agents.runtime.interface import ContainerSpec, Seen
    from tests.agents.harness import Harness

pytestmark = pytest.mark.docker

FORKS = 100
ATTEMPTS = f"""
import ctypes, json, os, resource, socket, stat, sys, time
other, host_pid, engine = sys.argv[1], int(sys.argv[2]), sys.argv[3]
libc = ctypes.CDLL(None, use_errno=True)

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

def write(path, text="x"):
    with open(path, "w") as file:
        file.write(text)

def ptrace():
    call("ptrace", 16, host_pid, None, None)  # PTRACE_ATTACH
    os.waitpid(host_pid, 0x40000000)
    call("ptrace", 17, host_pid, None, None)

def fork_many():
    children = []
    try:
        for _ in range({FORKS}):
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)

def ask_engine():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(engine)

attempts = dict(
    write_root=lambda: write("/etc/escaped"),
    write_kernel=lambda: write("/proc/sys/kernel/hostname", socket.gethostname()),
    mount=lambda: call("mount", b"none", b"/etc", b"tmpfs", 0, None),
    make_device=lambda: os.mknod("/dev/shm/disk", 0o600 | stat.S_IFBLK, os.makedev(7, 0)),
    become_root=lambda: (os.setgid(0), os.setuid(0)),
    trace_host=ptrace,
    signal_host=lambda: os.kill(host_pid, 0),
    read_other=lambda: open(other + "/weights").read(),
    ask_engine=ask_engine,
    dump_core=lambda: resource.setrlimit(resource.RLIMIT_CORE, (1, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        or resource.getrlimit(resource.RLIMIT_CORE)[0] or write("/proc/nothing"),
    fork_many=fork_many,
)
found = {{}}
for name, attempt in attempts.items():
    try:
        attempt()
        found[name] = ""
    except (OSError, ValueError) as error:
        found[name] = str(error) or type(error).__name__
os.makedirs(os.path.expanduser("~/.cache"))
write("/tmp/tool", "#!/bin/sh\\necho made")
os.chmod("/tmp/tool", 0o700)
print(json.dumps(found), os.popen("/tmp/tool").read().strip(), sep="\\n")
"""


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this machine."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as process:
        yield process
        process.kill()


async def outcome(runtime: DockerRuntime, spec: ContainerSpec) -> tuple[dict[str, str], str, Seen]:
    """What failed and why ("" for what did not), what a program made in /tmp said, and how the container ended."""
    await runtime.ensure(spec)
    seen = await ended(runtime, spec.key)
    text = (await output(runtime, spec.key)).decode()
    first, _, rest = text.partition("\n")
    return json.loads(first), rest.strip(), seen


@pytest.mark.skipif(os.getuid() != 0, reason="only root has users for tenants, and a control that is not confined")
async def test_no_attempt_to_escape_succeeds(
    docker_harness: Harness,
    runtime: DockerRuntime,
    engine: Engine,
    bystander: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "PIDS_LIMIT", FORKS // 2)
    root = docker_harness.checkpoint_root
    folders = {tenant: root / tenant for tenant in ("alice", "bob")}
    for tenant, folder in folders.items():
        folder.mkdir()
        (folder / "weights").write_text(tenant)
        launcher.give(str(folder), root, Profile().user_of(tenant))
    socket = engine.url.removeprefix("unix://")
    words = ("python3", "-c", ATTEMPTS, str(folders["bob"]), str(bystander.pid), socket)
    spec = docker_harness.spec(*words, tenant="alice", checkpoint_dir=str(folders["alice"]))
    found, made, seen = await outcome(runtime, spec)
    assert [name for name, why in found.items() if not why] == []
    assert (made, seen.exit_code) == ("made", 0)

    control = docker_harness.spec(*words, tenant="alice", checkpoint_dir=str(folders["alice"]))
    create = runtime._engine.create

    async def unconfined(name: str, wanted: config.Json) -> str:
        return await create(name, {**wanted, "User": "0:0", "HostConfig": _open(wanted["HostConfig"], [root, socket])})

    monkeypatch.setattr(runtime._engine, "create", unconfined)
    monkeypatch.setattr(config, "differences", lambda *_, **__: [])
    found, made, _ = await outcome(runtime, control)
    assert {name: why for name, why in found.items() if why} == {}
    assert made == "made"


def _open(host: config.Json, visible: list[Any]) -> config.Json:
    binds = [{"Type": "bind", "Source": str(path), "Target": str(path)} for path in visible]
    return {
        **host,
        "CapDrop": [],
        "CapAdd": ["SYS_ADMIN", "SYS_PTRACE"],
        "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"],
        "ReadonlyPaths": [],
        "MaskedPaths": [],
        "PidMode": "host",
        "PidsLimit": 0,
        "ReadonlyRootfs": False,
        "Ulimits": [],
        "Mounts": [*host["Mounts"], *binds],
    }


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
def test_a_folder_is_its_tenants_alone(tmp_path: Path) -> None:
    """Also after another configuration, with what the last owner's containers have written."""
    alice, bob = (Profile().user_of(name) for name in ("alice", "bob"))
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:3]:
        parent.chmod(parent.stat().st_mode | 0o011)
    folder, others = tmp_path / "app", tmp_path / "others"
    (folder / "deep").mkdir(parents=True)
    for path in (folder / "deep" / "weights", others):
        path.write_text("1")
    launcher.give(str(folder), tmp_path, (65534, 65534))
    os.link(others, folder / "link")  # of another owner
    (folder / "out").symlink_to(others)
    os.lchown(folder / "out", 65534, 65534)
    launcher.give(str(folder), tmp_path, alice)

    def reads(user: tuple[int, int]) -> bool:
        words = ["cat", str(folder / "deep" / "weights")]
        return subprocess.run(words, user=user[0], group=user[1], extra_groups=[], capture_output=True).returncode == 0

    assert (reads(alice), reads(bob), reads((65534, 65534))) == (True, False, False)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert others.stat().st_uid == os.getuid()
    written = [path for path in folder.rglob("*") if path.name != "link"]
    assert {path.lstat().st_uid for path in written} == {alice[0]}


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives folders away")
async def test_preparing_takes_no_folder_from_running_containers(
    docker_harness: Harness, runtime: DockerRuntime
) -> None:
    """The previous generation may run as the user of an earlier release, and still has to save its work."""
    folder = docker_harness.checkpoint_root / "app"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    spec = docker_harness.shell("touch /dorm/checkpoints/mine", tenant="alice", checkpoint_dir=str(folder))
    await runtime.prepare(spec)
    assert folder.stat().st_uid == 65534
    await runtime.ensure(spec)
    await ended(runtime, spec.key)
    assert {folder.stat().st_uid, (folder / "mine").stat().st_uid} == {Profile().user_of("alice")[0]}


async def test_only_the_container_that_fills_the_disk_is_stopped(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk, "_INTERVAL_S", 0.1)
    runtime = docker_node(profile=Profile(disk=4 << 20, allow=("alice:writable-root",)))
    await runtime.open()
    fill = "dd if=/dev/zero of={} bs=1M count={} 2>/dev/null; echo ready; exec sleep 600"
    greedy = docker_harness.shell(fill.format("$HOME/big", 8), tenant="bob")
    within = docker_harness.shell(fill.format("$HOME/big", 2) + "; echo", tenant="bob")
    layered = docker_harness.shell(fill.format("/tmp/big", 8), tenant="alice")
    outside = docker_harness.shell(fill.format("../big", 8), tenant="bob", workdir=kept(runtime, "bob"))
    environment = tmp_path / "environment"
    environment.mkdir()
    os.chown(environment, *Profile().user_of("bob"))
    for above in (tmp_path, *tmp_path.parents[:2]):
        above.chmod(0o755)  # The container has another user.
    mount = Mount("environment", str(environment), ENVIRONMENT_MOUNT, read_only=False)
    builds = docker_harness.shell(fill.format(f"{ENVIRONMENT_MOUNT}/big", 8), tenant="bob", mounts=(mount,))
    try:
        for spec in (within, greedy, layered, outside, builds):
            await runtime.ensure(spec)
        for spec in (greedy, layered, outside, builds):
            seen = await ended(runtime, spec.key)
            assert (seen.exit_code, seen.interrupted, seen.lease_ended) == (137, False, False)
            assert "wrote more than 0.00391 GiB" in seen.error
        await runtime._disk.look()
        assert [seen.key for seen in await runtime.list() if seen.state == "running"] == [within.key]
    finally:
        await runtime.close()


def test_a_million_files_are_too_many_and_links_lead_nowhere(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "big").write_bytes(bytes(100_000))
    (folder / "link").symlink_to(tmp_path)
    (folder / "file").symlink_to(tmp_path / "big")
    assert disk.measured([folder], 50_000, 2) == ""
    (folder / "empty").touch()
    assert "more than 2 files" in disk.measured([folder], 50_000, 2)
    (folder / "data").write_bytes(bytes(100_000))
    assert "GiB" in disk.measured([folder], 50_000, 10)
    assert disk.measured([folder / "gone"], 0) == ""


def test_folders_nested_without_end_are_found_and_deleted(tmp_path: Path) -> None:
    dirs = RunDirs(tmp_path / "node")
    dirs.open()
    key = Key("app", 1, 0)
    dirs.make(key)
    inside = os.open(dirs.run_dir(key), os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=inside)
        deeper = os.open("d", os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = deeper
    os.close(inside)
    assert "nested more than 100 folders" in disk.measured([dirs.run_dir(key)], 1 << 30)
    dirs.remove(key)
    assert dirs.container_keys() == []
    while [path.name for path in dirs.root.iterdir()] != ["lock"]:  # It is removed in a separate thread.
        time.sleep(0.01)
    dirs.close()


async def test_an_image_that_is_not_allowed_is_not_even_pulled(
    docker_harness: Harness, docker_node: Callable[..., DockerRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = docker_harness.shell("exit 0", image="127.0.0.1:1/lab/train:1")
    asked: list[str] = []

    async def pull(image: str, first_s: float, total_s: float) -> None:
        asked.append(image)
        raise Rejected(404, "not found")

    async def refusal(profile: Profile) -> str:
        runtime = docker_node(profile=profile)
        await runtime.open()
        monkeypatch.setattr(runtime._engine, "pull", pull)
        try:
            with pytest.raises(Refused) as refused:
                await runtime.ensure(spec)
        finally:
            await runtime.close()
        return refused.value.code

    assert await refusal(Profile(images=("docker.io/**",))) == "container.image.not_allowed"
    assert asked == []
    assert await refusal(Profile(images=("127.0.0.1:1/lab/*",))) == "container.image.unavailable"
    assert asked == [spec.image]

"""The image and the compose files agree with the commands, and run on a Docker engine."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import aiodocker
import pytest
import yaml
from typer.main import get_command

from compose.engine import Engine
from dorm.cli.main import app
from dorm.client.opening import open_client
from dorm.deploy.rendering import TEMPLATES
from dorm.local.nats_server import find_binary
from events.log.records import LogError
from tests.e2e.commands import REPOSITORY
from tests.e2e.story import until
from tests.lab.machines.engines import unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from dorm.client.client import Client

FILES = ["compose.yaml", "machine.yaml"]
MACHINE = {
    "DORM_MACHINE": "n1",
    "DORM_ADDRESS": "10.0.0.1",
    "DORM_CLUSTER": "lab",
    "DORM_URL": "tls://10.0.0.1:4222",
    "DORM_USER_ID": "995:995",
}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")
PATIENCE_S = 90.0
APP = {
    "name": "one",
    "command": ["python3", "-c", "import numpy; assert numpy.linalg.inv(numpy.eye(3)).sum() == 3"],
    "demand": {"cpu": "500m", "memory": "128MiB"},
    "n_max": 2,
    "retries": {"limit": 0},
}


def composer() -> list[str]:
    """The program that reads compose files; if there is none, tests skip, and in CI they fail."""
    for words in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(words[0])
            and not subprocess.run([*words, "version"], capture_output=True, check=False).returncode
        ):
            return words
    unavailable("there is neither `docker compose` nor docker-compose")


def composed(*words: str, env: Mapping[str, str]) -> str:
    done = subprocess.run(
        [*composer(), *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", FILES)
def test_commands_know_their_options(name: str) -> None:
    text = _VARIABLE.sub(lambda found: MACHINE.get(found[1]) or found[2] or "", (TEMPLATES / name).read_text())
    for service in yaml.safe_load(text)["services"].values():
        program, command, *options = service["command"]
        if program == "nats-server":
            assert [command, *options] == ["--config", "/etc/dorm/nats.conf"]
            continue
        commands: Any = get_command(app)
        context = commands.make_context("dorm", [], resilient_parsing=True)
        found = commands.get_command(context, command)
        if command == "webhooks":
            context = found.make_context(command, [], parent=context, resilient_parsing=True)
            command, *options = options
            found = found.get_command(context, command)
        assert found.make_context(command, list(options), parent=context).args == []


def test_compose_reads_the_files() -> None:
    found = yaml.safe_load(composed("-f", str(TEMPLATES / "compose.yaml"), "config", env={}))
    assert set(found["services"]) == {"nats", "master", "api", "agent-1", "agent-2"}
    assert all(service["read_only"] and service["cap_drop"] == ["ALL"] for service in found["services"].values())
    found = yaml.safe_load(composed("-f", str(TEMPLATES / "machine.yaml"), "config", env=MACHINE))
    assert all(service["network_mode"] == "host" for service in found["services"].values())
    assert found["services"]["nats"]["stop_signal"] == "SIGUSR2"


def test_a_machine_without_its_settings_is_refused_by_name() -> None:
    bare = {name: value for name, value in os.environ.items() if name not in MACHINE}
    done = subprocess.run(
        [*composer(), "-f", str(TEMPLATES / "machine.yaml"), "config"],
        env=bare,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "the user and group of /var/lib/dorm/nats" in done.stderr


def test_the_server_accepts_the_configuration_of_a_laptop() -> None:
    done = subprocess.run(
        [find_binary(), "-t", "-c", str(TEMPLATES / "laptop.conf")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def context() -> bytes:
    """What `.ci/image` collected, as a builder takes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(REPOSITORY / "build/image", arcname=".")
    return buffer.getvalue()


def _library() -> str:
    found = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return str(re.findall(r"libstdc\+\+\.so\.6 .* => (/usr/\S+|/lib/\S+)", found)[0])


async def complete(engine: Engine, url: str, image: str, ref: str) -> str:
    """A base for Dorm's image.  The sample apps' image has no libstdc++ where it is made of Debian's packages: then that of
    this machine, whose packages they are, is added under another name."""
    async with aiodocker.Docker(url) as docker:
        said = await printed(docker, image, "python3", "-c", "import ctypes; ctypes.CDLL('libstdc++.so.6')")
    if not said:
        return image
    library = await asyncio.to_thread(_library)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as tar:
        tar.add(library, arcname="libstdc++.so.6")
        lines = f"ARG BASE\nFROM ${{BASE}}\nCOPY libstdc++.so.6 {os.path.dirname(library)}/\n".encode()
        info = tarfile.TarInfo("Dockerfile")
        info.size = len(lines)
        tar.addfile(info, io.BytesIO(lines))
    await engine.build(buffer.getvalue(), ref, args={"BASE": image}, labels={}, network="none")
    return ref


@pytest.fixture
async def image(docker_host: str, docker_image: str) -> AsyncIterator[str]:
    """Dorm's image, on the base of the sample apps' image: no registry is needed."""
    done = await asyncio.to_thread(
        subprocess.run, [".ci/image", sys.executable], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ref, base = f"dorm-test:{secrets.token_hex(4)}", f"dorm-test-base:{secrets.token_hex(4)}"
    async with Engine(docker_host, work_s=600.0) as engine:
        try:
            usable = await complete(engine, docker_host, docker_image, base)
            await engine.build(context(), ref, args={"BASE": usable}, labels={}, network="none")
            yield ref
        finally:
            await engine.remove_image(ref)
            await _remove_stages(engine, docker_host)
            await engine.remove_image(base)


async def _remove_stages(engine: Engine, url: str) -> None:
    """The classic builder keeps the image of each stage."""
    async with aiodocker.Docker(url) as docker:
        for one in await docker.images.list(filters={"label": ["dorm.stage=install"], "dangling": ["true"]}):
            await engine.remove_image(one["Id"])


async def printed(docker: aiodocker.Docker, image: str, *command: str) -> str:
    """What a container prints that may do nothing."""
    config: dict[str, Any] = {
        "Image": image,
        "Cmd": list(command),
        "HostConfig": {"NetworkMode": "none", "ReadonlyRootfs": True, "CapDrop": ["ALL"], "Tmpfs": {"/tmp": ""}},
    }
    container = await docker.containers.create(config)
    try:
        await container.start()
        await container.wait(timeout=60)
        return "".join(await container.log(stdout=True, stderr=True))
    finally:
        await container.delete(force=True)


async def connected(url: str) -> Client:
    """A client, once the master has made the log."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await open_client(url, "local")
            except LogError:
                await asyncio.sleep(0.5)


@pytest.mark.docker
@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_the_image_runs_a_cluster(docker_host: str, image: str, tmp_path: Path) -> None:
    async with aiodocker.Docker(docker_host) as docker:
        found = await docker.images.inspect(image)
        assert found["Config"]["User"] == "10001:10001"
        print(f"{image} has {found['Size'] / 1e6:.0f} MB")
        assert (await printed(docker, image, "dorm", "--version")).startswith("dorm ")
        assert "nats-server: v2" in await printed(docker, image, "nats-server", "--version")
        assert "uid=10001" in await printed(docker, image, "id")

    port = 40000 + os.getpid() % 10000
    env = {"DORM_IMAGE": image, "DORM_PORT": str(port), "DORM_API_PORT": str(port + 10000), "DOCKER_HOST": docker_host}
    project = ("-p", f"dormtest{secrets.token_hex(4)}", "-f", str(TEMPLATES / "compose.yaml"))
    try:
        await asyncio.to_thread(composed, *project, "up", "-d", env=env)
        async with contextlib.AsyncExitStack() as stack:
            client = await stack.enter_async_context(await connected(f"nats://127.0.0.1:{port}"))
            await until(client, lambda s: len(s.nodes) == 2, "two nodes", timeout=PATIENCE_S)
            one = (await client.submit(APP)).id
            state = await until(client, lambda s: bool(s.apps[one].ended), "it completes", timeout=PATIENCE_S)
            assert state.apps[one].phase == "completed", json.dumps(state.apps[one].end_reason)
    finally:
        await asyncio.to_thread(composed, *project, "down", "-v", env=env)

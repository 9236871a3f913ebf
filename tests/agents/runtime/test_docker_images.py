"""Images that an engine does not have, on a real engine, with registries on this machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from agents.runtime.docker.engine import Images, refused
from agents.runtime.interface import Refused, Unavailable
from compose.engine import Engine as ImageEngine
from tests.agents.harness import PATIENCE_S, POLITE, Harness, ended, output
from tests.compose.test_sample_image import registry
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from agents.runtime.docker.engine import Engine
    from agents.runtime.docker.runtime import DockerRuntime


class Silent:
    """A registry that takes connections and answers nothing."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.set()
        await reader.read()
        writer.close()


@pytest.fixture
async def silent() -> AsyncIterator[Silent]:
    made = Silent()
    async with await asyncio.start_server(made.serve, "127.0.0.1", 0) as server:
        made.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


@pytest.mark.docker
@pytest.mark.slow
async def test_an_image_is_pulled_once_for_all(
    docker_harness: Harness,
    runtime: DockerRuntime,
    docker_archive: Path,
    docker_host: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulled: list[str] = []
    pull = runtime._engine.pull

    async def counted(image: str, first_s: float, total_s: float) -> None:
        pulled.append(image)
        await pull(image, first_s, total_s)

    monkeypatch.setattr(runtime._engine, "pull", counted)
    async with registry(docker_archive) as address:
        image = f"{address}/anything:1"
        specs = [docker_harness.shell("echo here", image=image) for _ in range(3)]
        try:
            await asyncio.gather(*map(runtime.ensure, specs))
            for spec in specs:
                await ended(runtime, spec.key)
                assert await output(runtime, spec.key) == b"here\n"
                await runtime.remove(spec.key)
        finally:
            async with ImageEngine(docker_host) as images:
                await images.remove_image(image)
    assert pulled == [image]


@pytest.mark.docker
async def test_no_registry_is_one_line_and_leaves_nothing(docker_harness: Harness, runtime: DockerRuntime) -> None:
    spec = docker_harness.shell(POLITE, image="127.0.0.1:9/nothing:1")
    with raises(Refused, "container.image.unavailable", "127.0.0.1:9/nothing:1") as raised:
        await runtime.ensure(spec)
    assert raised.value.cause == "image"
    assert "\n" not in str(raised.value)
    assert await runtime.list() == []
    assert not runtime.run_dir(spec.key).exists()


@pytest.mark.docker
async def test_a_silent_registry_is_given_up(engine: Engine, silent: Silent) -> None:
    images = Images(engine, first_s=0.3)
    with raises(Refused, "container.image.unavailable"):
        await images.fetch(f"{silent.address}/x:1")
    assert silent.asked.is_set()
    await images.close()


@pytest.mark.docker
async def test_a_long_pull_is_waited_for_in_parts_and_ended_by_close(engine: Engine, silent: Silent) -> None:
    images = Images(engine, first_s=PATIENCE_S, wait_s=0.2)
    for _ in range(2):
        with raises(Unavailable, "container.image.pulling"):
            await images.fetch(f"{silent.address}/x:1")
    assert len(images._pulls) == 1
    images._wait_s = PATIENCE_S
    waiting = asyncio.create_task(images.fetch(f"{silent.address}/x:1"))
    await asyncio.sleep(0)  # it waits now
    await images.close()
    with raises(Unavailable, "container.image.pull_ended"):
        await waiting


@pytest.mark.docker
async def test_a_stop_does_not_wait_for_a_pull(docker_harness: Harness, runtime: DockerRuntime, silent: Silent) -> None:
    spec = docker_harness.shell(POLITE, image=f"{silent.address}/x:1")
    ensuring = asyncio.create_task(runtime.ensure(spec))
    await asyncio.wait_for(silent.asked.wait(), PATIENCE_S)
    await runtime.stop(spec.key, 0)
    assert not ensuring.done()
    await runtime.close()
    with pytest.raises(Unavailable):
        await ensuring


@pytest.mark.docker
async def test_a_missing_image_name_is_refused(docker_harness: Harness, runtime: DockerRuntime) -> None:
    with raises(Refused, "container.image.missing") as raised:
        await runtime.ensure(docker_harness.shell(POLITE, image=""))
    assert raised.value.cause == "image"


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("pull access denied for x, repository does not exist or may require 'docker login'", "does not have it"),
        ("manifest for x:9 not found: manifest unknown", "does not have it"),
        ('Get "https://r/v2/": dial tcp: lookup r on 10.0.0.1:53: no such host', "no registry can be reached"),
        ("no answer in 10 s", "no registry can be reached"),
        ("write /var/lib/docker/tmp/x: no space left on device", "cannot pull it: write"),
    ],
)
def test_a_refusal_names_why_the_image_cannot_be_pulled(message: str, why: str) -> None:
    refusal = refused("x", message + "\nmore")
    assert refusal.cause == "image"
    assert why in str(refusal)
    assert "load it on this node" in str(refusal)
    assert "\n" not in str(refusal)

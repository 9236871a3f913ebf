"""Building images with the engine's API: its errors, on a real engine."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import TYPE_CHECKING

import aiodocker
import pytest

from compose.engine import Engine, EngineFault
from tests.agents.wire import Wire, wired
from tests.compose.test_sample_image import context_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.docker


def build(engine: Engine, dockerfile: str) -> asyncio.Task[None]:
    ref = f"dorm/engine-test:{os.getpid()}"
    context = context_of({"Dockerfile": dockerfile})
    return asyncio.create_task(engine.build(context, ref, args={}, labels={}, network="none"))


async def fault_of(task: asyncio.Task[None]) -> str:
    with pytest.raises(EngineFault) as raised:
        await task
    assert "\n" not in str(raised.value)
    return str(raised.value)


async def test_a_command_that_fails_is_named_with_its_last_words(docker_host: str, docker_image: str) -> None:
    mark = secrets.token_hex(8)
    async with Engine(docker_host) as engine:
        said = await fault_of(build(engine, f"FROM {docker_image}\nRUN echo 'why {mark}'; exit 3\n"))
    assert said.endswith(f"… why {mark}")
    assert "exit 3" in said


async def test_building_on_a_missing_base_fails_and_looking_up_an_absent_image_does_not(docker_host: str) -> None:
    missing = "127.0.0.1:9/no-such-image:1"
    async with Engine(docker_host) as engine:
        assert await engine.image(missing) is None
        await engine.remove_image(missing)
        assert "127.0.0.1:9" in await fault_of(build(engine, f"FROM {missing}\n"))


async def test_an_imported_root_has_its_changes_and_survives_a_save(docker_host: str, tmp_path: Path) -> None:
    root, saved, ref = tmp_path / "root.tar", tmp_path / "saved.tar", f"dorm/import-test:{secrets.token_hex(4)}"
    root.write_bytes(context_of({"hello": "world"}))
    async with Engine(docker_host) as engine:
        try:
            await engine.import_root(root, ref, ["ENV PATH=/somewhere", 'CMD ["hello"]'])
            made = await engine.image(ref)
            assert made is not None
            assert (made["Config"]["Env"], made["Config"]["Cmd"]) == (["PATH=/somewhere"], ["hello"])
            await engine.save(ref, saved)
            await engine.remove_image(ref)
            assert await engine.image(ref) is None
            await engine.load(saved)
            again = await engine.image(ref)
            assert again is not None
            assert again["RootFS"]["Layers"] == made["RootFS"]["Layers"]
            saved.write_bytes(saved.read_bytes()[:700])
            with pytest.raises(EngineFault):
                await engine.load(saved)
        finally:
            await engine.remove_image(ref)


async def test_a_build_whose_engine_goes_away_has_not_succeeded(
    docker_host: str, docker_image: str, tmp_path: Path
) -> None:
    mark = secrets.token_hex(8)
    async with wired(tmp_path / "wire.sock", docker_host) as wire, Engine(wire.url) as engine:
        building = build(engine, f"FROM {docker_image}\nRUN : {mark}; sleep 600\n")
        async with aiodocker.Docker(docker_host) as docker, asyncio.timeout(30):
            while not [one for one in await docker.containers.list() if mark in one["Command"]]:
                assert not building.done(), building
                await asyncio.sleep(0.02)
        await wire.cut()
        assert (await fault_of(building)).startswith(f"no Docker engine answers at {wire.url}: ")


async def test_a_silent_engine_is_given_up(docker_host: str, tmp_path: Path) -> None:
    async with wired(tmp_path / "wire.sock", docker_host) as wire, Engine(wire.url, call_s=0.1) as engine:
        wire.silent = True
        with pytest.raises(EngineFault, match="took longer than"):
            await engine.architecture()


async def test_an_engine_is_reached_over_tcp_and_by_docker_host(
    docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(tmp_path / "unused", docker_host)
    async with await asyncio.start_server(wire._serve, "127.0.0.1", 0) as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with Engine() as engine, Engine(docker_host) as direct:
            assert await engine.architecture() == await direct.architecture()


@pytest.mark.parametrize("url", ["/var/run/docker.sock", "ssh://somewhere", "npipe:////./pipe/docker"])
async def test_an_address_of_another_kind_names_those_that_work(url: str) -> None:
    with pytest.raises(EngineFault, match="use unix:// or tcp://"):
        async with Engine(url):
            pass


async def test_a_missing_engine_is_one_line() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n<no\nJSON>")
        writer.close()

    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as server,
        Engine(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as engine,
    ):
        with pytest.raises(EngineFault, match="no Docker engine answers") as raised:
            await engine.architecture()
    assert "\n" not in str(raised.value)

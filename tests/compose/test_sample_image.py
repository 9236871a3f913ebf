"""The sample apps' image: it runs the apps, and is built only when needed, from what is available."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiodocker
import platformdirs
import pytest
from aiohttp import web

from compose import image
from compose.engine import Engine
from compose.image import Built, ImageUnavailable, ensure_samples_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

pytestmark = pytest.mark.docker

WORKER = {
    "DORM_APP": "app-1",
    "DORM_GENERATION": "1",
    "DORM_SLOT": "0",
    "DORM_RANK": "0",
    "DORM_WORLD_SIZE": "1",
    "DORM_PEERS": "127.0.0.1:20999",
    "DORM_CHECKPOINT_DIR": "/checkpoints",
    "DORM_PROGRESS": "/checkpoints/progress.jsonl",
}


async def output(url: str, ref: str, *command: str, env: dict[str, str] | None = None) -> str:
    """What a container prints, with no rights, no network, a user without a name and a file system it cannot write."""
    config: dict[str, Any] = {
        "Image": ref,
        "Cmd": list(command),
        "Env": [f"{name}={value}" for name, value in (env or {}).items()],
        "User": "54321:54321",
        "HostConfig": {
            "NetworkMode": "none",
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "Tmpfs": {"/tmp": "", "/checkpoints": "uid=54321"},
        },
    }
    async with aiodocker.Docker(url=url) as docker, asyncio.timeout(60):
        container = await docker.containers.create(config)
        try:
            await container.start()
            status = await container.wait()
            text = "".join(await container.log(stdout=True, stderr=True))
        finally:
            await container.delete(force=True)
    assert status["StatusCode"] == 0, text
    return text


async def test_an_app_trains_in_it(docker_host: str, docker_image: str) -> None:
    command = ["python3", "-m", "compose.apps.logistic", "--steps", "5"]
    said = await output(docker_host, docker_image, *command, env=WORKER)
    assert json.loads(said.splitlines()[-1])["result"]["step"] == 5


async def test_it_has_the_tools_that_tests_use(docker_host: str, docker_image: str) -> None:
    said = await output(docker_host, docker_image, "sh", "-c", "sleep 0 && id -u && echo $DORM_SAMPLE_DATA")
    assert said.split() == ["54321", "/opt/dorm/digits.csv.gz"]


async def test_all_byte_code_is_there_and_valid(docker_host: str, docker_image: str) -> None:
    """Otherwise, each start of a container would compile NumPy again."""
    said = await output(
        docker_host, docker_image, "python3", "-v", "-c", "import asyncio, numpy, compose.apps.logistic"
    )
    loaded = [line for line in said.splitlines() if line.startswith("# code object from ")]
    assert len(loaded) > 100
    assert [line for line in loaded if not line.endswith(".pyc'")] == []


async def test_an_existing_image_is_not_built_again(docker_host: str, docker_image: str) -> None:
    said: list[str] = []
    built = await ensure_samples_image(docker_host, docker_image, said.append)
    assert built.origin == "present"
    assert said == []


async def test_no_engine_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ImageUnavailable, match=r"^no Docker engine answers at unix://.*/none: ") as raised:
        await ensure_samples_image(f"unix://{tmp_path}/none")
    assert "\n" not in str(raised.value)


class Workshop:
    """A copy of the sources to edit, with its own cache and image name."""

    def __init__(self, url: str, sources: Path, cache: Path, ref: str) -> None:
        self.url = url
        self.sources = sources
        self.cache = cache
        self.ref = ref
        self.said: list[str] = []

    async def ensure(self) -> Built:
        self.said.clear()
        return await ensure_samples_image(self.url, self.ref, self.said.append)

    async def layers(self) -> list[str]:
        async with Engine(self.url) as engine:
            found = await engine.image(self.ref)
        assert found is not None
        layers: list[str] = found["RootFS"]["Layers"]
        return layers

    async def remove(self) -> None:
        async with Engine(self.url) as engine:
            await engine.remove_image(self.ref)


@pytest.fixture
async def workshop(
    docker_host: str, docker_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Workshop]:
    """Has the base from packages if this machine has it, and asks no registry unless a test names one."""
    sources = tmp_path / "compose"
    cache = tmp_path / "cache" / "dorm" / "images"
    cache.mkdir(parents=True)
    for base in (Path(platformdirs.user_cache_dir("dorm")) / "images").glob("base.*.tar"):
        (cache / base.name).symlink_to(base)
    shutil.copytree(Path(image.__file__).parent, sources, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(image, "_HERE", sources)
    monkeypatch.setattr(image, "_SCRIPT", sources / "debian_image.sh")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DORM_SAMPLES_BASE", "127.0.0.1:9/nothing:1")
    name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]
    made = Workshop(docker_host, sources, cache, f"dorm/samples-test:{name}")
    yield made
    await made.remove()


async def test_an_edited_app_rebuilds_only_its_layer(workshop: Workshop) -> None:
    first = await workshop.ensure()
    layers = await workshop.layers()
    (workshop.sources / "apps" / "edited.py").write_text("print('edited')\n")
    second = await workshop.ensure()
    assert second.origin == "packages"
    assert second.content != first.content
    assert await output(workshop.url, second.ref, "python3", "-m", "compose.apps.edited") == "edited\n"
    assert not any("downloading" in line for line in workshop.said)
    assert (await workshop.layers())[0] == layers[0]
    assert (await workshop.layers())[-1] != layers[-1]


@pytest.mark.soak
async def test_a_build_survives_the_removal_of_its_layers(docker_host: str, tmp_path: Path) -> None:
    """Another image is removed while its layers serve a build.  The moment can't be chosen, so the test tries
    several."""
    name = f"dorm/layers-test-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"

    async def remove_after(engine: Engine, pause_s: float) -> None:
        await asyncio.sleep(pause_s)
        await engine.remove_image(f"{name}:first")

    def build(engine: Engine, tag: str, last: str) -> Coroutine[Any, Any, None]:
        return engine.build(layers_of("same", name, last), f"{name}:{tag}", args={}, labels={}, network="none")

    async with Engine(docker_host) as engine:
        try:
            for turn in range(8):
                await build(engine, "first", f"first {turn}")
                await asyncio.gather(build(engine, "second", f"second {turn}"), remove_after(engine, turn * 0.02))
                assert await engine.image(f"{name}:second") is not None
                await engine.remove_image(f"{name}:second")
        finally:
            for tag in ("first", "second"):
                await engine.remove_image(f"{name}:{tag}")


def layers_of(*contents: str) -> bytes:
    """A build context with a layer for each text."""
    files = {f"file-{index}": text for index, text in enumerate(contents)}
    files["Dockerfile"] = "\n".join(["FROM scratch", *(f"COPY {name} /{name}" for name in files)])
    return context_of(files)


def context_of(files: dict[str, str]) -> bytes:
    """A build context: a tar of these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


async def test_further_engines_load_the_built_image(workshop: Workshop) -> None:
    first, second = await asyncio.gather(workshop.ensure(), workshop.ensure())
    # The later one finds the archive, or the image itself, depending on how far the other is.
    assert {first.origin, second.origin} in ({"packages", "cache"}, {"packages", "present"})
    await workshop.remove()
    third = await workshop.ensure()
    assert (third.origin, third.content) == ("cache", first.content)
    assert workshop.said == [f"loading {workshop.ref}"]


async def test_a_spoilt_archive_is_made_again(workshop: Workshop) -> None:
    built = await workshop.ensure()
    assert built.archive is not None
    await workshop.remove()
    built.archive.write_bytes(built.archive.read_bytes()[:100_000])
    assert (await workshop.ensure()).origin == "packages"


async def test_neither_registry_nor_packages(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    with (workshop.sources / "debian_image.sh").open("a") as script:
        script.write("# edited, so that no base image of this script exists\n")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        ImageUnavailable, match=r"^no image from 127\.0\.0\.1:9/nothing:1 .*, nor from packages"
    ) as raised:
        await workshop.ensure()
    assert "\n" not in str(raised.value)


@pytest.mark.soak
async def test_a_failing_package_download(workshop: Workshop) -> None:
    script = workshop.sources / "debian_image.sh"
    script.write_text(script.read_text().replace("packages=(", "packages=(no-such-package-as-this "))
    with pytest.raises(ImageUnavailable, match=r"nor from packages .*no-such-package-as-this"):
        await workshop.ensure()
    assert list(workshop.cache.glob("dorm-*.tar")) == []


async def test_from_a_registry(workshop: Workshop, docker_archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with registry(docker_archive) as address:
        monkeypatch.setenv("DORM_SAMPLES_BASE", f"{address}/python:3.11-slim")
        built = await workshop.ensure()
        assert built.origin == "registry", workshop.said
        async with Engine(workshop.url) as engine:
            await engine.remove_image(f"{address}/python:3.11-slim")


async def test_a_silent_registry_holds_up_nothing(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_REGISTRY_FIRST_S", 0.3)
    asked = asyncio.Event()

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silence, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("DORM_SAMPLES_BASE", f"127.0.0.1:{port}/python:3.11-slim")
        built = await workshop.ensure()
    assert asked.is_set()
    assert built.origin == "packages"


@contextlib.asynccontextmanager
async def registry(archive: Path) -> AsyncIterator[str]:
    """A registry on this machine that serves one image, under any name, out of a `docker save` file."""
    blobs: dict[str, bytes] = {}

    def blob(data: bytes, kind: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        blobs[digest] = data
        return {"mediaType": f"application/vnd.docker.{kind}", "size": len(data), "digest": digest}

    with tarfile.open(archive) as tar:

        def member(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        (saved,) = json.loads(member("manifest.json"))
        layers = [gzip.compress(member(name), compresslevel=1) for name in saved["Layers"]]
        config = blob(member(saved["Config"]), "container.image.v1+json")
    version = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": version,
            "config": config,
            "layers": [blob(layer, "image.rootfs.diff.tar.gzip") for layer in layers],
        }
    ).encode()

    async def serve(request: web.Request) -> web.Response:
        if "/manifests/" in request.path:
            digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
            return web.Response(body=manifest, content_type=version, headers={"Docker-Content-Digest": digest})
        if "/blobs/" in request.path:
            return web.Response(body=blobs[request.path.rpartition("/")[2]])
        return web.json_response({})

    app = web.Application()
    app.router.add_get("/v2/{path:.*}", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()

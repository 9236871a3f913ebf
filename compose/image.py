"""The sample apps' image: Python, NumPy, `dorm.elastic`, the apps of `compose.apps` and the data they train on.

    python -m compose.image [--host URL] [--save FILE]

If an engine has an image with equal contents, nothing happens.  Otherwise the image is loaded from this user's cache, or
built: from a Python base image if a registry can be reached, else from Debian packages if apt is available, which takes
seconds and needs no root.  A hash of all contents is kept as a label on the image; so an edited app makes a new image, and
only the layer that holds the apps is built again.

The cache is `images/` in the user's cache directory; it may be deleted at any time, and the next image then takes the newest
packages.  DORM_SAMPLES_BASE names another base image, for example of a mirror; one that has NumPy needs no package index.

Inside, `python3 -m compose.apps.NAME` runs an app, DORM_SAMPLE_DATA names the digits data set, and any user id works.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import io
import os
import platform
import shutil
import signal
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import platformdirs

from compose.engine import Engine, EngineFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    Progress = Callable[[str], None]

SAMPLES_REF = "dorm/samples:1"
PYTHON_IMAGE = "python:3.11-slim"
CONTENT_LABEL = "dorm.content"

_HERE = Path(__file__).parent
_SCRIPT = _HERE / "debian_image.sh"
_REGISTRY_FIRST_S = 8.0  # an unreachable registry must not delay a first run
_REGISTRY_STALL_S = 60.0
_PACKAGES_S = 300.0
_KEEP_CACHED = 3  # tar files of each kind; each takes about 75 MB
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # the machine's name: the engine's

Origin = Literal["present", "cache", "registry", "packages"]


class ImageUnavailable(Exception):
    """There is no image, and it can't be built here; the message is one line that says why."""

    code = "image.unavailable"


class Built(NamedTuple):
    """An image that an engine now has."""

    ref: str
    content: str
    """Hash of everything that went in; the image carries it as its label `dorm.content`."""
    origin: Origin
    archive: Path | None
    """Tar file of the image, for other engines; None if the image was present and nothing is cached."""


async def ensure_samples_image(
    url: str | None = None, ref: str = SAMPLES_REF, progress: Progress = lambda _: None
) -> Built:
    """Make sure that an engine has the sample apps' image, and report where it came from.

    `url` is the engine's (None: DOCKER_HOST, else the usual socket); `progress` is called with each step that may take long.
    Safe to call at once from several processes and for several engines: one builds it, the others wait and load it.
    Raises `ImageUnavailable`.
    """
    recipe = await asyncio.to_thread(_recipe)
    content = recipe.content
    try:
        async with Engine(url) as engine:
            arch = await engine.architecture()
            cache = await asyncio.to_thread(_cache_dir)
            archive = cache / f"{ref.replace('/', '-').replace(':', '-')}.{arch}.{content[:16]}.tar"
            had = await engine.image(ref)
            if _content_of(had) == content:
                return Built(ref, content, "present", archive if archive.exists() else None)
            origin: Origin = "cache"
            if not await _load(engine, archive, ref, content, progress):
                async with _locked(cache / "lock"):
                    # Another process may have built it meanwhile.
                    if not await _load(engine, archive, ref, content, progress):
                        origin = await _make(engine, arch, cache, recipe, ref, progress)
                        await _save(engine, ref, archive)
            if had is not None and CONTENT_LABEL in _labels(had):
                await engine.remove_image(had["Id"])  # ours, of older contents, and nameless now
            return Built(ref, content, origin, archive)
    except EngineFault as fault:
        raise ImageUnavailable(str(fault)) from fault
    except OSError as error:
        raise ImageUnavailable(f"cannot make {ref}: {error}") from error


async def _load(engine: Engine, archive: Path, ref: str, content: str, progress: Progress) -> bool:
    """Load the image if the cache has it; return whether that worked.  An archive that the engine cannot use, for example one
    cut short by a full disk, counts as missing: it will be written again."""
    if not await asyncio.to_thread(archive.exists):
        return False
    progress(f"loading {ref}")
    try:
        await engine.load(archive)
    except EngineFault as fault:
        progress(f"cannot load {archive}: {fault}")
        return False
    return _content_of(await engine.image(ref)) == content


async def _make(engine: Engine, arch: str, cache: Path, recipe: _Recipe, ref: str, progress: Progress) -> Origin:
    """Build the image on the engine, from whichever base is available."""
    base, context, labels = recipe.base, recipe.context, {CONTENT_LABEL: recipe.content}
    try:
        if await engine.image(base) is None:
            progress(f"pulling {base}")
            await engine.pull(base, first_s=_REGISTRY_FIRST_S, stall_s=_REGISTRY_STALL_S)
        progress(f"building {ref} from {base}")
        # The host's network, since without a bridge it is an engine's only one that reaches a package index.
        await engine.build(context, ref, args={"BASE": base}, labels=labels, network="host")
        return "registry"
    except EngineFault as fault:
        no_registry = str(fault)
    progress(f"no image from {base} ({no_registry}); taking Debian packages")
    try:
        packages = await _packages_base(engine, arch, cache, progress)
        progress(f"building {ref}")
        await engine.build(context, ref, args={"BASE": packages}, labels=labels, network="none")
    except (EngineFault, _NoPackages) as fault:
        raise ImageUnavailable(f"no image from {base} ({no_registry}), nor from packages ({fault})") from fault
    return "packages"


class _Recipe(NamedTuple):
    """The inputs of a build."""

    base: str
    """The base image to try first."""
    context: bytes
    """Tar file with the Dockerfile and the files that it copies."""
    content: str
    """Hash of everything that determines the image's contents, including the script for the other base."""


def _recipe() -> _Recipe:
    base = os.environ.get("DORM_SAMPLES_BASE", PYTHON_IMAGE)
    context = _context()
    content = hashlib.sha256(b"\0".join([context, _SCRIPT.read_bytes(), base.encode()])).hexdigest()
    return _Recipe(base, context, content)


class _NoPackages(Exception):
    """Debian packages are unavailable here."""


async def _packages_base(engine: Engine, arch: str, cache: Path, progress: Progress) -> str:
    """Return the name of a base image made from Debian packages: on the engine, from the cache, or built now."""
    version = hashlib.sha256(await asyncio.to_thread(_SCRIPT.read_bytes)).hexdigest()[:16]
    ref = f"dorm/samples-base:{version}"
    if await engine.image(ref) is not None:
        return ref
    root = cache / f"base.{arch}.{version}.tar"
    if not root.exists():
        await _unpack_packages(root, arch, progress)
        _prune(cache, "base.*.tar")
    try:
        await engine.import_root(root, ref, ["ENV PATH=/usr/bin:/bin", 'CMD ["python3"]'])
    except EngineFault:
        root.unlink(missing_ok=True)  # if the file was the cause, the next attempt must not use it again
        raise
    return ref


async def _unpack_packages(target: Path, arch: str, progress: Progress) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise _NoPackages("this machine has no apt")
    ours = _ARCHITECTURES.get(platform.machine(), arch)
    if ours != arch:
        raise _NoPackages(f"this machine's are for {ours}, the engine runs {arch}")
    process = await asyncio.create_subprocess_exec(
        "bash",
        str(_SCRIPT),
        str(target),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # so that apt and its children can be ended together
    )
    assert process.stderr is not None
    last = ""
    try:
        async with asyncio.timeout(_PACKAGES_S):
            async for line in process.stderr:
                last = line.decode(errors="replace").strip() or last
                progress(last)
            code = await process.wait()
    except TimeoutError:
        raise _NoPackages(f"apt took longer than {_PACKAGES_S:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await process.wait()
    if code != 0:
        raise _NoPackages(last or f"{_SCRIPT.name} ended with {code}")


async def _save(engine: Engine, ref: str, archive: Path) -> None:
    """Write the image to the cache atomically."""
    partial = archive.with_suffix(f".{os.getpid()}.partial")
    try:
        await engine.save(ref, partial)
        partial.rename(archive)
    finally:
        partial.unlink(missing_ok=True)
    _prune(archive.parent, f"{archive.name.split('.')[0]}.*.tar")


def _prune(cache: Path, pattern: str) -> None:
    newest_first = sorted(cache.glob(pattern), key=lambda path: (-path.stat().st_mtime_ns, path.name))
    for path in newest_first[_KEEP_CACHED:]:
        path.unlink(missing_ok=True)


def _context() -> bytes:
    """Return the build context, byte for byte the same for the same files."""
    files = {"Dockerfile": _HERE / "Dockerfile", "digits.csv.gz": _digits()}
    for path in [_HERE / "__init__.py", *sorted((_HERE / "apps").rglob("*.py"))]:
        files[f"compose/{path.relative_to(_HERE)}"] = path
    elastic = _elastic()
    for path in sorted(elastic.rglob("*.py")):
        files[f"dorm/elastic/{path.relative_to(elastic)}"] = path
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, path in files.items():
            data = path.read_bytes()
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _elastic() -> Path:
    """Return the folder of the library for apps that are resized while they train (the distribution `dorm-elastic`)."""
    package = importlib.util.find_spec("dorm.elastic")
    if package is None or package.origin is None:
        raise ImageUnavailable("dorm.elastic, which a sample app needs, is missing: pip install dorm-elastic")
    return Path(package.origin).parent


def _digits() -> Path:
    """Return the data set that ships in scikit-learn, found without importing it (which takes a second)."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise ImageUnavailable("scikit-learn, which ships the sample data, is missing: pip install 'dorm[samples]'")
    data = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if not data.is_file():
        raise ImageUnavailable(f"this version of scikit-learn ships no {data.name} ({data.parent})")
    return data


def _cache_dir() -> Path:
    path = Path(platformdirs.user_cache_dir("dorm")) / "images"
    path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold a lock between processes; the kernel frees it when its holder dies."""
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(0.05)
            else:
                break
        yield


def _labels(image: dict[str, object] | None) -> dict[str, str]:
    config = (image or {}).get("Config")
    labels = config.get("Labels") if isinstance(config, dict) else None
    return labels if isinstance(labels, dict) else {}


def _content_of(image: dict[str, object] | None) -> str | None:
    return _labels(image).get(CONTENT_LABEL)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m compose.image", description="Make the sample apps' image.")
    parser.add_argument("--host", metavar="URL", help="the Docker engine (default: DOCKER_HOST, else the usual socket)")
    parser.add_argument("--save", metavar="FILE", type=Path, help="also copy the image's tar file here")
    options = parser.parse_args()
    try:
        built = asyncio.run(ensure_samples_image(options.host, progress=lambda line: print(line, file=sys.stderr)))
        if options.save:
            asyncio.run(_copy(options.host, built, options.save))
    except (ImageUnavailable, EngineFault, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(f"{built.ref} {built.content[:16]} ({built.origin})")
    return 0


async def _copy(url: str | None, built: Built, target: Path) -> None:
    if built.archive is not None:
        await asyncio.to_thread(shutil.copyfile, built.archive, target)
        return
    async with Engine(url) as engine:
        await engine.save(built.ref, target)


if __name__ == "__main__":
    sys.exit(main())

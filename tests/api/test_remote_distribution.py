"""`dorm-remote` alone: what a notebook's environment installs, on the oldest Python that it supports if there is one."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.api.served import connected, led, served

if TYPE_CHECKING:
    from tests.lab.machines.nats_server import NatsServer

ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = """
import asyncio, importlib.util, sys
from dorm.remote import AsyncClient, Client, NotFound

url = sys.argv[1]
lab = Client(url, user="ann")
sent = lab.submit({"name": "one", "command": ["work"], "demand": {"cpu": 1}}, key="k")
try:
    lab.app("nobody")
except NotFound as error:
    print(error.code)
lab.cancel(sent.id)
print(lab.wait(sent.id).phase)


async def awaited():
    lab = AsyncClient(url)
    print([app.name async for app in lab.apps(ended=True)])
    async for event in lab.events(after="0", kind=["AppCancelled"]):
        print(event.kind)
        break


asyncio.run(awaited())
print([name for name in ("events", "agents", "msgspec") if importlib.util.find_spec(name)])
"""


def oldest_python() -> str:
    """Return Python 3.9 if this machine has one, else the Python of these tests."""
    uv = Path(sys.executable).with_name("uv")
    if uv.exists():
        command = [str(uv), "python", "find", "--no-python-downloads", "--system", "3.9"]
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode == 0:
            return found.stdout.strip()
    return sys.executable


def unpacked_wheel(folder: Path) -> Path:
    built, source, installed = folder / "built", folder / "source", folder / "installed"
    subprocess.run(["cp", "-r", str(ROOT / "dorm" / "remote"), str(source)], check=True)
    built.mkdir()
    build = "import setuptools.build_meta as b, sys; b.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(built)], cwd=source, check=True, capture_output=True)
    (wheel,) = built.glob("dorm_remote-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    return installed


@pytest.mark.nats
@pytest.mark.slow
async def test_its_wheel_works_without_the_control_plane(nats_server: NatsServer, tmp_path: Path) -> None:
    installed = await asyncio.to_thread(unpacked_wheel, tmp_path)
    folder = ROOT / "dorm" / "remote"
    packaged = {path.relative_to(installed / "dorm" / "remote") for path in installed.rglob("*.py")}
    assert packaged == {path.relative_to(folder) for path in folder.rglob("*.py")}
    assert (installed / "dorm" / "remote" / "py.typed").exists()
    async with connected(nats_server.url) as connection, led(connection, "a"), served(connection) as api:
        process = await asyncio.create_subprocess_exec(
            oldest_python(), "-S", "-c", _PROGRAM, api.server.url,
            cwd=tmp_path, env={"PYTHONPATH": str(installed), "PATH": ""},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(60):
            out, error = await process.communicate()
    assert (out.decode(), error.decode()) == ("app.not_found\ncancelled\n['one']\nAppCancelled\n[]\n", "")

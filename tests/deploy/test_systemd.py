"""The units of a machine under a real systemd: a container of systemd-nspawn with this machine's own system, of which nothing
is changed.  What parsing units cannot show is here: who may read which key, and what a service manager does to processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import yaml

from dorm.local.nats_server import find_binary
from tests.deploy.made import document
from tests.e2e.commands import REPOSITORY

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Iterator

pytestmark = [
    pytest.mark.nats,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("systemd-nspawn") is None,
        reason="needs root and systemd-nspawn (Debian's package systemd-container)",
    ),
]
PATIENCE_S = 180.0
WEBHOOKS_KEY = "var/lib/dorm/webhooks/webhooks.key"
ENDPOINT = """import http.server
class Endpoint(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print(self.headers["webhook-id"], self.rfile.read(int(self.headers["content-length"])).decode(), flush=True)
        self.send_response(204)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", 8000), Endpoint).serve_forever()
"""
"""Where webhooks arrive."""
SETTINGS = {
    "cluster": "lab",
    "machines": {"n1": "127.0.0.1"},
    "servers": ["n1"],
    "masters": ["n1"],
    "api": ["n1"],
    "webhooks": {"machines": ["n1"], "allow": ["loopback"]},
    "checkpoints": "/srv/shared",
    "mount": "none",
    "program": "/opt/dorm",
    "store_limit": "1GiB",
    "archives": {"place": "/srv/archives", "keep": "1s"},
    "backup": {"machines": ["n1"], "folder": "/var/backups/dorm", "keep": 2},
    "nodes": {"n1": {"runtime": "process", "capacity": {"cpu": 1, "memory": "1GiB"}, "trust_apps": True}},
}
APP = {"name": "long", "demand": {"cpu": "500m", "memory": "64MiB"}, "n_max": 1, "command": ["sleep", "98765"]}
APPLY = """#!/bin/sh
set -e
cd "$(dirname "$0")"
cp accounts.conf /etc/dorm/keys/.new
mv /etc/dorm/keys/.new /etc/dorm/keys/accounts.conf
"""
"""As `scp` does it: the new file is root's."""


@contextlib.contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """This machine's file system in a folder, with changes in memory."""
    upper, root = folder / "upper", folder / "root"
    for path in (upper, root):
        path.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=512m", "tmpfs", str(upper))
    try:
        for name in ("up", "work"):
            (upper / name).mkdir()
        layers = f"lowerdir=/,upperdir={upper}/up,workdir={upper}/work"
        run("mount", "-t", "overlay", "overlay", "-o", layers, str(root))
        try:
            yield root
        finally:
            run("umount", "--lazy", str(root))
    finally:
        run("umount", "--lazy", str(upper))


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def furnish(root: Path) -> list[str]:
    """Put Dorm where the units look for it, and leave out other units of this machine; return what is bound there."""
    for path in [*root.glob("etc/systemd/system/*.wants"), *root.glob("etc/rc?.d/S*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (root / "etc/machine-id").write_text("5eed" * 8 + "\n")
    site = Path(sysconfig.get_path("purelib"))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    programs, packages = root / "opt/dorm/bin", root / f"opt/dorm/lib/{version}/site-packages"
    for path in (programs, packages, root / "srv/shared", root / "opt/python", root / "opt/site", root / "opt/source"):
        path.mkdir(parents=True)
    (root / "opt/dorm/pyvenv.cfg").write_text("home = /opt/python/bin\n")
    (programs / "python").symlink_to(f"/opt/python/bin/{version}")
    (packages / "dorm.pth").write_text("/opt/source\n/opt/site\n")
    (programs / "dorm").write_text("#!/opt/dorm/bin/python\nfrom dorm.cli.main import main\n\nmain()\n")
    (programs / "dorm").chmod(0o755)
    shutil.copy(find_binary(), programs / "nats-server")
    # A Python with its own library finds it there.
    (root / "etc/ld.so.conf.d/00-dorm.conf").write_text("/opt/python/lib\n")
    (root / "root/deploy.yaml").write_text(yaml.safe_dump(SETTINGS))
    (root / "root/app.yaml").write_text(yaml.safe_dump(APP))
    # A person's home folder is hidden from the units, and this environment may lie in one.
    bound = {sys.base_prefix: "/opt/python", str(site): "/opt/site", str(REPOSITORY): "/opt/source"}
    return [f"--bind-ro={here}:{there}" for here, there in bound.items()]


class Booted:
    """A container whose first process is systemd."""

    def __init__(self, process: Process, root: Path) -> None:
        self._process = process
        self.root = root

    async def do(self, command: str, *, fails: bool = False) -> str:
        """Run a command of the shell inside, as root; it has to end with 0 unless it `fails`."""
        (leader,) = psutil.Process(self._process.pid).children()
        names = [f"--{name}" for name in ("mount", "pid", "net", "ipc", "uts", "cgroup")]
        path = "PATH=/opt/dorm/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        words = ["nsenter", f"--target={leader.pid}", *names, "env", "-i", path, "HOME=/root", "sh", "-c", command]
        inside = await asyncio.create_subprocess_exec(
            *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said = (await asyncio.wait_for(inside.communicate(), PATIENCE_S))[0].decode(errors="replace")
        assert (inside.returncode != 0) == fails, f"{command}: {inside.returncode}\n{said}"
        return said

    async def until(self, command: str, words: str) -> str:
        """Repeat a command until it says these words."""
        said = ""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while words not in said:
                    await asyncio.sleep(0.5)
                    said = await self.do(f"{command} || true")
        except TimeoutError:
            pytest.fail(
                f"{command} does not say {words!r}:\n{said}\n{await self.do('journalctl -n 20 --no-pager | cut -c1-300')}"
            )
        return said


@contextlib.asynccontextmanager
async def booted(folder: Path) -> AsyncIterator[Booted]:
    with mounted(folder) as root:
        options = ["--boot", "--register=no", "--keep-unit", "--private-network", *furnish(root)]
        with (folder / "console").open("wb") as console:
            process = await asyncio.create_subprocess_exec(
                "systemd-nspawn", f"--directory={root}", *options,
                stdin=asyncio.subprocess.DEVNULL, stdout=console, stderr=console,
            )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_S):
                while b"multi-user.target" not in (folder / "console").read_bytes():
                    assert process.returncode is None, (folder / "console").read_text(errors="replace")
                    await asyncio.sleep(0.2)
            yield Booted(process, root)
        finally:
            process.terminate()  # As a power button is pressed.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 30)
            if process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_machine_lives_under_systemd(tmp_path: Path) -> None:
    assert document()["cluster"] == SETTINGS["cluster"]
    async with booted(tmp_path) as machine:
        await deployed(machine)
        await a_node_joins_and_runs(machine)
        await webhooks_arrive(machine)
        await processes_end_and_come_back(machine)
        await machine.do("systemctl start dorm-backup")
        assert len(list((machine.root / "var/backups/dorm").glob("lab-*.dorm"))) == 1
        await machine.do("dorm log seal && dorm log rotate --keep 0s --keep-records 0")
        assert "/srv/archives/lab/" in await machine.do("dorm log show")
        # It finds its node by the unit, and nothing that is wrong.
        assert "0 things wrong" in await machine.do("dorm doctor")


async def deployed(machine: Booted) -> None:
    """As docs/operations/deployment.md has it."""
    await machine.do("ldconfig && cd /root && dorm deploy keys deploy.yaml lab")
    apply = machine.root / "root/lab/security/apply"
    apply.write_text(APPLY)
    said = await machine.do("cd /root && dorm deploy install deploy.yaml --machine n1 --keys lab")
    following = [line.strip() for line in said.partition("next:\n")[2].splitlines()]
    assert len(following) == 2
    for command in following:
        await machine.do(command.replace("enable --now", "enable --now --no-block").replace(" dorm-agent.service", ""))
    await machine.until("systemctl is-active dorm-nats", "active\n")
    # Masters and the API wait for their cluster, which does not count as a failure.
    await machine.until("journalctl -u dorm-master -o cat", "waiting for the log")
    await machine.do("cd /root && dorm deploy found deploy.yaml --keys lab && dorm context use lab")
    for unit in ("master", "api", "webhooks"):
        await machine.until(f"systemctl is-active dorm-{unit}", "active\n")
        assert "NRestarts=0" in await machine.do(f"systemctl show -p NRestarts dorm-{unit}")
    for name in (
        "etc/dorm/keys/accounts.conf",
        "etc/dorm/keys/server.key",
        "var/lib/dorm/master/seal.nk",
        WEBHOOKS_KEY,
    ):
        found = (machine.root / name).stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid != 0) == (0o600, True), name


async def a_node_joins_and_runs(machine: Booted) -> None:
    await machine.do("cd /root && (dorm node intro n1 --capacity cpu=1,memory=1GiB > intro 2>&1 &)")
    await machine.until("cat /root/intro", "fingerprint")
    await machine.do("cd /root && grep -m1 '^dorm1' intro > token && dorm node join token --data /var/lib/dorm/node")
    await machine.do("systemctl enable --now dorm-agent")
    await machine.do("dorm submit /root/app.yaml")
    await machine.until("dorm ps", "running")


async def webhooks_arrive(machine: Booted) -> None:
    """The admin's commands use the key file of `dorm deploy keys`, of which the unit has a copy."""
    (machine.root / "root/endpoint.py").write_text(ENDPOINT)
    await machine.do("cd /root && (python endpoint.py > arrived 2>&1 &)")
    await machine.do("dorm webhooks add pager http://127.0.0.1:8000/ --event node.lost")
    await machine.do("dorm webhooks test pager")
    await machine.do("systemctl restart dorm-webhooks && dorm webhooks test pager")
    arrived = (machine.root / "root/arrived").read_text()
    assert arrived.count("io.dorm.webhook.test_requested.v1") == 2, arrived
    assert (machine.root / WEBHOOKS_KEY).read_bytes() == (machine.root / "root/lab/security/webhooks.key").read_bytes()
    assert "1 webhook is delivered" in await machine.do("systemctl show -p StatusText dorm-webhooks")


async def processes_end_and_come_back(machine: Booted) -> None:
    container = await machine.do("pgrep -x sleep")
    await machine.do("systemctl restart dorm-agent")
    assert await machine.do("pgrep -x sleep") == container, "a container outlives its agent"
    await machine.do("kill -9 $(systemctl show -p MainPID --value dorm-master)")
    await machine.until("systemctl show -p NRestarts,ActiveState dorm-master", "NRestarts=1\nActiveState=active")
    await machine.do("systemctl restart dorm-nats")
    await machine.until("dorm masters", "leading")
    assert await machine.do("pgrep -x sleep") == container
    # Without its mount an agent does not start, and says what it lacks.
    await machine.do("cd /root && sed 's#^mount: none#mount: /srv/shared#' deploy.yaml > mounted.yaml")
    said = await machine.do("cd /root && dorm deploy install mounted.yaml --machine n1 --keys lab", fails=True)
    assert "[deploy.mount.missing]" in said
    await machine.do("cd /root && dorm deploy install mounted.yaml --machine n1 --keys lab --no-check")
    await machine.do("systemctl daemon-reload && systemctl restart dorm-agent", fails=True)
    assert "AssertPathIsMountPoint=/srv/shared was not met" in await machine.do("systemctl status dorm-agent || true")
    await machine.do("mount --bind /srv/shared /srv/shared && systemctl start dorm-agent")
    await machine.until("dorm nodes", "up")

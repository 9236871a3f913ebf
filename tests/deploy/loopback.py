"""A deployment on loopback: the files of `dorm deploy install` for three machines, each with a folder for a file system and an
address of its own, and what systemd would start of their units, started as the units say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from typing import TYPE_CHECKING, Any

import aiohttp
import yaml

from dorm.client.client import Client
from dorm.deploy import layout
from dorm.security.folder import KeyFolder
from events.nats.access import read_credentials
from events.nats.connection import Connection
from events.nats.streams import log_stream
from tests.deploy.made import PROGRAM
from tests.deploy.units import service
from tests.e2e.commands import REPOSITORY, done, dorm, running, until_printed

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator
    from pathlib import Path

CLUSTER = "lab"
MACHINES = {f"n{number}": f"127.0.0.{number}" for number in (1, 2, 3)}
UNITS = ("nats", "master", "api", "webhooks", "agent")
READY_S = 90.0


class Unit:
    """One service of one machine."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.root = root
        self.log = root / f"{name}.log"
        self.pid_file = root / f"{name}.pid"
        self.process: Process | None = None

    async def start(self) -> None:
        file = self.root / layout.UNITS.lstrip("/") / f"dorm-{self.name}.service"
        unit = service(relocated(file.read_text(), self.root))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DORM_", "DOCKER_"))}
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *unit.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**kept, "PYTHONPATH": str(REPOSITORY), **unit.environment},
                start_new_session=True,
            )
        self.pid_file.write_text(str(self.process.pid))

    async def stop(self) -> None:
        """As `systemctl stop`: the unit's signal to its main process, and its end."""
        if self.process is None or self.process.returncode is not None:
            return
        file = self.root / layout.UNITS.lstrip("/") / f"dorm-{self.name}.service"
        self.process.send_signal(signal.Signals[service(file.read_text()).kill_signal])
        await asyncio.wait_for(self.process.wait(), READY_S)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def kill(self) -> None:
        """`kill -9`."""
        assert self.process is not None
        self.process.kill()
        await self.process.wait()


def relocated(text: str, root: Path) -> str:
    """The text of a file for a machine whose file system is at `root`."""
    for place in (layout.CONFIGURATION, layout.DATA):
        text = text.replace(place, f"{root}{place}")
    return text


class Site:
    """All machines, and the admin's own files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.lab = folder / "lab"
        self.settings = folder / "deploy.yaml"
        self.shared = folder / "shared"
        self.backups = folder / "backups"
        self.ports = dict(
            zip(
                (
                    "clients",
                    "routes",
                    "monitor",
                    "api",
                    "master_metrics",
                    "agent_metrics",
                    "webhooks_metrics",
                ),
                _ports(7),
                strict=True,
            )
        )
        self.units: dict[tuple[str, str], Unit] = {}
        self.client: Client

    async def install(self) -> None:
        """Keys, settings, and the files of each machine."""
        for path in (self.home, self.shared, self.backups):
            path.mkdir()
        self.shared.chmod(0o777)
        document: dict[str, Any] = {
            "cluster": CLUSTER,
            "machines": MACHINES,
            "servers": list(MACHINES),
            "checkpoints": str(self.shared),
            "mount": "none",
            "program": PROGRAM,
            "store_limit": "4GiB",
            "api": ["n1"],
            "webhooks": {"machines": ["n1", "n2"], "allow": ["loopback"]},
            "ports": self.ports,
            "backup": {"machines": ["n1"], "folder": str(self.backups), "keep": 2},
            "nodes": {
                name: {
                    "runtime": "process",
                    "capacity": {"cpu": 1, "memory": "1GiB"},
                    "ports": f"2{number}000-2{number}999",
                }
                for number, name in enumerate(MACHINES)
            },
        }
        self.settings.write_text(yaml.safe_dump(document))
        await self.dorm("deploy", "keys", str(self.settings), str(self.lab), "--admin", "root")
        keys = KeyFolder(self.lab / "security")
        lines = ["#!/bin/sh", "set -e", 'cd "$(dirname "$0")"']
        for name in MACHINES:
            root = self.folder / name
            lines += [
                f"cp accounts.conf {root}{layout.KEYS}/accounts.conf",
                # The server reads it again, as the unit dorm-nats-reload.path has it.
                f"[ ! -e {root}/nats.pid ] || kill -HUP $(cat {root}/nats.pid) 2>/dev/null || true",
            ]
        keys.apply.write_text("\n".join([*lines, ""]))
        for name in MACHINES:
            await self.install_one(name)

    async def install_one(self, name: str) -> None:
        """The files of one machine, whose folders systemd-tmpfiles would make."""
        root = self.folder / name
        root.mkdir(exist_ok=True)
        words = (
            "deploy",
            "install",
            str(self.settings),
            "--machine",
            name,
            "--root",
            str(root),
            "--keys",
            str(self.lab),
        )
        await self.dorm(*words)
        for place in (
            layout.STORE,
            layout.MASTER,
            layout.API,
            layout.WEBHOOKS,
            layout.BACKUP,
            layout.NODE,
        ):
            (root / place.lstrip("/")).mkdir(parents=True, exist_ok=True)
        configuration = root / layout.NATS_CONFIGURATION.lstrip("/")
        configuration.write_text(relocated(configuration.read_text(), root))
        for unit in UNITS:
            if (root / layout.UNITS.lstrip("/") / f"dorm-{unit}.service").exists():
                self.units.setdefault((name, unit), Unit(unit, root))

    async def dorm(self, *words: str) -> str:
        """One command of the admin, which may say that it waits for the servers."""
        code, out, err = await dorm(self.home, *words, timeout=READY_S)
        assert code == 0, f"{words}: {code}\n{out}\n{err}"
        return out

    def of(self, unit: str) -> list[Unit]:
        return [one for (_, name), one in self.units.items() if name == unit]

    async def start(self, unit: str) -> None:
        for one in self.of(unit):
            await one.start()

    async def stop(self, unit: str) -> None:
        await asyncio.gather(*(one.stop() for one in self.of(unit)))

    async def healthy(self) -> None:
        """Return once every server says that all of its streams are up to date."""
        async with asyncio.timeout(READY_S), aiohttp.ClientSession() as session:
            for address in MACHINES.values():
                while not await self._healthy(session, address):  # noqa: ASYNC110 - only a server knows
                    await asyncio.sleep(0.2)

    async def _healthy(self, session: aiohttp.ClientSession, address: str) -> bool:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(f"http://{address}:{self.ports['monitor']}/healthz") as answer:
                return answer.status == 200
        return False

    async def join(self, name: str) -> None:
        """The machine's key, by a token of the admin's."""
        said = self.folder / f"intro-{name}"
        async with running(self.home, said, "node", "intro", name, "--ttl", "90s") as intro:
            text = await until_printed(said, "dorm1.", intro, timeout=READY_S)
            await until_printed(said, "fingerprint", intro)
            token = self.folder / "token"
            token.write_text(next(line for line in text.splitlines() if line.startswith("dorm1.")))
            await self.dorm("node", "join", str(token), "--data", f"{self.folder / name}{layout.NODE}")
            assert await asyncio.wait_for(intro.wait(), READY_S) == 0, said.read_text()

    async def back_up(self) -> str:
        """Run the unit of the backup; return its output."""
        unit = service(
            relocated((self.folder / f"n1{layout.UNITS}/dorm-backup.service").read_text(), self.folder / "n1")
        )
        # `--url` and so on are those of the unit; only the program is this one.
        return await done(self.home, *unit.command[1:], env=unit.environment)

    def stores(self) -> dict[str, Path]:
        """Where each server has its copy of the log."""
        return {
            name: self.folder / name / layout.STORE.lstrip("/") / "jetstream/LOG/streams" / log_stream(CLUSTER)
            for name in MACHINES
        }

    def wipe(self) -> None:
        """The servers' disks are lost."""
        for name in MACHINES:
            store = self.folder / name / layout.STORE.lstrip("/")
            shutil.rmtree(store)
            store.mkdir()

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        """A client of the admin."""
        own = read_credentials(self.lab / "security/root.json")
        connection = await Connection.open(own.url, CLUSTER, credentials=own, patient=True)
        async with Client(connection.log, connection.bus, CLUSTER, user="root", connection=connection) as client:
            yield client

    async def end(self) -> None:
        """Stop what runs; containers of agents end with the test's processes."""
        for one in self.units.values():
            if one.process is not None and one.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    one.process.kill()
                await one.process.wait()

    def said(self) -> str:
        """The end of each unit's log, for a test that fails."""
        return "\n".join(
            f"--- {name} {unit}\n{one.log.read_text(errors='replace')[-3000:]}"
            for (name, unit), one in self.units.items()
            if one.log.exists()
        )


def _ports(count: int) -> list[int]:
    """Ports that are free on all addresses."""
    with contextlib.ExitStack() as stack:
        probes = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket())
            probe.bind(("0.0.0.0", 0))
            probes.append(int(probe.getsockname()[1]))
        return probes

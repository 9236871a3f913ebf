"""A NATS server with a cluster's accounts, and connections of attackers: clients that send whatever they like."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import nats

from dorm.local.nats_server import find_binary
from dorm.security.folder import Key, accounts
from events.nats.access import Credentials, new_seed, public_key
from events.nats.connection import Connection
from tests.lab.machines.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from pathlib import Path

    from nats.aio.client import Client

CLUSTER = "lab"
EVERYONE = {
    "root": "admin",
    "master": "master",
    "api": "api",
    "alice": "user",
    "bob": "user",
    "rita": "reader",
    "webhooks": "reader",
    "olga": "operator",
    "node-1": "node",
    "node-2": "node",
    "node-3": "joining",
}
"""Identities with their roles."""
LOG, LEASE, SNAPSHOTS = f"DORM-{CLUSTER}", f"KV_DORM_leadership-{CLUSTER}", f"DORM_snapshots-{CLUSTER}"
LEASE_KEY = f"$KV.DORM_leadership-{CLUSTER}.master"
ROUND = f"dorm.{CLUSTER}.round.master"
VERBS = [
    "INFO", "STREAM.NAMES", "STREAM.LIST", "CONSUMER.NAMES.{log}", "CONSUMER.LIST.{log}", "STREAM.INFO.{log}",
    "STREAM.DELETE.{log}", "STREAM.PURGE.{log}", "STREAM.UPDATE.{log}", "STREAM.CREATE.theirs", "STREAM.MSG.GET.{log}",
    "STREAM.MSG.DELETE.{log}", "STREAM.SNAPSHOT.{log}", "STREAM.RESTORE.theirs", "STREAM.LEADER.STEPDOWN.{log}",
    "STREAM.PEER.REMOVE.{log}", "STREAM.DELETE.{lease}", "STREAM.PURGE.{lease}", "STREAM.MSG.DELETE.{lease}",
    "STREAM.PURGE.{snapshots}", "CONSUMER.INFO.{log}.theirs", "CONSUMER.CREATE.{log}", "CONSUMER.CREATE.{log}.theirs",
    "CONSUMER.CREATE.{lease}.theirs", "CONSUMER.DURABLE.CREATE.{log}.theirs", "CONSUMER.MSG.NEXT.{log}.theirs",
    "CONSUMER.LEADER.STEPDOWN.{log}.theirs", "CONSUMER.PAUSE.{log}.theirs", "DIRECT.GET.{log}", "DIRECT.GET.{lease}",
    "DIRECT.GET.{snapshots}.dorm.lab.snapshot.index.all", "META.LEADER.STEPDOWN", "ACCOUNT.PURGE.LOG",
]  # fmt: skip
"""Questions to JetStream that read, change or delete streams and consumers."""
BODIES: dict[str, dict[str, Any]] = {
    "STREAM.CREATE": {"name": "theirs", "subjects": ["theirs.>"]},
    "STREAM.UPDATE": {"name": LOG, "subjects": [f"dorm.{CLUSTER}.*.*"], "max_msgs": 1},
    "STREAM.MSG.GET": {"seq": 1},
    "STREAM.MSG.DELETE": {"seq": 1},
    "CONSUMER": {"stream_name": LOG, "config": {"name": "theirs", "durable_name": "theirs", "ack_policy": "explicit"}},
    "CONSUMER.MSG": {"batch": 10, "expires": 100_000_000},
    "DIRECT.GET": {"seq": 1},
}
"""A valid body, by the start of the verb."""
REPLIES = [
    ROUND, f"dorm.{CLUSTER}.NodeDrainRequested.root", f"$JS.API.STREAM.DELETE.{LOG}", LEASE_KEY,
    f"dorm.{CLUSTER}.snapshot.index.all", "_INBOX.user.bob.x",
]  # fmt: skip
"""Reply subjects on which an answer would do harm."""


class Guarded:
    """The server, and everyone's credentials."""

    def __init__(self, home: Path) -> None:
        self._home = home
        port = free_port()
        self.url = f"nats://127.0.0.1:{port}"
        self.credentials = {
            name: Credentials(CLUSTER, self.url, name, role, new_seed()) for name, role in EVERYONE.items()
        }
        home.mkdir(parents=True, exist_ok=True)
        self._configuration = home / "nats.conf"
        self._configuration.write_text(
            f"port: {port}\nhost: 127.0.0.1\nmax_payload: 8MB\n"
            f'jetstream {{ store_dir: {json.dumps(str(home / "js"))} }}\ninclude "accounts.conf"\n'
        )
        self.write()
        self._process: subprocess.Popen[bytes] | None = None

    def write(self, without: Collection[str] = ()) -> None:
        keys = [Key(one.name, one.role, public_key(one.seed)) for one in self.credentials.values()]
        text = accounts(CLUSTER, [key for key in keys if key.name not in without])
        (self._home / "accounts.conf").write_text(text)

    async def start(self) -> None:
        await asyncio.to_thread(self._launch)
        root = self.credentials["root"]
        connection = await Connection.open(self.url, CLUSTER, create=True, patient=True, credentials=root)
        await connection.comparisons("any", "root").prepare()
        await connection.close()

    def _launch(self) -> None:
        with (self._home / "log").open("wb") as log:
            self._process = subprocess.Popen([find_binary(), "-c", str(self._configuration)], stdout=log, stderr=log)

    def reload(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    @contextlib.asynccontextmanager
    async def connection(self, name: str) -> AsyncIterator[Connection]:
        """Yield a connection as the product makes it."""
        one = await Connection.open(self.url, CLUSTER, credentials=self.credentials[name])
        try:
            yield one
        finally:
            await one.close()

    @contextlib.asynccontextmanager
    async def attacker(self, name: str) -> AsyncIterator[Attacker]:
        """Yield a client with this identity's key, and no manners."""
        said = self.credentials[name]
        one = Attacker()
        client = await nats.connect(
            self.url,
            nkeys_seed_str=said.seed.decode(),
            inbox_prefix=said.inbox,
            error_cb=one.note,
            closed_cb=one.end,
            allow_reconnect=False,
        )
        one.client = client
        try:
            yield one
        finally:
            await client.close()


class Attacker:
    """A connection, and what the server forbade it."""

    def __init__(self) -> None:
        self.client: Client
        self.forbidden: list[str] = []
        """Subjects, in lower case, as nats-py reports them."""
        self.closed = asyncio.Event()

    async def note(self, error: Exception) -> None:
        words = str(error).split('"')
        if "permissions violation" in words[0]:
            self.forbidden.append(words[1])

    async def end(self) -> None:
        self.closed.set()

    async def taken(self) -> None:
        """Wait until the server has taken, or forbidden, all that was sent."""
        await self.client.flush()
        await self.client.flush()

    async def api(self, what: str, question: dict[str, Any]) -> dict[str, Any]:
        """Ask JetStream, below any prefix.  Raises TimeoutError if the server forbids it."""
        answer = await self.client.request(what, json.dumps(question).encode(), timeout=2)
        found: dict[str, Any] = json.loads(answer.data)
        return found


async def witness(root: Attacker) -> dict[str, Any]:
    """Return all that an attack could change: each stream's configuration and state, the lease, and the index of snapshots."""
    found: dict[str, Any] = {}
    names = (await root.api("$JS.API.STREAM.NAMES", {}))["streams"]
    for name in sorted(names):
        info = await root.api(f"$JS.API.STREAM.INFO.{name}", {"subjects_filter": ">"})
        state = {key: info["state"].get(key) for key in ("messages", "first_seq", "last_seq", "subjects")}
        found[name] = (info["config"], state)
    return found


async def consumers(root: Attacker) -> list[str]:
    found = await root.api(f"$JS.API.CONSUMER.NAMES.DORM-{CLUSTER}", {})
    return sorted(found["consumers"] or [])


def body_of(verb: str) -> bytes:
    """Return a body that the server takes for this verb."""
    found = [body for prefix, body in BODIES.items() if verb.startswith(prefix)]
    return json.dumps(found[-1] if found else {}).encode()

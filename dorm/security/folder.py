"""The accounts, permissions and limits of a cluster, as configuration of a NATS server.

Pure: the identities on the log (`events.identities`) and the public keys of the cluster's own processes in, text out.
The file can therefore be written again from the log at any time, and the permissions at a moment follow from the log's state
at that moment.

A cluster's folder of keys, on the machine of its admin and its NATS server (0700; each file 0600).

    ca.pem, ca.key          the cluster's certificate authority
    server.pem, server.key  certificate of the NATS server; of several, server-MACHINE.pem and .key
    accounts.conf           who may do what, for the server's configuration
    apply                   an optional program of the admin, run after a change of accounts.conf, that copies it elsewhere
    <admin>.json, .nk       credentials of the admin who made the cluster, and their key alone, as other NATS clients read it
    master.json, api.json   credentials of the cluster's own processes
    seal.nk                 key with which masters seal the log and sign rounds
    joining.json            keys of tokens of nodes that have not joined yet
    restorer.json           credentials with which a backup is being restored

The identities themselves are on the log; `accounts.conf` is written from there."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import msgspec
import psutil

from dorm.security.files import SecurityError, private_folder, write_private
from dorm.security.quoting import quoted, quoted_list
from dorm.security.roles import LOG, NODES, USERS, Services, access, account_of, exported
from events.nats.access import (
    IMPORTED_API,
    OWN_API,
    RESTORER,
    Credentials,
    CredentialsFile,
    largest_message,
    new_seed,
    public_key,
    read_credentials,
    read_secret,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from events.identities import Identities


# --- configuration ----------------------------------------------------------------------------------------------------

_LIMITS = {
    USERS: f"max_payload: {largest_message('user')}, max_connections: 1000, max_subscriptions: 50000",
    NODES: "max_connections: 20000, max_subscriptions: 200000",
}
"""Keeps people from using up the connections of nodes and masters."""


class Key(msgspec.Struct, frozen=True):
    """Someone who may connect."""

    name: str
    role: str
    public_key: str
    tenant: str = ""
    """Tenant of a user; "" for the tenant named like the user."""


def known_keys(known: Identities) -> list[Key]:
    """Return the users and nodes that the log knows with a key."""
    users = [Key(user.name, user.role, user.public_key, user.tenant) for user in known.users.values()]
    nodes = [Key(node.node, "node", node.public_key) for node in known.nodes.values()]
    return [key for key in (*users, *nodes) if key.public_key]


def accounts(cluster: str, keys: Iterable[Key]) -> str:
    """Return the configuration's part about accounts.  Of two identities with one key, which a server refuses, the first one
    counts."""
    keys_of: dict[str, list[Key]] = {LOG: [], USERS: [], NODES: []}
    taken: set[str] = set()
    for key in sorted(keys, key=lambda key: (account_of(key.role), key.role, key.name)):
        if key.public_key not in taken:
            taken.add(key.public_key)
            keys_of[account_of(key.role)].append(key)
    exports = exported(cluster)
    blocks = [_account(cluster, account, keys_of[account], exports) for account in (LOG, USERS, NODES)]
    return (
        f"# Who may do what on cluster {cluster}, as its log says: written by `dorm init`, `dorm user` and `dorm node`.\n"
        "# The next one of them overwrites a change by hand.\n"
        "accounts {\n" + "".join(blocks) + "}\n"
    )


def _account(cluster: str, account: str, keys: list[Key], exports: Mapping[str, Mapping[str, Services]]) -> str:
    lines = ["jetstream: enabled"] if account == LOG else []
    if account in _LIMITS:
        lines.append(f"limits {{ {_LIMITS[account]} }}")
    lines.append(_list("users", [_user(cluster, key) for key in keys]))
    if account in exports:
        lines.append(_list("exports", _exports(exports[account])))
    imports = [
        _import(exporter, subject)
        for exporter, importers in exports.items()
        if account in importers
        for subject in (*importers[account].single, *importers[account].many)
    ]
    if imports:
        lines.append(_list("imports", imports))
    return f"  {account} {{\n" + "".join(f"    {line}\n" for line in lines) + "  }\n"


def _user(cluster: str, key: Key) -> str:
    may = access(cluster, key.role, key.name, key.tenant)
    return (
        f"{{ nkey: {key.public_key}, permissions: {{ # {key.role} {key.name}\n"
        f"        publish: {{ allow: {quoted_list(may.publish)} }}\n"
        f"        subscribe: {{ allow: {quoted_list(may.subscribe)} }} }} }}"
    )


def _exports(importers: Mapping[str, Services]) -> list[str]:
    """Return each service once, with all accounts that import it."""
    accounts_of: dict[tuple[str, bool], list[str]] = {}
    for account, services in importers.items():
        for many, subjects in ((False, services.single), (True, services.many)):
            for subject in subjects:
                accounts_of.setdefault((subject, many), []).append(account)
    return [
        f"{{ service: {quoted(subject)}, {'response_type: stream, ' if many else ''}accounts: {quoted_list(accounts)} }}"
        for (subject, many), accounts in accounts_of.items()
    ]


def _import(exporter: str, subject: str) -> str:
    to = f", to: {quoted(subject.replace(OWN_API, IMPORTED_API, 1))}" if subject.startswith(OWN_API) else ""
    return f"{{ service: {{ account: {exporter}, subject: {quoted(subject)} }}{to} }}"


def _list(name: str, items: list[str]) -> str:
    return f"{name}: [\n" + "".join(f"      {item}\n" for item in items) + "    ]"


# --- folder -----------------------------------------------------------------------------------------------------------

PROCESSES = ("master", "api")
"""Identities of the cluster's own processes: they are in no event, because the only records by them are rounds, which are
signed."""


_JOINING = "joining.json"
_APPLY_S = 120.0


class Joining(msgspec.Struct, frozen=True):
    """The key of an unused token."""

    public_key: str
    expires_at: int


class KeyFolder:
    """The folder of one cluster."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.accounts = path / "accounts.conf"
        self.apply = path / "apply"
        self.seal_key = path / "seal.nk"

    @property
    def exists(self) -> bool:
        return self.accounts.exists()

    # --- certificates ---------------------------------------------------------------------------------------------------

    def make_certificates(self, cluster: str, hosts: Sequence[str], now: int) -> None:
        """Create the authority if there is none, and a new certificate for the server. Raises SecurityError."""
        self.make_authority(cluster, now)
        self._make_server_certificate(self.path / "server.pem", self.path / "server.key", hosts, now)

    def make_authority(self, cluster: str, now: int) -> None:
        """Create the authority if there is none. Raises SecurityError."""
        # Most clusters on one machine do not need it, and importing it takes long.
        from dorm.security.certificates import new_authority

        private_folder(self.path)
        if not (self.path / "ca.key").exists():
            certificate, secret = new_authority(cluster, now)
            write_private(self.path / "ca.key", secret)
            write_private(self.path / "ca.pem", certificate)

    def certificate_of(self, machine: str) -> tuple[Path, Path]:
        """Return where a server's certificate and its key are, of servers on machines of their own."""
        return self.path / f"server-{machine}.pem", self.path / f"server-{machine}.key"

    def make_machine_certificate(self, machine: str, hosts: Sequence[str], now: int) -> None:
        """Make a new certificate for the server on one machine, with which it also connects to the other servers.  Raises
        SecurityError, CredentialsError."""
        certificate, key = self.certificate_of(machine)
        self._make_server_certificate(certificate, key, hosts, now, routes=True)

    def _make_server_certificate(
        self, certificate: Path, key: Path, hosts: Sequence[str], now: int, *, routes: bool = False
    ) -> None:
        from dorm.security.certificates import server_certificate

        authority = read_secret(self.path / "ca.pem", "the authority")
        authority_key = read_secret(self.path / "ca.key", "the authority's key")
        made, secret = server_certificate(authority, authority_key, hosts, now, routes=routes)
        write_private(key, secret)
        write_private(certificate, made)

    @property
    def ca(self) -> str:
        """The authority's certificate, "" without TLS."""
        file = self.path / "ca.pem"
        return file.read_text() if file.exists() else ""

    # --- credentials ----------------------------------------------------------------------------------------------------

    def file_of(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def admin(self) -> str:
        """Return the name of the admin who made the cluster, "" if there is none yet.  Raises CredentialsError."""
        for file in sorted(self.path.glob("*.json")):
            if file.name != _JOINING and (credentials := read_credentials(file)).role == "admin":
                return credentials.name
        return ""

    def credentials(self, name: str) -> Credentials:
        """Raises CredentialsError."""
        return read_credentials(self.file_of(name))

    def make_credentials(self, cluster: str, url: str, name: str, role: str, *, alone: bool = False) -> Credentials:
        """Return the identity's credentials, with a new key if it has none.  `alone`: the key is also in a file with
        nothing else, as other NATS clients read it (`nats --nkey FILE`).  Raises SecurityError, CredentialsError."""
        private_folder(self.path)
        file = self.file_of(name)
        seed = read_credentials(file).seed if file.exists() else new_seed()
        made = Credentials(cluster, url, name, role, seed, self.ca)
        if not file.exists() or read_credentials(file) != made:
            save_credentials(file, made)
        key = file.with_suffix(".nk")
        if alone and not (key.exists() and read_secret(key, "the key").strip() == seed):
            write_private(key, seed + b"\n")
        return made

    # --- the server's configuration -------------------------------------------------------------------------------------

    def server_settings(self) -> str:
        """Return what the configuration of the NATS server has in addition to its own settings."""
        lines = [
            f"include {quoted(os.path.join(self.path.name, self.accounts.name))}",
            f"pid_file: {quoted(self.path.parent / 'nats.pid')}",
        ]
        if self.ca:
            certificate, key = (quoted(self.path / name) for name in ("server.pem", "server.key"))
            lines.append(f"tls {{ cert_file: {certificate}, key_file: {key}, timeout: 3, min_version: '1.2' }}")
        return "".join(f"{line}\n" for line in lines)

    def write_accounts(self, cluster: str, keys: Sequence[Key], now: int) -> None:
        """Write who may connect: those given, the cluster's own processes, and nodes that may join.  Raises SecurityError,
        CredentialsError."""
        write_private(self.accounts, self._configuration(cluster, keys, now))

    def _configuration(self, cluster: str, keys: Sequence[Key], now: int) -> bytes:
        present = [*PROCESSES, *([RESTORER] if self.file_of(RESTORER).exists() else [])]
        own = [Key(name, name, public_key(self.credentials(name).seed)) for name in present]
        joining = [Key(node, "joining", joiner.public_key) for node, joiner in self.joining(now).items()]
        return accounts(cluster, [*own, *keys, *joining]).encode()

    def matches(self, cluster: str, known: Identities, now: int) -> bool:
        """Return whether the configuration agrees with the log.  Raises SecurityError, CredentialsError."""
        written = self.accounts.read_bytes() if self.exists else b""
        return written == self._configuration(cluster, known_keys(known), now)

    def write_known(self, cluster: str, known: Identities, now: int) -> None:
        self.write_accounts(cluster, known_keys(known), now)

    def reload(self) -> bool:
        """Make the servers reload the accounts: the one of this folder, if it runs on this machine, otherwise those
        to which the admin's own program copies the file. Return whether any server was asked to.  Raises SecurityError if
        that program fails."""
        if self.apply.exists():
            self._run_apply()
            return True
        try:
            pid = int((self.path.parent / "nats.pid").read_text())
            if "nats-server" not in psutil.Process(pid).name():
                return False
            os.kill(pid, signal.SIGHUP)
        except (OSError, ValueError, psutil.Error):
            return False
        return True

    def _run_apply(self) -> None:
        try:
            done = subprocess.run(
                [self.apply],
                cwd=self.path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_APPLY_S,
                check=False,
            )
            output = done.stderr.decode(errors="replace").strip().splitlines()
            why = "" if done.returncode == 0 else (output[-1] if output else f"exit code {done.returncode}")
        except subprocess.TimeoutExpired:
            why = f"it does not end within {_APPLY_S:.0f} s"
        except OSError as error:
            why = str(error.strerror)
        if why:
            raise SecurityError(
                f"the log has the change, but {self.apply} failed to bring it to the NATS servers ({why[:500]}); repair that, "
                "and run `dorm user list --apply`",
                code="security.apply_failed",
            )

    # --- nodes that may join --------------------------------------------------------------------------------------------

    def joining(self, now: int) -> dict[str, Joining]:
        """Return the keys of tokens that are valid at this time, by node.  Raises SecurityError."""
        file = self.path / _JOINING
        try:
            stored = msgspec.json.decode(file.read_bytes(), type=dict[str, Joining])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            raise SecurityError(
                f"{file} can't be read; remove it, and introduce those nodes again", code="security.unreadable"
            ) from None
        return {node: joiner for node, joiner in stored.items() if joiner.expires_at > now}

    def set_joining(self, node: str, joining: Joining | None, now: int) -> None:
        """Allow or forbid a node to join.  Raises SecurityError."""
        joiners = {name: other for name, other in self.joining(now).items() if name != node}
        if joining is not None:
            joiners[node] = joining
        write_private(self.path / _JOINING, msgspec.json.encode(joiners))


def save_credentials(file: Path, credentials: Credentials, seed: str = "") -> None:
    """Write a credentials file; `seed` is a reference to the key, if it is elsewhere.  Raises SecurityError."""
    content = CredentialsFile(
        cluster=credentials.cluster,
        url=credentials.url,
        name=credentials.name,
        role=credentials.role,
        seed=seed or credentials.seed.decode(),
        ca=credentials.ca,
    )
    write_private(file, msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")

"""A cluster's folder of keys, on the machine of its admin and its NATS server (0700; each file 0600).

    ca.pem, ca.key          the cluster's certificate authority
    server.pem, server.key  certificate of the NATS server
    accounts.conf           who may do what, for the server's configuration
    <admin>.json, .nk       credentials of the admin who made the cluster, and their key alone, as other NATS clients read it
    master.json, api.json   credentials of the cluster's own processes
    seal.nk                 key with which masters seal the log and sign rounds
    joining.json            keys of tokens of nodes that have not joined yet

The identities themselves are on the log; `accounts.conf` is written from there.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import msgspec
import psutil

from dorm.security.configuration import Key, accounts, known_keys
from dorm.security.files import SecurityError, private_folder, write_private
from events.nats.access.credentials import (
    Credentials,
    CredentialsFile,
    new_seed,
    public_key,
    read_credentials,
    read_secret,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from events.identities import Identities

PROCESSES = ("master", "api")
"""Identities of the cluster's own processes: they are in no event, since nothing on the log has them as its author but rounds,
which are signed."""


_JOINING = "joining.json"


class Joining(msgspec.Struct, frozen=True):
    """The key of a token that was not used yet."""

    public_key: str
    expires_at: int


class KeyFolder:
    """The folder of one cluster."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.accounts = path / "accounts.conf"
        self.seal_key = path / "seal.nk"

    @property
    def exists(self) -> bool:
        return self.accounts.exists()

    # --- certificates ---------------------------------------------------------------------------------------------------

    def make_certificates(self, cluster: str, hosts: Sequence[str], now: int) -> None:
        """Make the authority where there is none, and a new certificate for the server.  Raises SecurityError."""
        # Most clusters on one machine have no use for it, and it takes long to import.
        from dorm.security.certificates import new_authority, server_certificate

        authority, key = self.path / "ca.pem", self.path / "ca.key"
        private_folder(self.path)
        if not key.exists():
            certificate, secret = new_authority(cluster, now)
            write_private(key, secret)
            write_private(authority, certificate)
        made, secret = server_certificate(
            read_secret(authority, "the authority"), read_secret(key, "the authority's key"), hosts, now
        )
        write_private(self.path / "server.key", secret)
        write_private(self.path / "server.pem", made)

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
            if file.name != _JOINING and (found := read_credentials(file)).role == "admin":
                return found.name
        return ""

    def credentials(self, name: str) -> Credentials:
        """Raises CredentialsError."""
        return read_credentials(self.file_of(name))

    def make_credentials(self, cluster: str, url: str, name: str, role: str, *, alone: bool = False) -> Credentials:
        """Return the identity's credentials, with a new key where it has none.  `alone`: the key is also in a file with
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
        """Return what the configuration of the NATS server has beside its own settings."""
        lines = [
            f"include {_quoted(os.path.join(self.path.name, self.accounts.name))}",
            f"pid_file: {_quoted(str(self.path.parent / 'nats.pid'))}",
        ]
        if self.ca:
            certificate, key = (_quoted(str(self.path / name)) for name in ("server.pem", "server.key"))
            lines.append(f"tls {{ cert_file: {certificate}, key_file: {key}, timeout: 3, min_version: '1.2' }}")
        return "".join(f"{line}\n" for line in lines)

    def write_accounts(self, cluster: str, keys: Sequence[Key], now: int) -> None:
        """Write who may connect: those given, the cluster's own processes, and nodes that may join.  Raises SecurityError,
        CredentialsError."""
        write_private(self.accounts, self._configuration(cluster, keys, now))

    def _configuration(self, cluster: str, keys: Sequence[Key], now: int) -> bytes:
        own = [Key(name, name, public_key(self.credentials(name).seed)) for name in PROCESSES]
        joining = [Key(node, "joining", one.public_key) for node, one in self.joining(now).items()]
        return accounts(cluster, [*own, *keys, *joining]).encode()

    def says(self, cluster: str, known: Identities, now: int) -> bool:
        """Return whether the configuration is what the log says.  Raises SecurityError, CredentialsError."""
        written = self.accounts.read_bytes() if self.exists else b""
        return written == self._configuration(cluster, known_keys(known), now)

    def write_known(self, cluster: str, known: Identities, now: int) -> None:
        self.write_accounts(cluster, known_keys(known), now)

    def reload(self) -> bool:
        """Have the server of this folder read its configuration again; return whether it runs on this machine."""
        try:
            pid = int((self.path.parent / "nats.pid").read_text())
            if "nats-server" not in psutil.Process(pid).name():
                return False
            os.kill(pid, signal.SIGHUP)
        except (OSError, ValueError, psutil.Error):
            return False
        return True

    # --- nodes that may join --------------------------------------------------------------------------------------------

    def joining(self, now: int) -> dict[str, Joining]:
        """Return the keys of tokens that are good at this time, by node.  Raises SecurityError."""
        file = self.path / _JOINING
        try:
            found = msgspec.json.decode(file.read_bytes(), type=dict[str, Joining])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            raise SecurityError(
                f"{file} can't be read; remove it, and introduce those nodes again", code="security.unreadable"
            ) from None
        return {node: one for node, one in found.items() if one.expires_at > now}

    def set_joining(self, node: str, joining: Joining | None, now: int) -> None:
        """Let a node join, or no longer.  Raises SecurityError."""
        found = {name: one for name, one in self.joining(now).items() if name != node}
        if joining is not None:
            found[node] = joining
        write_private(self.path / _JOINING, msgspec.json.encode(found))


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


def _quoted(path: str) -> str:
    return msgspec.json.encode(path).decode()

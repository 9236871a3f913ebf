"""Keys and certificates of a cluster on machines of its own, in its admin's folder, and each machine's part of them.

A machine gets what its parts need and no more.  The authority's key and the admin's credentials stay where they are.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dorm.deploy import layout
from dorm.deploy.rendering import File, parts
from dorm.deploy.settings import DeploymentError
from dorm.local.founding import found, make_keys
from dorm.security.files import write_private
from dorm.security.roles import BACKUP
from events.identities import DELIVERER
from events.kinds import UserAdded
from events.nats.access import CredentialsError, public_key, read_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from dorm.deploy.settings import Deployment
    from dorm.security.folder import KeyFolder
    from events.nats.access import Credentials

_RENEW = timedelta(days=90)
"""A certificate is renewed this long before it ends."""
_SECRET = 0o600


def prepare(settings: Deployment, keys: KeyFolder, admin: str, now: int) -> list[str]:
    """Make what is missing of the cluster's keys; return the machines that got a new certificate.  `now` is UTC ns.  Raises
    SecurityError, CredentialsError, KeyFileError, WebhookKeyError."""
    keys.make_authority(settings.cluster, now)
    renewed = []
    for machine in dict.fromkeys((*settings.servers, *settings.api)):
        hosts = [settings.machines[machine], machine, "localhost", "127.0.0.1"]
        if ":" in settings.machines[machine]:
            hosts.append("::1")
        if not _good(keys, machine, hosts, now):
            keys.make_machine_certificate(machine, hosts, now)
            renewed.append(machine)
    if settings.webhooks.machines:
        from dorm.webhooks.keys import open_keys

        open_keys(keys.path / layout.WEBHOOKS_KEY, settings.cluster)
    make_keys(keys, settings.cluster, settings.url(), admin, (), now, readers=_readers(settings))
    return renewed


def _readers(settings: Deployment) -> list[str]:
    """Return the readers that are not people."""
    return [BACKUP, *([DELIVERER] if settings.webhooks.machines else [])]


def _good(keys: KeyFolder, machine: str, hosts: Iterable[str], now: int) -> bool:
    """Return whether the machine's certificate names it, is of this authority, and will not end soon."""
    from cryptography import x509

    try:
        authority = x509.load_pem_x509_certificate(keys.ca.encode())
        certificate = x509.load_pem_x509_certificate(read_secret(keys.certificate_of(machine)[0], "a certificate"))
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (CredentialsError, ValueError, x509.ExtensionNotFound):
        return False
    there = {str(name.value) for name in named}
    soon = datetime.fromtimestamp(now / 1e9, UTC) + _RENEW
    return certificate.issuer == authority.subject and set(hosts) <= there and certificate.not_valid_after_utc > soon


async def enable(settings: Deployment, keys: KeyFolder, *, clock: Callable[[], int]) -> Credentials:
    """Make the streams on servers that run, and have the log know the cluster's first admin and the users of its backups
    and webhooks; return the admin's credentials.  Once more changes nothing.  Raises SecurityError, CredentialsError, and
    the log's errors."""
    own = keys.credentials(keys.admin())
    readers = [
        UserAdded(name=reader, role="reader", public_key=public_key(keys.credentials(reader).seed))
        for reader in _readers(settings)
    ]
    await found(keys, own, settings.url(), (), clock=clock, users=readers)
    return own


def keys_of(settings: Deployment, machine: str, keys: KeyFolder) -> list[File]:
    """Return the keys of a machine as files.  Raises DeploymentError, CredentialsError."""
    if not keys.exists:
        raise DeploymentError(
            f"{keys.path} holds no keys of a cluster; `dorm deploy keys` makes them, and --keys names their folder",
            code="deploy.keys.missing",
        )
    return [File(path, _read(keys, name), _SECRET) for path, name in _wanted(settings, machine, keys)]


def _read(keys: KeyFolder, name: str) -> bytes:
    if name != keys.accounts.name:
        return read_secret(keys.path / name, "a key of the cluster")
    try:
        return keys.accounts.read_bytes()  # Of any size: it has some lines for each node.
    except OSError as error:
        raise DeploymentError(f"{keys.accounts}: {error.strerror}", code="deploy.keys.missing") from None


def _wanted(settings: Deployment, machine: str, keys: KeyFolder) -> Iterator[tuple[str, str]]:
    """Yield each key's path on the machine, and its name in the folder of keys."""
    own = {path.name.replace(f"-{machine}", ""): path.name for path in keys.certificate_of(machine)}
    for part in parts(settings, machine):
        folder, names = layout.SECRETS.get(part.name, ("", ()))
        for name in names:
            yield f"{folder}/{name}", own.get(name, name)


def write_apply(settings: Deployment, keys: KeyFolder) -> bool:
    """Write the program that brings changed accounts to the servers, unless there is one; return whether it was written."""
    if keys.apply.exists():
        return False
    lines = [
        "#!/bin/sh",
        "# `dorm user` and `dorm node` run this after each change of accounts.conf, so that every NATS server reads it.",
        "# It is yours to change: any way of copying a file to the servers will do.",
        "set -e",
        'cd "$(dirname "$0")"',
        *(
            f"scp -q accounts.conf root@{settings.address(server)}:{layout.KEYS}/accounts.conf"
            for server in settings.servers
        ),
    ]
    write_private(keys.apply, "\n".join([*lines, ""]).encode())
    keys.apply.chmod(0o700)
    return True

"""Who a connection to NATS is, and what its messages are called.

*Addresses* name one server or several, and are checked before anything is sent.

*Names* are shared by a server's configuration and its clients.  The log, masters and admins are in one NATS account;
users and nodes have an account each, which imports single services of it.  An importing account has no JetStream of
its own, so the API has another prefix there: `$JS.API` would be the account's own.  Each identity receives answers
below a prefix that nobody else may subscribe to.  What each role may do is data of `dorm.security`.

*Credentials* say which identity a connection has, and hold the key that proves it.  A credentials file is JSON and
complete in itself, so that handing over one file hands over access:

    {"cluster": "lab", "url": "tls://10.0.0.1:4222", "name": "alice", "role": "user", "seed": "SU…", "ca": "-----BEGIN …"}

`seed` is the seed of an nkey, or a reference to one: `env:NAME` for an environment variable, `file:PATH` for a file,
relative to the credentials file.  A file that others may read is refused, as ssh refuses such keys.

    CredentialsError    the file can't be read, is open to others, or holds no usable key; the message never holds any of it

*Ids of messages* let a server drop duplicates, and nobody else can know them in advance.  A stream compares the ids of
all its messages.  A stranger could use up an id that follows from the published content before its owner needs it: the
server would then acknowledge the owner's message as a repeat, and store nothing.  `events.appending` notices that and
takes another id; a keyed id cannot be taken in the first place.  It still follows from the event alone, so that a
publisher that sends again after a crash sends the same id.
"""

from __future__ import annotations

import hmac
import os
import re
import ssl
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import nkeys

from events.addresses import shown
from events.errors import DormError
from events.limits import LEAST_MAX_PAYLOAD
from events.log.records import LogRefused

if TYPE_CHECKING:
    from pathlib import Path


# --- addresses --------------------------------------------------------------------------------------------------------


def servers_of(url: str) -> list[str]:
    """Return the addresses of a list with commas between."""
    return [part.strip() for part in url.split(",")]


def check_address(url: str, *, encrypted: bool = False) -> None:
    """Raises LogRefused if this is not an address of a server, or one without the encryption that is demanded."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        valid = parts.scheme in ("nats", "tls", "ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise LogRefused(
            f"{shown(url)[:200]!r} is not the address of a NATS server; write nats://HOST:4222",
            code="server.address.malformed",
        )
    if encrypted and url.startswith("ws:"):
        raise LogRefused(
            f"{shown(url)} is not encrypted, which these credentials demand; use tls:// or wss://",
            code="log.server_not_trusted",
        )


# --- names ------------------------------------------------------------------------------------------------------------

OWN_API = "$JS.API"
IMPORTED_API = "DORMJS"
ADMIN, MASTER, RESTORER = "admin", "master", "restorer"
_WITH_THE_LOG = (ADMIN, MASTER, RESTORER)
_PEOPLE = ("reader", "user", "operator")
_LARGEST_OF_PEOPLE = LEAST_MAX_PAYLOAD


def in_log_account(role: str) -> bool:
    """Return whether identities of this role are in the account that holds the log."""
    return role in _WITH_THE_LOG


def api_prefix(role: str) -> str:
    """Return the prefix of JetStream's API for this role."""
    return OWN_API if in_log_account(role) else IMPORTED_API


def is_person(role: str) -> bool:
    """Return whether the role is one of people who are not admins."""
    return role in _PEOPLE


def inbox_prefix(role: str, name: str) -> str:
    """Return the prefix of the subjects on which an identity receives answers.  People's roles share one, so that a changed
    role keeps its inboxes."""
    return f"_INBOX.{'user' if is_person(role) else role}.{name}"


def largest_message(role: str) -> int | None:
    """Return the size of the largest message that the server accepts from this role, in bytes; None for the general
    limit."""
    return _LARGEST_OF_PEOPLE if is_person(role) or role == "api" else None


def enrollment(cluster: str, node: str) -> str:
    """Return the subject on which a new node presents its key."""
    return f"dorm.{cluster}.enroll.{node}.key"


# --- credentials ------------------------------------------------------------------------------------------------------

_LARGEST = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9_@+=-]{1,64}")


class CredentialsError(DormError):
    """The credentials can't be used."""

    code = "credentials.unusable"


class CredentialsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a credentials file holds."""

    cluster: str
    url: str
    name: str
    role: str
    seed: str
    ca: str = ""
    """Certificate of the authority that signed the servers' certificates, in PEM; "" for connections without TLS."""

    def __repr__(self) -> str:
        return f"CredentialsFile(name={self.name!r}, role={self.role!r}, cluster={self.cluster!r})"


@dataclass(frozen=True)
class Credentials:
    """An identity on one cluster's servers."""

    cluster: str
    url: str
    name: str
    role: str
    seed: bytes = field(repr=False)
    ca: str = ""

    def __post_init__(self) -> None:
        """Raises CredentialsError."""
        if not _NAME.fullmatch(self.name):
            raise CredentialsError("the name in the credentials is not 1 to 64 letters, digits or any of _ @ + = -")
        public_key(self.seed)

    @property
    def api(self) -> str:
        """The prefix of JetStream's API."""
        return api_prefix(self.role)

    @property
    def inbox(self) -> str:
        """The prefix of the subjects on which answers come."""
        return inbox_prefix(self.role, self.name)

    def options(self) -> dict[str, Any]:
        """Return what nats-py needs to know to connect with them.  Raises CredentialsError."""
        given: dict[str, Any] = {"nkeys_seed_str": self.seed.decode(), "inbox_prefix": self.inbox}
        tls = self.tls()
        return given if tls is None else {**given, "tls": tls}

    def tls(self) -> ssl.SSLContext | None:
        """Return how servers are verified; None without TLS.  Raises CredentialsError."""
        if not self.ca:
            return None
        try:
            return ssl.create_default_context(cadata=self.ca)
        except (ssl.SSLError, ValueError):
            raise CredentialsError(
                f"the credentials of {self.name} hold no certificate of an authority in `ca`; get the file again from "
                "the cluster's admin"
            ) from None

    def __str__(self) -> str:
        return f"{self.role} {self.name}" if self.role != self.name else self.name


def new_seed() -> bytes:
    """Return the seed of a new identity."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed


def public_key(seed: bytes) -> str:
    """Return the public half of a seed.  Raises CredentialsError."""
    try:
        key: str = nkeys.from_seed(bytearray(seed)).public_key.decode()
    except (nkeys.NkeysError, ValueError, TypeError, IndexError):
        key = ""
    if not key.startswith("U"):
        raise CredentialsError("the credentials hold no seed of a user's nkey, which begins with SU")
    return key


def read_credentials(path: Path) -> Credentials:
    """Read a credentials file.  Raises CredentialsError."""
    try:
        stored = msgspec.json.decode(read_secret(path, "the credentials"), type=CredentialsFile)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise CredentialsError(
            f"{path} is not a credentials file; `dorm user add` and `dorm node intro` make them"
        ) from None
    return Credentials(stored.cluster, stored.url, stored.name, stored.role, _seed(stored.seed, path), stored.ca)


def _seed(text: str, path: Path) -> bytes:
    kind, sign, rest = text.partition(":")
    if not sign:
        return text.encode()
    if kind == "env":
        value = os.environ.get(rest, "")
        if not value:
            raise CredentialsError(
                f"{path} takes its key from the environment variable {rest}, which is not set",
                code="credentials.no_variable",
            )
        return value.strip().encode()
    if kind == "file":
        return read_secret(path.parent / rest, "the key").strip()
    raise CredentialsError(f"{path}: a seed is the seed itself, env:NAME or file:PATH")


def read_secret(path: Path, what: str) -> bytes:
    """Return the bytes of a file that only its owner may read.  Raises CredentialsError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise CredentialsError(
            f"{what} in {path} can't be read: {error.strerror}", code="credentials.unreadable"
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise CredentialsError(
            f"{path} can be read or changed by others; run `chmod 600 {path}`, and if others had access, get a new key",
            code="credentials.open_to_others",
        )
    if len(content) > _LARGEST:
        raise CredentialsError(f"{path} is too large for {what}")
    return content


# --- ids of messages --------------------------------------------------------------------------------------------------

_PURPOSE = b"dorm message ids"
_HEX = 32


def message_id(id: str, credentials: Credentials | None) -> str:
    """Return the id under which an identity publishes: a code over the event's id, keyed by the identity's seed (HMAC-SHA256,
    128 bits, in hex).  Without credentials it is the event's id itself."""
    if credentials is None:
        return id
    key = hmac.digest(credentials.seed, _PURPOSE, "sha256")
    return hmac.digest(key, id.encode(), "sha256").hex()[:_HEX]

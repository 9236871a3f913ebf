"""Changing identities, and how a node joins.

An identity changes on the log first, then in the servers' configuration.  The log is authoritative.  If the second step
fails, or this process is killed between the two, the next change, or `dorm user list --apply`, writes the configuration
again from the log.

A node joins by a token, whose key the servers accept for a single act:

    admin   introduces the node: a token, and the servers accept its key
    agent   makes a key, keeps it, and presents the public half
    admin   NodeEnrolled on the log, the node's key in the servers' configuration; answers
    agent   connects with its key
    admin   the token's key leaves the configuration

No key of a node therefore ever leaves its machine.  The token's key is removed when the node is enrolled, or when the
token expires.  The certificate of the cluster's authority is in the token, and not only its fingerprint: the certificate
of an unverified server proves nothing, and Python's `ssl` shows a server's authority only since 3.13.  The fingerprint is
printed next to it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import secrets
import zlib
from typing import TYPE_CHECKING

import msgspec

from dorm.core.identities import refusal_at
from dorm.security.files import SecurityError, private_folder
from dorm.security.folder import Joining, save_credentials
from events import subjects
from events.appending import append_event
from events.kinds import NodeEnrolled, NodeExpelled, TrustEnabled, UserAdded, UserRemoved
from events.log.interface import AskRefused
from events.log.records import LogRefused, LogUnavailable
from events.nats.access import Credentials, CredentialsError, enrollment, new_seed, public_key, read_credentials
from events.nats.bus import ask_once
from events.nats.connection import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from dorm.client.client import Client
    from dorm.core.state import State
    from dorm.security.folder import KeyFolder
    from events.identities import Identities
    from events.kinds import Event, NodeEnrolled
    from events.log.interface import Bus


# --- changing identities ----------------------------------------------------------------------------------------------

_TRIES, _PAUSE_S = 50, 0.1


class Admin:
    """An admin who changes the identities of one cluster."""

    def __init__(self, client: Client, folder: KeyFolder | None, *, clock: Callable[[], int]) -> None:
        """`folder`: the cluster's keys and configuration, if they are on this machine."""
        self._client = client
        self._folder = folder
        self._clock = clock

    async def known(self) -> Identities:
        """Return the cluster's identities.  Raises SecurityError if it is open."""
        identities = await self._client.look(lambda state: state.known)
        if identities is None:
            raise SecurityError(
                "this cluster is open: it knows no users; `dorm init` makes one that does", code="identity.open_cluster"
            )
        return identities

    async def enable(self, credentials: Credentials, masters: list[str]) -> None:
        """Make the cluster authenticate its users, with the author as its first admin; if it already does, change nothing."""
        if await self._client.look(lambda state: state.known) is None:
            await self._publish(TrustEnabled(public_key=public_key(credentials.seed), masters=masters))

    async def add_user(self, user: UserAdded) -> None:
        """Raises SecurityError if the log refuses it."""
        await self._publish(user)

    async def remove_user(self, name: str) -> None:
        await self._publish(UserRemoved(name=name))

    async def enroll(self, node: NodeEnrolled) -> None:
        await self._publish(node)

    async def expel(self, node: str) -> None:
        await self._publish(NodeExpelled(node=node))

    async def apply(self) -> bool:
        """Write the servers' configuration from the log; return whether a server here was asked to reload it."""
        if self._folder is None:
            return False
        known = await self.known()
        await asyncio.to_thread(self._folder.write_known, self._client.cluster, known, self._clock())
        return await asyncio.to_thread(self._folder.reload)

    async def _publish(self, event: Event) -> None:
        """Append an event, and wait until it is folded.  Raises SecurityError if the log refuses it, and the log's errors."""
        who = self._client.user
        signed = msgspec.structs.replace(event, id=f"{who}.{secrets.token_hex(8)}", at=self._clock(), by=who)
        subject = subjects.fact(self._client.cluster, type(event).__name__, who)
        stored = await append_event(self._client.log, subject, signed)

        def refused(state: State) -> tuple[str, str] | None:
            refusal = refusal_at(state, stored.seq)
            return (refusal.code, refusal.reason) if refusal is not None else None

        if (why := await self._client.look(refused)) is not None:
            raise SecurityError(why[1], code=why[0])


async def admitted(credentials: Credentials) -> None:
    """Wait until the server admits an identity: it reads a changed configuration a moment after the request, and ends
    connections meanwhile. Raises LogRefused or LogUnavailable if it does not."""
    for tries in range(_TRIES):
        try:
            connection = await Connection.open(credentials.url, credentials.cluster, credentials=credentials)
        except (LogRefused, LogUnavailable):
            if tries == _TRIES - 1:
                raise
            await asyncio.sleep(_PAUSE_S)
        else:
            await connection.close()
            return


# --- tokens -----------------------------------------------------------------------------------------------------------

_PREFIX = "dorm1."
_MOST = 16 * 1024


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """What a token holds."""

    cluster: str
    url: str
    node: str
    seed: str
    expires_at: int
    """UTC ns."""
    ca: str = ""

    def __repr__(self) -> str:
        return f"Introduction(node={self.node!r}, cluster={self.cluster!r})"

    def token(self) -> str:
        packed = zlib.compress(msgspec.msgpack.encode(self), 9)
        return _PREFIX + base64.urlsafe_b64encode(packed).decode().rstrip("=")

    def credentials(self) -> Credentials:
        """Raises CredentialsError."""
        return Credentials(self.cluster, self.url, self.node, "joining", self.seed.encode(), self.ca)


class Presented(msgspec.Struct, frozen=True):
    """What a new agent presents."""

    node: str
    public_key: str


class Enrolled(msgspec.Struct, frozen=True):
    """The admin's answer."""

    node: str
    cluster: str
    url: str


def read_token(text: str, now: int) -> Introduction:
    """Return what a token holds.  Raises SecurityError if it is not a token, or has expired."""
    packed = text.strip()
    try:
        if not packed.startswith(_PREFIX) or len(packed) > _MOST:
            raise ValueError
        raw = base64.urlsafe_b64decode(packed.removeprefix(_PREFIX) + "=" * (-(len(packed) - len(_PREFIX)) % 4))
        introduction = msgspec.msgpack.decode(zlib.decompressobj().decompress(raw, _MOST), type=Introduction)
        introduction.credentials()
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError, CredentialsError):
        raise SecurityError(
            "this is not a token of a node; copy all of the line that `dorm node intro` prints", code="token.malformed"
        ) from None
    if now > introduction.expires_at:
        raise SecurityError(
            f"the token of node {introduction.node} has expired; an admin makes another one with `dorm node intro`",
            code="token.expired",
        )
    return introduction


# --- joining ----------------------------------------------------------------------------------------------------------

_ANSWER_S = 10.0
_GOODBYE_S = 1.0
"""Seconds for the answer to arrive before the token's connection ends."""


async def introduce(
    admin: Admin,
    folder: KeyFolder,
    bus: Bus,
    credentials: Credentials,
    node: NodeEnrolled,
    *,
    ttl_s: float,
    clock: Callable[[], int],
    show: Callable[[Introduction], None],
) -> bool:
    """Show a token, and enroll the node that presents a key with it, with the bounds of `node`.  Return whether a node did so
    in time.  Raises SecurityError if the log refuses that, and the log's errors."""
    seed, until = new_seed(), clock() + round(ttl_s * 1e9)
    joining = Joining(public_key(seed), until)
    await asyncio.to_thread(folder.set_joining, node.node, joining, clock())
    wanted = _Enrolling(admin, node, credentials)
    answering: asyncio.Task[None] | None = None
    try:
        await admin.apply()
        answering = asyncio.create_task(bus.answer(enrollment(credentials.cluster, node.node), wanted.answer))
        show(Introduction(credentials.cluster, credentials.url, node.node, seed.decode(), until, credentials.ca))
        done = asyncio.create_task(wanted.done.wait())
        await asyncio.wait({answering, done}, timeout=ttl_s, return_when=asyncio.FIRST_COMPLETED)
        done.cancel()
        if answering.done():
            await answering
        if wanted.failed is not None:
            raise wanted.failed
        if wanted.done.is_set():
            await asyncio.sleep(_GOODBYE_S)
        return wanted.done.is_set()
    finally:
        if answering is not None:
            answering.cancel()
            await asyncio.wait({answering})
        await asyncio.to_thread(folder.set_joining, node.node, None, clock())
        await admin.apply()


class _Enrolling:
    """Enrolls one node, once."""

    def __init__(self, admin: Admin, node: NodeEnrolled, credentials: Credentials) -> None:
        self._admin, self._node, self._credentials = admin, node, credentials
        self._key = ""
        self._one_at_a_time = asyncio.Lock()
        self.done = asyncio.Event()
        self.failed: SecurityError | None = None

    async def answer(self, question: bytes) -> AsyncGenerator[bytes, None]:
        try:
            presented = msgspec.json.decode(question, type=Presented)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise AskRefused("this presents no key") from None
        if presented.node != self._node.node:
            raise AskRefused(f"this token is for node {self._node.node}")
        async with self._one_at_a_time:
            if self._key and presented.public_key != self._key:
                raise AskRefused("this token was used already; an admin makes another one with `dorm node intro`")
            try:
                enrolled = msgspec.convert(
                    {**msgspec.to_builtins(self._node), "public_key": presented.public_key}, type(self._node)
                )
                await self._admin.enroll(enrolled)
            except (SecurityError, msgspec.ValidationError) as error:
                self.failed = error if isinstance(error, SecurityError) else SecurityError("this is not a public key")
                self.done.set()
                raise AskRefused(str(self.failed)) from None
            self._key = presented.public_key
            await self._admin.apply()
        yield msgspec.json.encode(Enrolled(self._node.node, self._credentials.cluster, self._credentials.url))
        self.done.set()


async def join(introduction: Introduction, file: Path) -> Credentials:
    """Present a key of this machine, and keep credentials with it in `file`.  A repeat after an interruption presents the
    same key.  Raises SecurityError, CredentialsError, and the log's errors."""
    pending = file.with_name(f".{file.name}.joining")
    await asyncio.to_thread(private_folder, file.parent)
    own = await asyncio.to_thread(_key_in, pending, introduction)
    presented = msgspec.json.encode(Presented(introduction.node, public_key(own.seed)))
    subject = enrollment(introduction.cluster, introduction.node)
    answer = await ask_once(introduction.credentials(), subject, presented, timeout=_ANSWER_S)
    try:
        enrolled = msgspec.json.decode(answer, type=Enrolled)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise SecurityError("the answer to the token can't be read", code="token.malformed") from None
    own = Credentials(enrolled.cluster, enrolled.url, enrolled.node, "node", own.seed, introduction.ca)
    await asyncio.to_thread(save_credentials, file, own)
    await asyncio.to_thread(pending.unlink, missing_ok=True)
    return own


def _key_in(file: Path, introduction: Introduction) -> Credentials:
    with contextlib.suppress(CredentialsError):
        credentials = read_credentials(file)
        if (credentials.name, credentials.cluster) == (introduction.node, introduction.cluster):
            return credentials
    made = Credentials(introduction.cluster, introduction.url, introduction.node, "node", new_seed(), introduction.ca)
    save_credentials(file, made)
    return made

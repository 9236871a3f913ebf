"""How a node joins: the admin's side, which enrolls it, and the agent's, which makes its key.

admin   introduces the node: a token, and the servers accept its key
agent   makes a key, keeps it, and presents the public half
admin   NodeEnrolled on the log, the node's key in the servers' configuration; answers
agent   connects with its key
admin   the token's key leaves the configuration
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from dorm.security.files import SecurityError, private_folder
from dorm.security.folder import Joining, save_credentials
from dorm.security.introductions import Enrolled, Introduction, Presented
from events.log.interface import AskRefused
from events.nats.access import Credentials, CredentialsError, enrollment, new_seed, public_key, read_credentials
from events.nats.bus import ask_once

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from dorm.security.admin import Admin
    from dorm.security.folder import KeyFolder
    from events.kinds import NodeEnrolled
    from events.log.interface import Bus

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
        found = read_credentials(file)
        if (found.name, found.cluster) == (introduction.node, introduction.cluster):
            return found
    made = Credentials(introduction.cluster, introduction.url, introduction.node, "node", new_seed(), introduction.ca)
    save_credentials(file, made)
    return made

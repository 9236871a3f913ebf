"""A node's part: everything that one node needs to know about the cluster, derived from the log.

A part is a document with the whole desired state of one node, and no change of it: a node needs only the last one.  It
is a pure function of the log's records up to one sequence, `seq` (`dorm.core.parts`), so replay derives it again and
compares the bytes.  The node's own facts after that record are not in it; the agent has them from the log.  The
leading master stores the last part of each node next to the log (`events.log.stores`), and agents follow their own.

A master's signature proves who wrote a part, from the part alone.  The document names its cluster, node, and the
record that it derives from, and the signature covers it as it is stored.  So a part is worthless for another node or
cluster, and an older one of the same node is recognized by its `seq`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import msgspec
from nacl.exceptions import CryptoError
from nacl.signing import VerifyKey

from events.chain import KeyUnusableError, public_bytes
from events.errors import DormError
from events.identities import Enrolment
from events.kinds import Placed
from events.limits import SIGNATURE_DIGITS
from events.spec import AppSpec
from events.times import Times

if TYPE_CHECKING:
    from collections.abc import Iterable

    from events.chain import SealKey


# --- the document and its bytes ---------------------------------------------------------------------------------------


class PartUnreadable(DormError, ValueError):
    """The stored bytes are not a node's part."""

    code = "part.unreadable"


ContainerState = Literal["desired", "running", "exited"]


class HeldPart(msgspec.Struct, frozen=True):
    """The generation before, which works on while its successor is prepared (`Resize.prepare_s`)."""

    generation: int
    until: int
    """Log time (UTC ns)."""
    waits_for: list[str]
    """Nodes that have not prepared their containers yet."""


class ContainerPart(msgspec.Struct, frozen=True, array_like=True):
    """A container that was released to this node, as far as the log shows."""

    generation: int
    slot: int
    state: ContainerState


class AppPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the node needs to know about an app with present or planned containers on it."""

    spec: AppSpec
    tenant: str = ""
    """Owner of the app; "" on an open cluster."""
    generation: int = 0
    """The latest one, wherever it is."""
    placement: list[Placed] = []
    """Containers of the app on all nodes: of a live app, the members of the membership that was committed last."""
    members: list[Placed] = []
    """Membership that was announced last, of a released generation."""
    membership: int = 0
    """The number of that membership; 0 before the release."""
    founders: list[int] = []
    """Slots of the generation's first membership."""
    master_port: int = 0
    released: bool = False
    failed: bool = False
    resume: bool = False
    checkpoints: str = ""
    """The folder of checkpoints in which the generation works."""
    ended_at: int = 0
    """Log time (UTC ns) of its end, 0 while it lives."""
    killed: bool = False
    ahead: bool = False
    """Whether containers of a generation that is not released yet are prepared."""
    held: HeldPart | None = None
    batch: int = 0
    earlier: AppSpec | None = None
    """Spec with which the generations up to `earlier_until` were started, if that is not `spec`: its owner has edited it."""
    earlier_until: int = 0
    containers: list[ContainerPart] = []
    """All that were released to this node, of every generation that may still have one."""


class Masters(msgspec.Struct, frozen=True):
    """Whose signature counts, and what the node may claim; see `events.identities.Identities`."""

    since: int
    keys: list[str]
    keys_since: int
    keys_before: list[str]
    enrolment: Enrolment | None
    """None if the cluster does not know this node."""


class NodePart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of one node, as of the record `seq`."""

    cluster: str
    node: str
    seq: int
    """The log is folded up to this record."""
    time: int
    """Log time there (UTC ns)."""
    epoch: int
    condition: Literal["", "up", "lost", "left"] = ""
    """"" for a node that has never joined."""
    lease_ended: bool = False
    holder: str = ""
    """The identity that holds the node's name."""
    held_at: str = ""
    """The holder's address."""
    lease_s: float = 0.0
    """The longest lease that the master believes its agent to assume, in seconds."""
    times: Times = Times()
    retentions: dict[str, float] = {}
    """Seconds by tenant, for tenants whose ended apps are kept for another time than `times.retention_s`."""
    masters: Masters | None = None
    """None while the cluster is open."""
    apps: dict[str, AppPart] = {}
    """Sorted by id."""
    ended: dict[str, int] = {}
    """Log times (UTC ns) at which apps ended that had containers here and have none that may run."""
    owners: dict[str, str] = {}
    """Owners of apps that had containers here and are not among `apps`: only they may read what these wrote."""


class Signed(msgspec.Struct, frozen=True, array_like=True):
    """A part as it is stored: the bytes of a `NodePart`, and a signature over them ("" if none is asked for)."""

    document: bytes
    signature: str = ""


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(NodePart)
_signed = msgspec.msgpack.Decoder(Signed)


def document_of(part: NodePart) -> bytes:
    """Return the bytes of a part: equal parts have equal bytes."""
    return _encoder.encode(part)


def content_of(part: NodePart) -> str:
    """Return 32 hex digits that are equal for parts with the same content, whatever record they are of."""
    plain = msgspec.structs.replace(part, seq=0, time=0, epoch=0)
    return hashlib.blake2b(_encoder.encode(plain), digest_size=16).hexdigest()


def packed(document: bytes, signature: str = "") -> bytes:
    """Return the bytes to store."""
    return _encoder.encode(Signed(document, signature))


def unpacked(body: bytes) -> tuple[NodePart, Signed]:
    """Return the part in stored bytes.  Raises PartUnreadable."""
    try:
        signed = _signed.decode(body)
        if len(signed.signature) > SIGNATURE_DIGITS:
            raise PartUnreadable("a node's part has a signature that is too long; restart the master to write it again")
        return _decoder.decode(signed.document), signed
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = f"a node's part can't be read ({error}); restart the master to write it again"
        raise PartUnreadable(text) from None


# --- signing ----------------------------------------------------------------------------------------------------------


def sign(key: SealKey, document: bytes) -> str:
    """Return the signature of a part's document, in hex digits."""
    return key.sign(_statement(document)).hex()


def is_part_signed_by(document: bytes, signature: str, keys: Iterable[str]) -> bool:
    """Return whether one of these public keys signed the document."""
    try:
        signature_bytes = bytes.fromhex(signature)
    except ValueError:
        return False
    for key in keys:
        try:
            VerifyKey(public_bytes(key)).verify(_statement(document), signature_bytes)
        except (CryptoError, KeyUnusableError, ValueError, TypeError):
            continue
        return True
    return False


def _statement(document: bytes) -> bytes:
    return b"dorm part 1\n" + document

"""One-time tokens with which new nodes join, and the messages of the two sides.

An admin introduces a node: its token holds a key that the servers accept for a single act, and the certificate of the
cluster's authority.  The new agent makes its own key, presents the public half with that token, and the admin's
command enrolls it.  No key of a node therefore ever leaves its machine. The token's key is removed from the
configuration when the node is enrolled, or when the token expires.

The certificate itself is in the token, and not only its fingerprint: the certificate of an unverified server proves nothing,
and Python's `ssl` shows a server's authority only since 3.13. The fingerprint is printed next to it.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import msgspec

from dorm.security.files import SecurityError
from events.nats.access import Credentials, CredentialsError

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
        found = msgspec.msgpack.decode(zlib.decompressobj().decompress(raw, _MOST), type=Introduction)
        found.credentials()
    except (ValueError, binascii.Error, zlib.error, msgspec.MsgspecError, CredentialsError):
        raise SecurityError(
            "this is not a token of a node; copy all of the line that `dorm node intro` prints", code="token.malformed"
        ) from None
    if now > found.expires_at:
        raise SecurityError(
            f"the token of node {found.node} has expired; an admin makes another one with `dorm node intro`",
            code="token.expired",
        )
    return found

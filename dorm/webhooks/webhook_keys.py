"""Keys of webhooks: derived from one secret file, so the log holds no secret.

The log names a key by an id.  The key itself is a hash over the file's secret, the cluster, the webhook and that id; a
rotation writes a new id.  A process with the file (the deliverer, and the command that shows a key to its owner) derives the
same key, so keys are never sent between processes.

    WebhookKeyError   the file can't be used, or is not the source of a key; the message never contains any of it"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import stat
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from standardwebhooks import Webhook

from events.durable import write_whole
from events.errors import DormError

if TYPE_CHECKING:
    from pathlib import Path

    from dorm.webhooks.endpoints import Endpoint

FILE_NAME = "webhooks.key"
PREFIX = "whsec_"
_BYTES = 32


class WebhookKeyError(DormError):
    """The file of the keys can't be used."""

    code = "webhook.key.unreadable"


class Keys:
    """The keys of one cluster's webhooks."""

    def __init__(self, secret: bytes, cluster: str) -> None:
        self._secret = secret
        self._cluster = cluster

    @property
    def file_id(self) -> str:
        """The start of all ids of keys from this file; reveals nothing of it."""
        return self._hash("file")[:4].hex()

    def new_id(self) -> str:
        return f"{self.file_id}-{secrets.token_hex(6)}"

    def knows(self, key: str) -> bool:
        """Return whether a key is from this file."""
        return key.split("-")[0] == self.file_id

    def secret(self, webhook: str, key: str) -> str:
        """Return a key in the form that libraries for Standard Webhooks expect: `whsec_…`.  Raises WebhookKeyError."""
        if not self.knows(key):
            text = (
                f"the key of webhook {webhook!r} is from another file; name the one that the deliverer uses with --key"
            )
            raise WebhookKeyError(text, code="webhook.key.unknown")
        return PREFIX + base64.b64encode(self._hash("key", webhook, key)).decode()

    def signatures(self, endpoint: Endpoint, message: str, body: bytes, now: int) -> str:
        """Return the header `webhook-signature`: two signatures during a rotation.  `now` is UTC ns.  Raises
        WebhookKeyError."""
        keys = [endpoint.key]
        if endpoint.previous_key and now < endpoint.previous_until:
            keys.append(endpoint.previous_key)
        at = datetime.fromtimestamp(now // 10**9, UTC)
        return " ".join(Webhook(self.secret(endpoint.name, key)).sign(message, at, body.decode()) for key in keys)

    def hidden(self, webhook: str) -> str:
        """Return a part of the name of a webhook's place in the log that cannot be guessed without the file: the server lets
        every reader use a consumer whose name is known."""
        return self._hash("place", webhook)[:16].hex()

    def _hash(self, *parts: str) -> bytes:
        text = b"\0".join(part.encode() for part in ("dorm webhook", self._cluster, *parts))
        return hmac.new(self._secret, text, hashlib.sha256).digest()


def open_keys(path: Path, cluster: str) -> Keys:
    """Return the keys of the file, which is made (mode 0600) if it does not exist.  Raises WebhookKeyError."""
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(1000)
    except OSError as error:
        raise WebhookKeyError(f"keys of webhooks {path}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise WebhookKeyError(
            f"keys of webhooks {path}: others may read it; run `chmod 600 {path}`", code="webhook.key.not_private"
        )
    try:
        secret = bytes.fromhex(text.decode().strip())
    except ValueError:
        secret = b""
    if len(secret) != _BYTES:
        raise WebhookKeyError(
            f"keys of webhooks {path}: not a file of keys; move it away, and a new one is made",
            code="webhook.key.malformed",
        )
    return Keys(secret, cluster)


def _make(path: Path) -> None:
    """Write a new file atomically; if two processes do so at once, both use the first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, secrets.token_hex(_BYTES).encode() + b"\n", mode=0o600, replace=False)

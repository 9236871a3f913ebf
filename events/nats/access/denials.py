"""What the server forbids.  It answers a forbidden request with an error on the connection that names the subject, and sends
no reply; a caller would wait for its timeout and learn nothing."""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

import nats.errors

from events.log.records import LogRefused
from events.nats import internals
from events.nats.access.names import is_person

if TYPE_CHECKING:
    from nats.aio.client import Client

    from events.nats.access.credentials import Credentials

_DENIED = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"', re.IGNORECASE)
_MOST_SUBJECTS = 256
_MOST_REQUESTS = 64
_CODE = "log.no_permission"


class Denied(nats.errors.Error):
    """The server forbids this identity a subject.  The text is for people."""


def connection_of(url: str, credentials: Credentials | None) -> tuple[internals.AbortingClient, Permissions]:
    """Return a client, not connected yet, whose forbidden requests fail at once."""
    client = internals.AbortingClient()
    client.encrypted = credentials is not None and bool(credentials.ca)
    permissions = Permissions(client, url, credentials)
    client.on_request = permissions.note
    return client, permissions


class Permissions:
    """The latest requests of one connection, by their subjects: a denial names the subject alone.  Also, recent denials
    that no request of nats-py waits for: subscriptions by their subjects, other questions by their reply subjects."""

    def __init__(self, client: Client, url: str, credentials: Credentials | None) -> None:
        """`url` is printed in messages."""
        self._client = client
        self._url = url
        self._role = credentials.role if credentials is not None else ""
        self._who = str(credentials) if credentials is not None else "a connection without credentials"
        self._replies: OrderedDict[str, deque[tuple[str, str]]] = OrderedDict()
        self._forbidden: OrderedDict[str, None] = OrderedDict()

    def note(self, subject: str, reply: str) -> None:
        """A request is about to be sent."""
        key = subject.lower()
        self._replies.setdefault(key, deque(maxlen=_MOST_REQUESTS)).append((subject, reply))
        self._replies.move_to_end(key)
        if len(self._replies) > _MOST_SUBJECTS:
            self._replies.popitem(last=False)

    def on_error(self, error: Exception) -> None:
        """Fail the request that the server has just forbidden.  Of several on one subject it is the last, unless the
        permissions changed between them: a server forbids each with an error of its own."""
        found = _DENIED.search(str(error))
        if found is None:
            return
        subject = found[2].lower()  # As nats-py passes on the whole text.
        if found[1].lower() == "subscription":
            self._forbid(subject)
            return
        waiting = self._replies.get(subject)
        if waiting:
            sent, reply = waiting.pop()
            if not internals.fail_request(self._client, reply, Denied(self._forbids("publish", sent))):
                self._forbid(reply)

    def check_listening(self, subject: str) -> None:
        """Raises LogRefused if the server has forbidden a subscription."""
        if self._was_forbidden(subject.lower()):
            raise LogRefused(self._forbids("listen", subject), code=_CODE)

    def check_request(self, subject: str, reply: str) -> None:
        """Raises LogRefused if the server has forbidden a request, whose answer would come on `reply`."""
        if self._was_forbidden(reply):
            raise LogRefused(self._forbids("publish", subject), code=_CODE)

    def not_let_in(self, detail: str) -> LogRefused:
        """Return the error for a connection that the server refuses or has ended."""
        who, hint = "us", "name your credentials with --credentials or --context"
        if self._role:
            who, hint = self._who, "an admin may have removed or replaced this identity (`dorm user list`)"
        return LogRefused(f"the NATS server at {self._url} does not let {who} in: {detail}; {hint}", code=_CODE)

    def _forbids(self, what: str, subject: str) -> str:
        hint = ""
        if not self._role:
            hint = "; name your credentials with --credentials or --context"
        elif is_person(self._role):
            hint = "; an admin gives you another role with `dorm user add`"
        return f"the NATS server forbids {self._who} to {what} on {subject}{hint}"

    def _forbid(self, subject: str) -> None:
        self._forbidden[subject] = None
        if len(self._forbidden) > _MOST_SUBJECTS:
            self._forbidden.popitem(last=False)

    def _was_forbidden(self, subject: str) -> bool:
        """Return whether a subject was forbidden since the last call."""
        if subject not in self._forbidden:
            return False
        del self._forbidden[subject]
        return True

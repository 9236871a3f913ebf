"""Errors of the client, in addition to the log's own.

ClientError
├── NotFound    no such app or node
├── Refused     the master refused the request, or would
├── NoAnswer    stored, and not answered yet
└── Unsettled   unknown whether it is stored
"""

from __future__ import annotations

from events.errors import DormError


class ClientError(DormError):
    """Base class of a client's errors, in addition to the log's own; one line for people."""

    code = "client.failed"


class NotFound(ClientError):
    """There is no such app or node."""

    code = "app.not_found"


class Refused(ClientError):
    """The master refused the request."""

    code = "request.refused"


class NoAnswer(ClientError):
    """The request is on the log and will be acted on, but no master has answered in time."""

    code = "master.no_answer"


class Unsettled(ClientError):
    """It is unknown whether the request is stored.  Sending it again under the same id is idempotent."""

    code = "request.unsettled"

    def __init__(self, message: str, id: str) -> None:
        super().__init__(message)
        self.id = id

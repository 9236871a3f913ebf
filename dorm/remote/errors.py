"""The exceptions of a client.

RemoteError
├── Unreachable     no server answers, also after several tries
└── Problem         the server answered with a problem document
    ├── NotFound    there is no such app, node or moment
    ├── Refused     it cannot be done; the code and the text say why
    └── Unsettled   it is unknown whether a request is stored; repeating it settles the question
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class RemoteError(Exception):
    """Base class; one line for people."""

    code = "remote.failed"
    """Stable, for programs."""


class Unreachable(RemoteError):
    """No server answers."""

    code = "remote.unreachable"


class Problem(RemoteError):
    """The server answered with a problem document (RFC 9457)."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(str(document.get("detail") or document.get("title") or f"the server answered {status}"))
        self.status = status
        self.code = str(document.get("code") or self.code)
        self.document = dict(document)


class NotFound(Problem):
    """There is no such thing."""


class Refused(Problem):
    """It cannot be done."""


class Changed(Refused):
    """It has changed since it was read; read it again."""


class Unsettled(Problem):
    """It is unknown whether the request is stored."""


def problem(status: int, document: Mapping[str, Any]) -> Problem:
    """Return the error of an answer."""
    kinds = {404: NotFound, 409: Refused, 412: Changed, 422: Refused, 504: Unsettled}
    return kinds.get(status, Problem)(status, document)

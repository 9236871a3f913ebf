"""Answers: bodies as bytes, and every error as a problem document.

A body is encoded and compressed in a thread if it is large, and kept while nothing changes: its tag is the position that
it shows.

Every error becomes an RFC 9457 document here, and nowhere else:

    {"type": "urn:dorm:problem:app.not_found", "title": "Not Found", "status": 404, "code": "app.not_found",
     "detail": "there is no app 'digit'; did you mean digits?"}

`code` is the stable code of the error (the reference of error codes lists them), `detail` is one line for people.  The
status follows from the code if one is named below, else from the class.  An error that nothing here expects is a 500
without details, which are in the log of the process.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from dorm.api.errors import ApiError, NotAllowed
from dorm.client.errors import NoAnswer, NotFound, Refused, Unsettled
from dorm.client.tail import TailError
from dorm.core.evolve import GapError
from dorm.core.query.assumed import PlanError
from events.errors import DormError, code_of
from events.log.records import LogDamaged, LogError, LogFull, LogRefused, LogUnavailable, NotSent
from events.logger import Logger
from events.positions import PositionError
from events.spec import SpecError
from events.times import SettingRefused
from replay import ReplayError
from replay.moments import MomentError

# --- bodies -----------------------------------------------------------------------------------------------------------

JSON = "application/json"
POSITION = "Dorm-Position"
"""The header that names the position of what an answer shows, or where a request is stored."""
_WORTH = 1400
"""Bytes from which on compression is worth its time: more than one packet."""
_LEVEL = 3


class Answer(msgspec.Struct, frozen=True):
    """An answer, ready to send."""

    body: bytes
    position: str
    status: int = 200
    media: str = JSON
    packed: bytes | None = None
    """The body in gzip."""
    headers: dict[str, str] = {}

    @property
    def size(self) -> int:
        return len(self.body) + len(self.packed or b"")


def answer(
    value: Any, position: int | str, *, pack: bool = False, status: int = 200, headers: dict[str, str] | None = None
) -> Answer:
    """Encode a value as JSON; `pack`: the client takes gzip.  For a thread if the value is large."""
    body = msgspec.json.encode(value)
    return Answer(body, str(position), status, packed=packed(body) if pack else None, headers=headers or {})


def packed(body: bytes) -> bytes | None:
    """Return the body in gzip, None if that is not worthwhile."""
    if len(body) < _WORTH:
        return None
    packer = zlib.compressobj(_LEVEL, wbits=31)
    return packer.compress(body) + packer.flush()


def packs(request: web.Request) -> bool:
    """Return whether the client takes gzip."""
    for part in request.headers.get("Accept-Encoding", "").lower().split(","):
        name, _, quality = part.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


class Kept:
    """The latest answers, up to a size."""

    def __init__(self, room: int) -> None:
        """`room` in bytes."""
        self._room = room
        self._kept: OrderedDict[tuple[str, bool], Answer] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str, bool], position: int) -> Answer | None:
        """Return the answer at a position."""
        kept = self._kept.get(key)
        if kept is None or kept.position != str(position):
            return None
        self._kept.move_to_end(key)
        return kept

    def keep(self, key: tuple[str, bool], answered: Answer) -> None:
        before = self._kept.pop(key, None)
        self._bytes += answered.size - (before.size if before is not None else 0)
        self._kept[key] = answered
        while self._bytes > self._room and self._kept:
            self._bytes -= self._kept.popitem(last=False)[1].size


# --- problems ---------------------------------------------------------------------------------------------------------

CONTENT_TYPE = "application/problem+json"
_AGAIN_S = 1
_log = Logger(__name__)

_BY_CODE = {
    "moment.after_end": 404,
    "moment.before_start": 404,
    "name.not_found": 404,
    "app.not_found": 404,
    "node.not_found": 404,
    "app.not_started": 404,
    "slot.not_found": 404,
    "page.not_installed": 404,
    "edit.stale": 412,
    "files.no_answer": 503,
    "files.no_node": 503,
    "log.no_permission": 502,
    "app.not_owner": 403,
    "submission.user.not_own": 403,
    "identity.unknown": 403,
    "identity.not_operator": 403,
    "identity.not_admin": 403,
    "identity.role.too_low": 403,
}
_BY_CLASS: tuple[tuple[type[BaseException], int], ...] = (
    (SpecError, 422),
    (PlanError, 422),
    (SettingRefused, 422),
    (NotFound, 404),
    (Refused, 409),
    (NoAnswer, 504),
    (Unsettled, 504),
    (MomentError, 422),
    (TailError, 422),
    (PositionError, 400),
    (ReplayError, 422),
    (NotSent, 503),
    (LogFull, 503),
    (LogDamaged, 503),
    (LogUnavailable, 503),
    (LogRefused, 409),
    (LogError, 503),
    (GapError, 503),
    (DormError, 422),
)
"""The first that fits."""


class ProblemPart(msgspec.Struct, frozen=True):
    """One of several errors in a document that was sent."""

    code: str
    detail: str


class Problem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A problem document (RFC 9457)."""

    type: str
    """The kind of problem: `urn:dorm:problem:` and the code."""
    title: str
    """The status in words."""
    status: int
    code: str
    """The stable code of the error, for programs."""
    detail: str
    """One line for people: what is wrong, and what to do."""
    errors: list[ProblemPart] = []
    """All that is wrong with a spec, this error first, if there is more than one."""
    idempotency_key: str = ""
    """For a submission that may or may not be stored: sent again with this key, it cannot become a second app."""


def problem_of(error: BaseException) -> Problem:
    """Return the document of any error. An internal error is logged, and its document contains no details."""
    if isinstance(error, web.HTTPException):
        return _of_http(error)
    if isinstance(error, TimeoutError):
        return make(503, "api.too_slow", "the answer takes too long to compute now; ask for less, or try again")
    if isinstance(error, ApiError):
        return make(error.status, error.code, str(error))
    code = code_of(error)
    status = _BY_CODE.get(code) or next((status for cls, status in _BY_CLASS if isinstance(error, cls)), 500)
    if status == 500:
        _log.exception("a request failed")
        return make(500, "api.failed", "the API failed to answer, which is a bug; the log of the process says more")
    key = error.id if isinstance(error, Unsettled) else ""
    problem = make(status, code or "failed", str(error), idempotency_key=key)
    if isinstance(error, SpecError) and error.others:
        parts = [ProblemPart(each.code, _one_line(str(each))) for each in (error, *error.others)]
        return msgspec.structs.replace(problem, errors=parts)
    return problem


def _one_line(text: str) -> str:
    return " ".join(text.split())[:2000]


def make(status: int, code: str, detail: str, idempotency_key: str = "") -> Problem:
    return Problem(
        type=f"urn:dorm:problem:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=_one_line(detail),
        idempotency_key=idempotency_key,
    )


def _of_http(error: web.HTTPException) -> Problem:
    """Return the document of what the HTTP library refuses itself."""
    known = {
        404: ("api.path.unknown", "there is no such path; /v1/openapi.json lists them"),
        405: (NotAllowed.code, "the path does not have this method"),
        413: ("api.request.too_large", "the body is larger than the API takes"),
        417: ("api.request.malformed", "only `Expect: 100-continue` is known"),
    }
    code, text = known.get(error.status, ("api.request.malformed", error.text or error.reason))
    return make(error.status, code, text)


def response(problem: Problem, headers: dict[str, str] | None = None) -> web.Response:
    made = web.Response(
        status=problem.status,
        body=msgspec.json.encode(problem),
        content_type=CONTENT_TYPE,
        headers=headers,
    )
    if problem.status in (429, 503):
        made.headers["Retry-After"] = str(_AGAIN_S)
    made.headers["Cache-Control"] = "no-store"
    return made


def raw(problem: Problem) -> bytes:
    """Return a whole HTTP/1.1 answer, for a connection that is refused before there is a request."""
    body = msgspec.json.encode(problem)
    head = (
        f"HTTP/1.1 {problem.status} {problem.title}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\n"
        f"Retry-After: {_AGAIN_S}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def members(error: BaseException) -> dict[str, Any]:
    """Return the document as a map, for a stream that ends with it."""
    fields: dict[str, Any] = msgspec.to_builtins(problem_of(error))
    return fields

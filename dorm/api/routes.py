"""What a route is: its parameters, body and answer by their types, which both the reading of requests and their description
use.

    Route("GET", "/v1/apps", list_apps, "List apps", query=AppsQuery, answer=Page[AppItem])

A handler gets a `Call`, with everything decoded and checked.  It returns an `Answer`, or, for a stream, the response itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from aiohttp import web

from dorm.api.answers import POSITION, Answer, packs
from dorm.api.connections import check_type
from dorm.api.errors import Invalid, Malformed, TooLarge, TooSlow, Unsupported
from dorm.api.identity import ACCESS
from dorm.local.spec_files import SPEC, parse_spec
from events.documents import read_json

if TYPE_CHECKING:
    from dorm.api.services import Services, Tenants

Q = TypeVar("Q", bound="Parameters")
B = TypeVar("B")


def _number(text: str) -> float:
    """JSON has one kind of number: 2.0 is an integer."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


_json = msgspec.json.Decoder(float_hook=_number)


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parameters of a query."""


class Call(Generic[Q, B]):
    """One request, read and checked."""

    def __init__(self, services: Services, request: web.Request, query: Q, body: B, user: str) -> None:
        self.services = services
        self.request = request
        self.query = query
        self.body = body
        self.user = user

    def path(self, name: str) -> str:
        """Return a part of the path."""
        return self.request.match_info[name]

    @property
    def packs(self) -> bool:
        return packs(self.request)


Handler = Callable[[Any], Awaitable[Answer | web.StreamResponse]]


class Link(msgspec.Struct, frozen=True):
    """Where a part of an answer leads: the parameter of another operation."""

    operation: str
    parameter: str
    source: str
    """A runtime expression of OpenAPI, such as `$response.body#/id`."""
    within: str = "path"


class Header(msgspec.Struct, frozen=True):
    """A request header."""

    name: str
    about: str
    pattern: str
    longest: int


class Route(msgspec.Struct, frozen=True):
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    summary: str
    query: type[Parameters] = Parameters
    body: Any = None
    """The type of the body; None for none."""
    answer: Any = None
    """The type of the answer's body; None if it is not JSON."""
    status: int = 200
    tag: str = "cluster"
    about: str = ""
    yaml: bool = False
    """Whether the body may be YAML."""
    spec: str = "AppSpec"
    """The component that describes a body which may be YAML."""
    media: tuple[str, ...] = ()
    """Types of the answer other than JSON."""
    long: bool = False
    """Whether the answer may take long to compute."""
    problems: tuple[int, ...] = ()
    """Statuses of problems besides those that any route has."""
    links: tuple[Link, ...] = ()
    headers: tuple[Header, ...] = ()
    """Request headers that it reads."""

    @property
    def operation(self) -> str:
        """The operation's id: the handler's name."""
        return str(self.handler.__name__)

    @property
    def open(self) -> bool:
        """Whether it shows nothing of the log, so that everyone may ask."""
        return ACCESS.get(self.operation) == "open"

    @property
    def streams(self) -> bool:
        """Whether it may answer with a stream, which has no end."""
        return bool(self.media)


def handler_of(
    route: Route, services: Services, tenants: Tenants | None = None
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return what the HTTP library calls.  `tenants` have the services for requests of plain users."""
    limits = services.options.limits
    seconds = limits.long_answer_s if route.long else limits.answer_s

    async def handle(request: web.Request) -> web.StreamResponse:
        user = await services.door.admit(request, route.operation)
        query = read_query(request, route.query)
        body = await _read_body(request, route, services) if route.body is not None else None
        serving = services if tenants is None or route.open else await tenants.of(user)
        call: Call[Any, Any] = Call(serving, request, query, body, user)
        if route.streams:
            done = await route.handler(call)
        else:
            async with asyncio.timeout(seconds):
                done = await route.handler(call)
        return response_of(done, packed=call.packs) if isinstance(done, Answer) else done

    return handle


def response_of(done: Answer, *, packed: bool) -> web.Response:
    body = done.packed if packed and done.packed is not None else done.body
    made = web.Response(status=done.status, body=body, headers={**done.headers, "Content-Type": done.media})
    if body is done.packed:
        made.headers["Content-Encoding"] = "gzip"
    made.headers.setdefault("Cache-Control", "no-cache")
    made.headers["Vary"] = "Accept-Encoding, Accept"
    made.headers[POSITION] = done.position
    return made


def read_query(request: web.Request, kind: type[Q]) -> Q:
    """Return the parameters.  Raises Malformed."""
    given = request.rel_url.query
    known = _parameters(kind)
    fields: dict[str, Any] = {}
    for name in dict.fromkeys(given):
        if name not in known:
            there = f"; there are {', '.join(known)}" if known else ""
            raise Malformed(f"there is no parameter {name[:80]!r}{there}", code="api.parameter.unknown")
        field, type_ = known[name]
        values = given.getall(name)
        many = get_origin(_bare(type_)) is tuple
        if len(values) > 1 and not many:
            raise Malformed(f"{name}: given {len(values)} times", code="api.parameter.malformed")
        try:
            fields[field] = msgspec.convert(values if many else values[0], type_, strict=False)
        except msgspec.ValidationError as error:
            raise Malformed(f"{name}: {error}", code="api.parameter.malformed") from None
    try:
        return kind(**fields)
    except TypeError:
        missing = [name for name, (field, _) in known.items() if field not in fields]
        raise Malformed(f"a parameter is missing: {', '.join(missing)}", code="api.parameter.missing") from None


@cache
def _parameters(kind: type[Parameters]) -> dict[str, tuple[str, Any]]:
    """Return field and type of each parameter by its name. A given value is never null, so `int | None` is `int`."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.encode_name: (field.name, _without_none(hints[field.name])) for field in msgspec.structs.fields(kind)}


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = [arg for arg in get_args(hint) if arg is not type(None)]
    return hint


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _in_words(error: msgspec.ValidationError) -> str:
    """Return msgspec's message with the field in front of it."""
    text, _, place = str(error).partition(" - at `$")
    path = place.removesuffix("`").lstrip(".")
    return f"{path}: {text}" if path else text


async def _read_body(request: web.Request, route: Route, services: Services) -> Any:
    """Read, parse and check the body.  Raises Malformed, Invalid, TooLarge, TooSlow, Unsupported, SpecError."""
    yaml = check_type(request, yaml=route.yaml)
    raw = await _received(request, services)
    if yaml:
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise Malformed("the body is not text in UTF-8", code="api.body.malformed") from None
        document = await asyncio.to_thread(parse_spec, text)
        return _checked(document, route.body)
    try:
        document = read_json(raw or b"{}", SPEC) if route.yaml else _json.decode(raw or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"the body is not JSON: {error}", code="api.body.malformed") from None
    return _checked(document, route.body)


def _checked(document: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(document, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Invalid(
            _in_words(error) if isinstance(error, msgspec.ValidationError) else "nested too deeply",
            code="api.body.invalid",
        ) from None


async def _received(request: web.Request, services: Services) -> bytes:
    limits = services.options.limits
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Unsupported("send the body as it is, without a Content-Encoding", code="api.body.unsupported")
    too_large = TooLarge(f"a body has at most {limits.body:,} bytes", code="api.request.too_large")
    if (request.content_length or 0) > limits.body:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > limits.body:
                    raise too_large
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {limits.body_s:g} s") from None
    return bytes(body)

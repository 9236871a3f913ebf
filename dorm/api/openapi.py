"""The description of all routes (OpenAPI 3.1), generated from their types and served at /v1/openapi.json."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.api import answers
from dorm.api.answers import JSON, POSITION, Problem
from dorm.api.connections import YAML
from dorm.api.identity import HEADER as USER
from dorm.api.identity import PATTERN as USER_PATTERN
from dorm.api.routes import Header
from events.spec import spec_schema
from events.spec.sweeps import fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dorm.api.routes import Link, Parameters, Route

_REF = "#/components/schemas/{name}"
_SPEC = "AppSpec"
_SWEEP = "SweepSpec"
_ALWAYS = {
    400: "The request cannot be read.",
    401: "The cluster knows its users, and nothing proves which of them makes the request.",
    403: "This user may not do that, or a page of another origin asks.",
    404: "There is no such thing, or not at that moment.",
    421: "The request names another host.",
    422: "The request can be read and not done.",
    429: "Too much at once.",
    502: "The log does not let the API do this.",
    503: "Not now; `Retry-After` says when to try again.",
}
_OF_BODIES = {
    408: "The body did not arrive in time.",
    413: "The body is too large.",
    415: "The body is of another type.",
}
_OTHER = {
    409: "Refused: it contradicts what is on the log.",
    412: "It has changed since it was read; read it again.",
    503: "It is behind the log, or does not follow it.",
    504: "It is not known in time what became of the request; the problem says what to do.",
}
_TAGS = {
    "apps": "Apps: submit, look at, change, cancel.",
    "sweeps": "Sweeps: many apps from one spec.",
    "nodes": "Nodes: look at, drain.",
    "log": "Events and decisions, in the log's order.",
    "moments": "The cluster at any moment of the log.",
    "policy": "What the cluster decides by, and what it would decide.",
    "cluster": "This process, and who leads.",
}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A token's secret (`dorm token add`)."},
    "basic": {"type": "http", "scheme": "basic", "description": "The same, as the user's password: for browsers."},
    "certificate": {"type": "mutualTLS", "description": "A certificate with the user as its common name."},
}
"""Ways to sign in.  On an open cluster none of them is needed."""
_KNOWN = {
    "dorm.api.resources.events.Decision": "dorm.api.resources.decisions.Decision",
    "dorm.api.resources.steering.Change": "dorm.api.resources.steering.trying.Change",
    "replay.comparison.Point": "replay.comparison.side.Point",
}
"""Names of schemas as clients know them, after their classes have moved: only classes whose names others share are named with
their modules, and what clients generate from the names must not change."""
_PATTERNS = {"position": r"^[0-9]{1,15}(\.[0-9]{1,9})?$"}


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """Return the description."""
    types = [type_ for route in routes for type_ in (route.answer, route.body) if type_ is not None]
    schemas, components = _components([*types, Problem])
    for type_ in types:
        if alternatives := getattr(type_, "ONE_OF", ()):
            components[type_.__name__]["oneOf"] = [
                {"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in alternatives
            ]
    known = {id(type_): schema for type_, schema in zip([*types, Problem], schemas, strict=True)}
    described = _Described(known)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = described.operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dorm",
            "version": version("dorm"),
            "description": "Shares one cluster among many machine-learning applications. Every answer names in the header "
            f"`{POSITION}` the position of the log that it shows; a write names where it is stored, and a read with "
            "that as `min_seq` shows what follows from it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": about} for name, about in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": {**_named(components), _SPEC: _spec(), _SWEEP: _sweep()},
            "securitySchemes": _SCHEMES,
        },
        "security": [{}, *({name: []} for name in _SCHEMES)],
    }


def _components(types: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the schemas of these types, and what they refer to, under the names that clients know."""
    encoded = msgspec.json.encode(msgspec.json.schema_components(types, ref_template=_REF))
    for name, known in _KNOWN.items():
        encoded = encoded.replace(f'{name}"'.encode(), f'{known}"'.encode())
    return msgspec.json.decode(encoded, type=tuple[list[dict[str, Any]], dict[str, Any]])


def _named(components: dict[str, Any]) -> dict[str, Any]:
    """Component names may have only some characters."""
    return {name: schema for name, schema in sorted(components.items()) if re.fullmatch(r"[A-Za-z0-9._-]+", name)}


def _spec() -> dict[str, Any]:
    """Return the schema of an app spec, with its own definitions inside."""
    schema = {name: value for name, value in spec_schema().items() if name != "$schema"}
    definitions: dict[str, Any] = schema["$defs"]
    prefix = f"#/components/schemas/{_SPEC}/$defs/"
    changed: dict[str, Any] = msgspec.json.decode(
        msgspec.json.encode(schema).replace(b'"#/$defs/', f'"{prefix}'.encode())
    )
    assert set(changed["$defs"]) == set(definitions)
    return changed


def _sweep() -> dict[str, Any]:
    """Return the schema of a spec that is several apps: the same with further fields."""
    schema = {name: value for name, value in _spec().items() if name != "$defs"}
    title = {"title": "Dorm sweep", "description": "An app spec with `array` or `sweep`: many apps."}
    several = [{"required": ["array"]}, {"required": ["sweep"]}]
    properties = {name: field for name, field in schema["properties"].items() if name != "group"}
    return {**schema, **title, "oneOf": several, "properties": {**properties, **fields()}}


class _Described:
    """Operations in terms of the components."""

    def __init__(self, known: dict[int, Any]) -> None:
        self._known = known

    def operation(self, route: Route) -> dict[str, Any]:
        made: dict[str, Any] = {
            "operationId": route.operation,
            "summary": route.summary,
            "description": inspect.getdoc(route.handler) or "",
            "tags": [route.tag],
            "parameters": [*_of_path(route.path), *_of_query(route.query), *_of_headers(route)],
            "responses": self._responses(route),
        }
        if route.body is not None:
            schema = {"$ref": _REF.format(name=route.spec)} if route.yaml else self._known[id(route.body)]
            content: dict[str, Any] = {JSON: {"schema": schema}}
            if route.yaml:
                content[YAML[0]] = {"schema": schema}
            made["requestBody"] = {"required": True, "content": content}
        return made

    def _responses(self, route: Route) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if route.answer is not None:
            content[JSON] = {"schema": self._known[id(route.answer)]}
        content |= {media: {"schema": {"type": "string"}} for media in route.media}
        done: dict[str, Any] = {
            "description": "Stored; what follows from it is on the log." if route.status == 202 else "Done.",
            "headers": {
                POSITION: {"description": "The position of the log.", "required": True, "schema": {"type": "string"}}
            },
            "content": content,
        }
        if route.links:
            done["links"] = {link.operation: _link(link) for link in route.links}
        statuses = {**_ALWAYS, **(_OF_BODIES if route.body is not None else {})}
        statuses |= {status: _OTHER[status] for status in route.problems}
        problem = {answers.CONTENT_TYPE: {"schema": self._known[id(Problem)]}}
        failures = {str(status): {"description": text, "content": problem} for status, text in sorted(statuses.items())}
        if route.operation == "ready":  # A load balancer looks at the status alone; people want to know the lag.
            failures["503"] = {**done, "description": _OTHER[503]}
        return {str(route.status): done, **failures}


def _link(link: Link) -> dict[str, Any]:
    return {"operationId": link.operation, "parameters": {f"{link.within}.{link.parameter}": link.source}}


def _of_path(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 512, "pattern": _PATTERNS.get(name, r"^[^/]+$")},
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _of_query(kind: type[Parameters]) -> list[dict[str, Any]]:
    (reference,), components = msgspec.json.schema_components([kind], ref_template=_REF)
    schema = components[reference["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    return [_parameter(name, dict(field), name in required) for name, field in schema["properties"].items()]


def _parameter(name: str, schema: dict[str, Any], required: bool) -> dict[str, Any]:
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        schema = {**schema, **choices[0]}
        schema.pop("anyOf")
    if schema.get("default", 0) in (None, []):
        schema.pop("default")
    made = {"name": name, "in": "query", "required": required, "description": schema.pop("description", "")}
    if schema.get("type") == "array":
        made |= {"style": "form", "explode": True}
    return {**made, "schema": schema}


def _of_headers(route: Route) -> list[dict[str, Any]]:
    who = Header(USER, "Who makes the request; nothing proves it.", USER_PATTERN, 64)
    return [
        {
            "name": header.name,
            "in": "header",
            "required": False,
            "description": header.about,
            "schema": {"type": "string", "maxLength": header.longest, "pattern": header.pattern},
        }
        for header in (*((who,) if route.body is not None else ()), *route.headers)
    ]

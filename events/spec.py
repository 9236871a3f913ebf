"""The spec of an app: the paper's 6-tuple (engine, demand d, weight w, n_max, n_min, commands) and what containers need.

The same document is a YAML or TOML file, the body of a submission from any client, and what `AppAccepted` carries to the
agents.  `check_spec` is the one gate: whatever passes it is safe to hand on.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from events.quantities import Quantity, duration, resources

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$"
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=NAME_PATTERN,
        description="lower-case letters, digits and dashes, at most 48",
        examples=["digits-mlp"],
    ),
]
User = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_@+-]{0,63}$")]
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Command = Annotated[list[str], msgspec.Meta(max_length=1000)]
Duration = Annotated[Quantity, msgspec.Meta(description="10s, 500ms, 2m, 1h, or a number of seconds")]

LARGEST_SPEC = 256 * 1024
"""Bytes of a submission's body; more is refused."""


class SpecError(ValueError):
    """A spec that is refused; the message is one line that says what to change."""


class Retries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How often a failed app is started again, and after which pause (doubled each time, up to `longest`)."""

    limit: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 3
    backoff: Duration = "1s"
    longest: Duration = "5m"


class AppSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One distributed ML application, as its owner describes it."""

    name: Name
    command: Annotated[Command, msgspec.Meta(min_length=1, description="starts one worker")]
    demand: Annotated[
        dict[str, Quantity],
        msgspec.Meta(min_length=1, max_length=32, description="resources of one container: cpu, memory, gpu, others"),
    ]
    n_min: Annotated[Count, msgspec.Meta(description="containers without which it can't run")] = 1
    n_max: Annotated[Count, msgspec.Meta(description="containers beyond which it gains nothing")] = 1
    weight: Annotated[float, msgspec.Meta(ge=0.001, le=1000, description="its share against others'")] = 1.0
    engine: Literal["plain", "torchrun"] = "plain"
    image: Annotated[str, msgspec.Meta(max_length=512, description="ignored where nodes run plain processes")] = ""
    resume: Annotated[Command, msgspec.Meta(description="starts a worker from the checkpoint; default: `command`")] = []
    checkpoint: Annotated[
        Command,
        msgspec.Meta(description="run in each container before a resize stops it; default: SIGTERM only"),
    ] = []
    env: Annotated[dict[str, str], msgspec.Meta(max_length=1000)] = {}
    grace: Annotated[Duration, msgspec.Meta(description="time between SIGTERM and SIGKILL")] = "10s"
    retries: Retries = Retries()
    user: User = "anonymous"
    labels: Annotated[dict[str, str], msgspec.Meta(max_length=100)] = {}

    def resources(self) -> dict[str, int]:
        """The demand of one container (d_i) in base units."""
        return resources(self.demand)

    @property
    def grace_s(self) -> float:
        return duration(self.grace)


_NUL = re.compile("\x00")


def check_spec(document: object) -> AppSpec:
    """A checked spec from a decoded document.  Raises SpecError."""
    if not isinstance(document, dict):
        raise SpecError(f"a spec is a map with name, command and demand, not {_kind_of(document)}")
    try:
        spec = msgspec.convert(document, AppSpec)
    except msgspec.ValidationError as error:
        raise SpecError(_readable(str(error))) from None
    if spec.n_min > spec.n_max:
        raise SpecError(f"n_min is {spec.n_min} and n_max {spec.n_max}; n_min can't be the larger")
    try:
        demand = spec.resources()
        for value in (spec.grace, spec.retries.backoff, spec.retries.longest):
            duration(value)
    except ValueError as error:
        raise SpecError(str(error)) from None
    if not demand:
        raise SpecError("demand: at least one resource must be more than 0")
    for part in (*spec.command, *spec.resume, *spec.checkpoint, *spec.env, *spec.env.values(), spec.image):
        if _NUL.search(part):
            raise SpecError("commands, env and image can't hold a NUL character")
    for name in spec.env:
        if not name or "=" in name or name.startswith("DORM_"):
            raise SpecError(f"env: {name!r} can't be set (names may not hold '=', and DORM_* are Dorm's own)")
    if not spec.command[0]:
        raise SpecError("command: the program's name is empty")
    return spec


def spec_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of an app spec, for editors and for other languages' clients."""
    (schema,), components = msgspec.json.schema_components([AppSpec], ref_template="#/$defs/{name}")
    definitions = dict(components)
    top = definitions.pop(schema["$ref"].rsplit("/", 1)[-1])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Dorm app spec",
        **top,
        "$defs": definitions,
    }


def _kind_of(document: object) -> str:
    names = {
        type(None): "nothing",
        str: "text",
        list: "a list",
        int: "a number",
        float: "a number",
        bytes: "bytes",
    }
    return names.get(type(document), type(document).__name__)


def _readable(message: str) -> str:
    """msgspec's message with its JSON path turned into the words of the spec file."""
    text, separator, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if path.startswith("["):
        path = ""
    if not separator or not path:
        return text[:500]
    return f"{path}: {text[0].lower()}{text[1:]}"[:500]

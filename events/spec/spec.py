"""An app's spec: the paper's 6-tuple (engine, demand d, weight w, n_max, n_min, commands) and what containers need.

The same document is a YAML or TOML file, the body of a submission from any client, and part of the `AppAccepted` that agents
read.  `check_spec` is the only gate, and only it makes a `CheckedSpec`: code that needs a valid spec takes one, and need not
check it again.  A spec is checked twice on its way: by the client, which can explain it to its author at once, and by the
master, which believes no client.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec

from events.quantities import Quantity, QuantityError, duration, resource, resources, short
from events.spec.engines import ENGINES, EngineName, EngineOptions, check_options, check_role_counts
from events.spec.faults import SpecError, readable, unknown_field
from events.spec.requirements import LONGEST, RequirementError, requirement
from events.spec.value import Utility, Work

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
ResourceName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_./-]{0,62}$")]
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Command = Annotated[list[str], msgspec.Meta(max_length=1000)]
Duration = Annotated[Quantity, msgspec.Meta(description="10s, 500ms, 2m, 1h, or a number of seconds")]
Text = Annotated[str, msgspec.Meta(max_length=1024)]
BatchSize = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
"""Samples in one step, over all containers."""
Rate = Annotated[float, msgspec.Meta(ge=1e-9, le=1e12, description="steps per second")]
Curve = Annotated[list[tuple[Count, Rate]], msgspec.Meta(min_length=1, max_length=1000)]

LARGEST_SPEC = 256 * 1024
"""Bytes of a spec in MessagePack; larger ones are refused."""

LARGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes of one part of a command, or of one `NAME=value`: Linux's limit (MAX_ARG_STRLEN)."""

_FORMATS = {
    "name": "lower-case letters, digits and dashes, at most 48",
    "user": "letters, digits and _ @ + -, at most 64",
    "engine": f"{', '.join(ENGINES[:-1])} or {ENGINES[-1]}",
    "engine_options.rendezvous": "static or c10d",
    "placement": "spread or pack",
    "elastic": "live",
    "demand": "a resource name (letters, digits and _ . / -, at most 63)",
}


Limit = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class Retries(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often a failed app is started again, and after which pause.  Failures without their own limit share `limit`; lost
    nodes and taken ports use up no retries."""

    limit: Annotated[Limit, msgspec.Meta(description="how often it is started again; 0: never")] = 3
    backoff: Annotated[
        Duration, msgspec.Meta(description="the first pause; doubled for each further failure in a row")
    ] = "1s"
    longest: Annotated[Duration, msgspec.Meta(description="the longest pause")] = "5m"
    reset: Annotated[
        Duration,
        msgspec.Meta(
            description="failures are forgotten once all its containers have run for so long since the last one"
        ),
    ] = "1h"
    fatal_exit_codes: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1, le=255)]],
        msgspec.Meta(max_length=255, description="exit codes after which it is not started again", examples=[[2, 78]]),
    ] = []
    exit: Annotated[Limit | None, msgspec.Meta(description="a limit of its own for: ended with an exit code")] = None
    out_of_memory: Annotated[Limit | None, msgspec.Meta(description="for: ran out of memory")] = None
    image: Annotated[Limit | None, msgspec.Meta(description="for: its image could not be pulled")] = None
    command: Annotated[Limit | None, msgspec.Meta(description="for: its command could not be run")] = None
    start: Annotated[Limit | None, msgspec.Meta(description="for: not started by `deadlines.start`")] = None
    stalled: Annotated[Limit | None, msgspec.Meta(description="for: no work within `deadlines.progress`")] = None

    @property
    def backoff_s(self) -> float:
        return _seconds(self.backoff)

    @property
    def longest_s(self) -> float:
        return _seconds(self.longest)

    @property
    def reset_s(self) -> float:
        return _seconds(self.reset)


OWN_LIMITS = ("exit", "out_of_memory", "image", "command", "start", "stalled")
"""Causes of a failure that may have their own limit in `Retries`."""


class Deadlines(msgspec.Struct, frozen=True, omit_defaults=True):
    """How long an app may take before it counts as failed; 0 or "" is no deadline.  A deadline counts as missed only after
    the cluster's `node_grace_s` beyond it: it takes that long to distinguish an app that hangs from a node that can't be
    heard."""

    start: Annotated[
        Duration, msgspec.Meta(description="until all its containers have started, pulling images included")
    ] = "10m"
    progress: Annotated[
        Duration,
        msgspec.Meta(
            description="the longest time without a sign of work (progress or a checkpoint), from its start on",
            examples=["15m"],
        ),
    ] = ""
    live: Annotated[
        Duration,
        msgspec.Meta(
            description="with `elastic: live`: until an announced membership trains; after that it is restarted instead"
        ),
    ] = "60s"

    @property
    def live_s(self) -> float:
        return _seconds(self.live)

    @property
    def start_s(self) -> float | None:
        return (self.start != "" and _seconds(self.start)) or None

    @property
    def progress_s(self) -> float | None:
        return (self.progress != "" and _seconds(self.progress)) or None


class BatchRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The batch sizes that an app accepts, in samples of one step over all its containers.  A policy that weighs goodput
    chooses among them once the app has reported its gradient noise; before that, and under other policies, the app has the
    initial one."""

    initial: Annotated[BatchSize, msgspec.Meta(description="the batch size that its speed and its steps refer to")]
    least: Annotated[BatchSize, msgspec.Meta(description="the smallest that it accepts")]
    most: Annotated[BatchSize, msgspec.Meta(description="the largest with which it still learns")]
    per_container: Annotated[
        BatchSize,
        msgspec.Meta(
            description="what the memory of one container holds; it works through a larger part in several passes"
        ),
    ]


@lru_cache(maxsize=4096)
def _seconds(text: Quantity) -> float:
    """Return the seconds of a checked duration, cached: it is read for each app after each record."""
    return duration(text)


class AppSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One distributed ML application, as its owner describes it.

    This is what logs hold.  Decoding accepts unknown fields, so that an older agent reads what a newer master accepted; only
    `check_spec` refuses them.
    """

    name: Name
    command: Annotated[Command, msgspec.Meta(min_length=1, description="starts one worker")]
    demand: Annotated[
        dict[ResourceName, Quantity],
        msgspec.Meta(min_length=1, max_length=32, description="resources of one container: cpu, memory, gpu, others"),
    ]
    n_min: Annotated[Count, msgspec.Meta(description="containers without which it can't run; default: gang")] = 1
    n_max: Annotated[Count, msgspec.Meta(description="containers beyond which it gains nothing; default: n_min")] = 1
    weight: Annotated[float, msgspec.Meta(ge=0.001, le=1000, description="its share against others'")] = 1.0
    require: Annotated[
        str,
        msgspec.Meta(
            max_length=LONGEST,
            description="which nodes it may use, by their labels; default: any",
            examples=['gpu_type == "h100" and zone in ["a", "b"] and not has spot'],
        ),
    ] = ""
    placement: Annotated[
        Literal["", "spread", "pack"],
        msgspec.Meta(
            description="few containers on each node, or few nodes: a wish that decides only among placements which "
            "are otherwise equally good; default: none"
        ),
    ] = ""
    gang: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=1024,
            description="containers come in groups of this many, each group whole on one node; n_min and n_max are "
            "multiples of it",
        ),
    ] = 1
    steps: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=10**15,
            description="all of its work, in the steps that it reports, for policies that use what is left; default: unknown",
        ),
    ] = 0
    speed: Annotated[
        list[tuple[Count, Rate]],
        msgspec.Meta(
            max_length=1000,
            description="how fast it works: pairs of containers and steps per second, by containers; for policies that "
            "weigh apps by what they gain; default: not known",
            examples=[[[1, 2.5], [2, 4.7], [4, 8.1]]],
        ),
    ] = []
    speed_on: Annotated[
        dict[Text, Curve],
        msgspec.Meta(max_length=32, description="the same on nodes of a type (their label `type`), where it differs"),
    ] = {}
    utility: Annotated[
        Utility | None,
        msgspec.Meta(description="what its completion is worth by its time; default: its weight at any time"),
    ] = None
    work: Annotated[
        Work | None, msgspec.Meta(description="how much work it has: for policies that plan ahead; default: not known")
    ] = None
    batch: Annotated[
        BatchRange | None,
        msgspec.Meta(
            description="the batch sizes that it accepts (`DORM_BATCH`); default: its batch size is its own affair"
        ),
    ] = None
    engine: EngineName = "plain"
    engine_options: EngineOptions = EngineOptions()
    elastic: Annotated[
        Literal["", "live"],
        msgspec.Meta(
            description="live: members join and leave while the others train (`DORM_MEMBERS`); "
            "default: it is resized by checkpoint and restart"
        ),
    ] = ""
    image: Annotated[str, msgspec.Meta(max_length=512, description="ignored where nodes run plain processes")] = ""
    resume: Annotated[Command, msgspec.Meta(description="starts a worker from the checkpoint; default: `command`")] = []
    checkpoint: Annotated[
        Command,
        msgspec.Meta(description="run in each container before a resize stops it; default: SIGTERM only"),
    ] = []
    env: Annotated[dict[str, str], msgspec.Meta(max_length=1000)] = {}
    grace: Annotated[Duration, msgspec.Meta(description="time between SIGTERM and SIGKILL")] = "10s"
    retries: Retries = Retries()
    deadlines: Deadlines = Deadlines()
    user: User = "anonymous"
    labels: Annotated[dict[Text, Text], msgspec.Meta(max_length=100)] = {}

    def resources(self) -> dict[str, int]:
        """Return the demand of one container (d_i) in base units."""
        return resources(self.demand)

    @property
    def grace_s(self) -> float:
        return _seconds(self.grace)


class CheckedSpec(AppSpec, frozen=True, omit_defaults=True):
    """A spec that `check_spec` has accepted.  Only that function makes one."""

    def stored(self) -> AppSpec:
        """Return the spec as a log gives it back: structs of different classes are never equal."""
        return AppSpec(**{name: getattr(self, name) for name in AppSpec.__struct_fields__})


def check_spec(document: object) -> CheckedSpec:
    """Return a checked spec from a decoded document.  Raises SpecError."""
    if not isinstance(document, dict):
        text = f"a spec is a map with name, command and demand, not {_kind_of(document)}"
        raise SpecError(text, code="spec.not_a_map")
    _check_fields(document)
    try:
        spec = msgspec.convert(document, CheckedSpec)
    except msgspec.ValidationError as error:
        raise SpecError.of(readable(error, document, AppSpec, _FORMATS)) from None
    except RecursionError:
        raise SpecError("the spec is nested too deeply", code="spec.too_deep") from None
    if "n_min" not in document:
        spec = msgspec.structs.replace(spec, n_min=spec.gang)
    if "n_max" not in document:
        spec = msgspec.structs.replace(spec, n_max=spec.n_min)
    check_gang(spec.gang, n_min=spec.n_min, n_max=spec.n_max)
    if spec.n_min > spec.n_max:
        raise SpecError(f"n_min: {spec.n_min} is more than n_max, which is {spec.n_max}", code="spec.n_min.above_n_max")
    check_roles(spec, spec.n_min)
    _check_speed(spec)
    _check_batch(spec)
    try:
        requirement(spec.require)
    except RequirementError as error:
        raise SpecError.at("require", error) from None
    _check_quantities(spec)
    _check_texts(spec)
    return spec


def document_of(spec: AppSpec) -> dict[str, Any]:
    """Return the spec as its owner would write it: only the fields that differ from their defaults.

    Defaults are compared by value.  msgspec's own `omit_defaults` compares identity, so it would produce another document for
    a spec that came from another process."""
    document: dict[str, Any] = _differing(spec, _DEFAULTS)
    for name, defaults in _NESTED.items():
        if name in document:
            document[name] = _differing(getattr(spec, name), defaults)
    return document


def _differing(struct: msgspec.Struct, defaults: dict[str, Any]) -> dict[str, Any]:
    return {
        name: msgspec.to_builtins(value, str_keys=True)
        for name in struct.__struct_fields__
        if (value := getattr(struct, name)) != defaults.get(name, msgspec.NODEFAULT)
    }


def _defaults_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        field.name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(kind)
        if not field.required
    }


_DEFAULTS = _defaults_of(AppSpec)
_PARTS: dict[str, type[msgspec.Struct]] = {
    "engine_options": EngineOptions, "retries": Retries, "deadlines": Deadlines, "batch": BatchRange, "utility": Utility,
    "work": Work,
}  # fmt: skip
_NESTED = {name: _defaults_of(kind) for name, kind in _PARTS.items()}


def check_gang(gang: int, **bounds: int) -> None:
    """Refuse the first bound that would split a gang.  Raises SpecError."""
    for name, bound in bounds.items():
        if bound % gang:
            below, above = bound - bound % gang, bound - bound % gang + gang
            multiples = f"{below} or {above}" if below else f"{above}"
            raise SpecError(
                f"{name}: {bound} is not a multiple of gang, which is {gang}; write {multiples}",
                code=f"spec.{name}.splits_gang",
            )


def check_roles(spec: AppSpec, n_min: int) -> None:
    """Refuse options that the engine does not have, and an n_min with which a role would have no container.  Raises
    SpecError."""
    check_options(spec.engine, spec.engine_options)
    check_role_counts(spec.engine, spec.engine_options, n_min)


def _check_fields(document: dict[Any, Any]) -> None:
    fault = unknown_field(document, AppSpec.__struct_encode_fields__)
    for name, kind in _PARTS.items():
        nested = document.get(name)
        if not fault and isinstance(nested, dict):
            fault = unknown_field(nested, kind.__struct_encode_fields__, f"{name}.")
    if fault:
        raise SpecError.of(fault)


def _check_speed(spec: AppSpec) -> None:
    curves = {"speed": spec.speed, **{f"speed_on.{kind}": points for kind, points in spec.speed_on.items()}}
    for name, points in curves.items():
        for index, ((before, _), (count, _)) in enumerate(pairwise(points), start=1):
            if count <= before:
                order = f"{count} containers come after {before}; list each count once, ascending"
                raise SpecError(f"{name}[{index}]: {order}", code="spec.speed.not_ascending")


def _check_batch(spec: AppSpec) -> None:
    if spec.batch is not None and not spec.batch.least <= spec.batch.initial <= spec.batch.most:
        text = (
            f"batch: initial is {spec.batch.initial}; it must be between least ({spec.batch.least}) "
            f"and most ({spec.batch.most})"
        )
        raise SpecError(text, code="spec.batch.initial_outside")


def _check_quantities(spec: AppSpec) -> None:
    retries, deadlines = spec.retries, spec.deadlines
    durations = {
        "grace": spec.grace,
        **{f"retries.{name}": getattr(retries, name) for name in ("backoff", "longest", "reset")},
        **{f"deadlines.{name}": getattr(deadlines, name) for name in ("start", "progress", "live")},
        **({"utility.target": spec.utility.target} if spec.utility else {}),
        **({f"work.{name}": getattr(spec.work, name) for name in ("mini_batch", "exchange")} if spec.work else {}),
    }
    for path, quantity in durations.items():
        if quantity == "" and path in ("deadlines.start", "deadlines.progress"):
            continue
        try:
            duration(quantity)
        except QuantityError as error:
            raise SpecError.at(path, error) from None
    if not duration(deadlines.live):
        text = "deadlines.live: 0 would leave no time for a live resize; write a time such as 60s"
        raise SpecError(text, code="spec.deadlines.live.zero")
    if spec.work is not None and not spec.work.seconds:
        text = "work.mini_batch: 0 would be no work at all; write a time such as 200ms"
        raise SpecError(text, code="spec.work.mini_batch.zero")
    try:
        amounts = [resource(name, quantity) for name, quantity in spec.demand.items()]
    except QuantityError as error:
        raise SpecError(f"demand.{error}", code=f"spec.demand.{error.problem}") from None
    if not any(amounts):
        raise SpecError("demand: at least one resource must be more than 0", code="spec.demand.all_zero")


def _check_texts(spec: AppSpec) -> None:
    """Refuse texts that a process, container engine or log can't take: NUL, broken text, reserved names, too many bytes."""
    # Patterns that end in `$`, as JSON Schema wants them, accept a trailing line end.
    for path, name in (("name", spec.name), ("user", spec.user), *(("demand", name) for name in spec.demand)):
        if name.endswith("\n"):
            raise SpecError(f"{path}: {short(name)} can't hold a line end", code=f"spec.{path}.malformed")
    for name in spec.env:
        if not name or "=" in name:
            text = f"env: {short(name)} can't be the name of a variable (it is empty or holds '=')"
            raise SpecError(text, code="spec.env.malformed")
        if name.startswith("DORM_"):
            raise SpecError(f"env.{name[:60]}: names that begin with DORM_ are Dorm's own", code="spec.env.reserved")
    if "" in spec.labels:
        raise SpecError("labels: a label's name is empty", code="spec.labels.malformed")
    for path, text in _texts(spec):
        if "\x00" in text:
            raise SpecError(f"{path}: can't hold a NUL character", code=f"spec.{_field(path)}.malformed")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise SpecError(f"{path}: is not valid Unicode text", code=f"spec.{_field(path)}.not_unicode") from None
        if size > LARGEST_ARGUMENT:
            text = f"{path}: {size:,} bytes are more than a process can be given ({LARGEST_ARGUMENT:,})"
            raise SpecError(text, code=f"spec.{_field(path)}.too_large")
    for path, command in (("command", spec.command), ("resume", spec.resume), ("checkpoint", spec.checkpoint)):
        if command and not command[0].strip():
            raise SpecError(f"{path}: the program's name is empty", code=f"spec.{path}.no_program")
    size = len(msgspec.msgpack.encode(spec))
    if size > LARGEST_SPEC:
        raise SpecError(f"the spec has {size:,} bytes; at most {LARGEST_SPEC:,} are taken", code="spec.too_large")


def _field(path: str) -> str:
    """Return the field of a path such as `command[1]` or `env.HOME`."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _texts(spec: AppSpec) -> list[tuple[str, str]]:
    """Return every free text of a spec, with its path."""
    texts = [("image", spec.image)]
    for path, command in (("command", spec.command), ("resume", spec.resume), ("checkpoint", spec.checkpoint)):
        texts += [(f"{path}[{index}]", part) for index, part in enumerate(command)]
    for path, entries in (("env", spec.env), ("labels", spec.labels)):
        texts += [(path, name) for name in entries]
        texts += [(f"{path}.{short(name)[1:-1]}", f"{name}={value}") for name, value in entries.items()]
    return texts


def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of an app spec, for editors and for other languages' clients.

    `check_spec` refuses everything that the schema refuses, and checks what a schema can't express: n_min ≤ n_max, multiples
    of gang, requirements, units, sizes.
    """
    (schema,), components = msgspec.json.schema_components([AppSpec], ref_template="#/$defs/{name}")
    definitions = dict(components)
    top = definitions.pop(schema["$ref"].rsplit("/", 1)[-1])
    for follows in ("n_min", "n_max"):
        top["properties"][follows].pop("default")
    for strict in (top, *definitions.values()):
        strict["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "title": "Dorm app spec",
        "description": "One distributed ML application, as its owner describes it.",
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

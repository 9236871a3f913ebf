"""An app's spec: the paper's 6-tuple (engine, demand d, weight w, n_max, n_min, commands) and what containers need.

The same document is a YAML or TOML file, the body of a submission from any client, and part of the `AppAccepted` that agents
read.  `events.spec.checking` checks it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

import msgspec

from events.fields import Argument, holds
from events.quantities import Quantity, duration, resources
from events.spec.declared import by_restart, live, never
from events.spec.engines import EngineName, EngineOptions
from events.spec.gates import MOST_AWAITED, After, AppReference, OriginText
from events.spec.groups import Group
from events.spec.notify import LONGEST_URL, Notify
from events.spec.provided import Field as WorkdirField
from events.spec.provided import PythonVersion, Requirements, Setup, Volumes, Workdir
from events.spec.requirements import LONGEST
from events.spec.value import Utility, Work

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$"
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=NAME_PATTERN,
        description="lower-case letters, digits and dashes, at most 48",
        examples=["digits-mlp"],
    ),
    holds("app"),
]
User = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_@+-]{0,63}$"), holds("user")]
ResourceName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_./-]{0,62}$"), holds("resource")]
Count = Annotated[int, msgspec.Meta(ge=1, le=100_000)]
Command = Annotated[list[Argument], msgspec.Meta(max_length=1000)]
Resource = Annotated[Quantity, holds("word")]
Duration = Annotated[Quantity, msgspec.Meta(description="10s, 500ms, 2m, 1h, or a number of seconds"), holds("word")]
Text = Annotated[str, msgspec.Meta(max_length=1024)]
Variable = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,126}$"), holds("variable")]
SecretName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"), holds("setting")]
BatchSize = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
"""Samples in one step, over all containers."""
Rate = Annotated[float, msgspec.Meta(ge=1e-9, le=1e12, description="steps per second")]
Curve = Annotated[list[tuple[Count, Rate]], msgspec.Meta(min_length=1, max_length=1000)]

_WAIT = "`dorm hold {app}` keeps it waiting until `dorm release {app}`"

SignalName = Literal["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"]
SIGNALS: tuple[str, ...] = get_args(SignalName)
"""Signals with which an app may be asked to stop."""

Limit = Annotated[int, msgspec.Meta(ge=0, le=1000)]


class Retries(msgspec.Struct, frozen=True, omit_defaults=True):
    """How often a failed app is restarted, and after which pause.  Failures without their own limit share `limit`;
    lost nodes and taken ports use up no retries."""

    limit: Annotated[
        Limit, msgspec.Meta(description="how often the app is restarted after failures that are its own; 0: never")
    ] = 3
    backoff: Annotated[
        Duration,
        msgspec.Meta(
            description="the first pause; doubled for each further consecutive failure, and then at least 200ms"
        ),
    ] = "1s"
    longest: Annotated[
        Duration, msgspec.Meta(description="the longest pause; after seven consecutive failures, at least 10s")
    ] = "5m"
    reset: Annotated[
        Duration,
        msgspec.Meta(
            description="failures are forgotten when all its containers have run for this time since the last failure"
        ),
    ] = "1h"
    fatal_exit_codes: Annotated[
        list[Annotated[int, msgspec.Meta(ge=1, le=255)]],
        msgspec.Meta(max_length=255, description="exit codes after which the app is not restarted", examples=[[2, 78]]),
    ] = []
    exit: Annotated[Limit | None, msgspec.Meta(description="a separate limit for: ended with an exit code")] = None
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
        Duration, msgspec.Meta(description="until all its containers have started, including the time to pull images")
    ] = "10m"
    progress: Annotated[
        Duration,
        msgspec.Meta(
            description="the longest time without a sign of work (progress or a checkpoint), from the start on",
            examples=["15m"],
        ),
    ] = ""
    live: Annotated[
        Duration,
        msgspec.Meta(
            description="with `elastic: live`: until an announced membership trains; after that, the app is "
            "restarted instead"
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


class StopSignal(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a container is asked to stop, before a resize, a hold, a drain or at its end (`agents.runtime.stopping`).  A signal
    that no process of the container handles is replaced by SIGTERM."""

    signal: Annotated[SignalName, msgspec.Meta(description="the signal that asks it to save and to end")] = "SIGTERM"
    to: Annotated[
        Literal["main", "group"],
        msgspec.Meta(
            description="main: the programs that handle the signal, without their helpers, and through shells and "
            "launchers that do not; group: every process"
        ),
    ] = "main"
    before: Annotated[
        Duration,
        msgspec.Meta(
            description="how long before SIGTERM the signal comes, at most 1h; then `grace` begins; default: SIGTERM "
            "does not follow",
            examples=["60s"],
        ),
    ] = ""

    @property
    def before_s(self) -> float:
        return _seconds(self.before) if self.before != "" else 0.0


class BatchRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The batch sizes that an app accepts, in samples of one step over all its containers.  A policy that weighs goodput
    chooses among them once the app has reported its gradient noise; before that, and under other policies, the app has the
    initial one."""

    initial: Annotated[BatchSize, msgspec.Meta(description="the batch size that its speed and its steps refer to")]
    least: Annotated[BatchSize, msgspec.Meta(description="the smallest accepted batch size")]
    most: Annotated[BatchSize, msgspec.Meta(description="the largest accepted batch size")]
    per_container: Annotated[
        BatchSize,
        msgspec.Meta(
            description="the samples that fit into the memory of one container; a larger part takes several passes"
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

    name: Annotated[Name, never()]
    command: Annotated[Command, msgspec.Meta(min_length=1, description="the command that starts one worker")]
    demand: Annotated[
        dict[ResourceName, Resource],
        msgspec.Meta(min_length=1, max_length=32, description="resources of one container: cpu, memory, gpu, others"),
    ]
    n_min: Annotated[
        Count,
        msgspec.Meta(description="the smallest number of containers with which it can run; default: gang"),
        live(shown=True),
    ] = 1
    n_max: Annotated[
        Count,
        msgspec.Meta(description="the largest number of containers that it can use; default: n_min"),
        live(shown=True),
    ] = 1
    weight: Annotated[
        float, msgspec.Meta(ge=0.001, le=1000, description="its share relative to other apps"), live(shown=True)
    ] = 1.0
    require: Annotated[
        str,
        msgspec.Meta(
            max_length=LONGEST,
            description="which nodes it may use, by their labels; default: any",
            examples=['gpu_type == "h100" and zone in ["a", "b"] and not has spot'],
        ),
        live(),
        holds("requirement"),
    ] = ""
    placement: Annotated[
        Literal["", "spread", "pack"],
        msgspec.Meta(
            description="few containers on each node, or few nodes: a preference that decides only among "
            "placements that are otherwise equally good; default: none"
        ),
        live(shown=True),
    ] = ""
    gang: Annotated[
        int,
        msgspec.Meta(
            ge=1,
            le=1024,
            description="containers come in groups of this many, each group whole on one node; n_min and n_max are "
            "multiples of it",
        ),
        by_restart(shown=True),
    ] = 1
    steps: Annotated[
        int,
        msgspec.Meta(
            ge=0,
            le=10**15,
            description="its total work, in the steps that it reports, for policies that use the remaining work; "
            "default: unknown",
        ),
        live(),
    ] = 0
    speed: Annotated[
        list[tuple[Count, Rate]],
        msgspec.Meta(
            max_length=1000,
            description="its speed: pairs of containers and steps per second, by containers; for policies that "
            "compare the gains of apps; default: unknown",
            examples=[[[1, 2.5], [2, 4.7], [4, 8.1]]],
        ),
        live(),
    ] = []
    speed_on: Annotated[
        dict[Annotated[Text, holds("value")], Curve],
        msgspec.Meta(max_length=32, description="the speed on nodes of a type (their label `type`), if it differs"),
        live(),
    ] = {}
    utility: Annotated[
        Utility | None,
        msgspec.Meta(
            description="the value of its completion by the time of completion; default: its weight at any time"
        ),
        live(),
    ] = None
    work: Annotated[
        Work | None,
        msgspec.Meta(description="its amount of work, for policies that plan ahead; default: unknown"),
        live(),
    ] = None
    batch: Annotated[
        BatchRange | None,
        msgspec.Meta(
            description="the batch sizes that it accepts (`DORM_BATCH`); default: Dorm does not choose the batch size"
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
        by_restart(shown=True),
    ] = ""
    resizable: Annotated[
        Literal["auto", "never"],
        msgspec.Meta(
            description="never: once started, it keeps its containers until it ends, up to its fair share (or n_min, if that "
            "is more); auto: it is resized, and rarely while it has reported no checkpoint",
        ),
        live(shown=True),
    ] = "auto"
    image: Annotated[
        str,
        msgspec.Meta(max_length=512, description="the container image; ignored on nodes that run plain processes"),
        holds("image"),
    ] = ""
    resume: Annotated[
        Command, msgspec.Meta(description="the command that starts a worker from the checkpoint; default: `command`")
    ] = []
    origin: Annotated[
        OriginText, by_restart(later="submit another app that starts from that checkpoint"), holds("origin")
    ] = msgspec.field(default="", name="from")
    checkpoint: Annotated[
        Command,
        msgspec.Meta(description="a command to run in each container before a resize stops it; default: SIGTERM only"),
    ] = []
    on_doubtful: Annotated[
        Literal["resume", "fall_back"],
        msgspec.Meta(
            description="what follows if files of its checkpoint changed after it was last reported, as when a "
            "container is killed while it saves: `resume` from them, or `fall_back` to the one before, if that has a "
            "name of its own"
        ),
        live(needs="falls-back"),
    ] = "resume"
    workdir: Annotated[WorkdirField, by_restart(needs="workdir"), holds("workdir")] = None
    env: Annotated[
        dict[Annotated[str, holds("variable")], Annotated[str, holds("setting")]], msgspec.Meta(max_length=1000)
    ] = {}
    secrets: Annotated[
        dict[Variable, SecretName],
        msgspec.Meta(
            max_length=32,
            description="variables that hold paths of files; each file is a secret of this user on the nodes "
            "(`dorm agent --secrets`)",
            examples=[{"WANDB_API_KEY_FILE": "wandb"}],
        ),
    ] = {}
    python: Annotated[PythonVersion, holds("own")] = ""
    requirements: Requirements = []
    setup: Setup = []
    volumes: Annotated[
        Volumes,
        msgspec.Meta(
            description="folders that nodes offer, by name (`dorm nodes -o wide`), with their paths in a "
            "container; a list allows further settings for each",
            examples=[{"datasets": "/data"}, [{"name": "scratch", "at": "/scratch", "read_only": False}]],
        ),
        holds("volumes"),
    ] = {}
    grace: Annotated[Duration, msgspec.Meta(description="time between SIGTERM and SIGKILL, at most 1h"), live()] = "10s"
    stop_signal: Annotated[
        StopSignal,
        msgspec.Meta(
            description="how its containers are asked to stop: a signal, or a map with `signal`, `to` and `before`; "
            "default: SIGTERM",
            examples=[{"signal": "SIGUSR1", "before": "60s"}],
        ),
    ] = StopSignal()
    retries: Annotated[Retries, live()] = Retries()
    deadlines: Annotated[Deadlines, live()] = Deadlines()
    group: Annotated[
        Group | None,
        msgspec.Meta(description="the sweep or array that it belongs to; default: none"),
        live(),
        holds("group"),
    ] = None
    hold: Annotated[
        bool,
        msgspec.Meta(description="the app is accepted and held: it gets no containers before `dorm release`"),
        live(shown=True, later="`dorm hold {app}` and `dorm release {app}` are for an app that has started"),
    ] = False
    after: Annotated[
        list[After | AppReference],
        msgspec.Meta(
            max_length=MOST_AWAITED,
            description="apps that have to end before it gets containers; a name alone: the app has to complete. "
            "If one ends otherwise, this app is cancelled",
            examples=[["prep", {"app": "baseline", "when": "ended"}]],
        ),
        live(later=_WAIT),
        holds("after"),
    ] = []
    start_after: Annotated[
        Quantity,
        msgspec.Meta(
            description="the earliest start: a time with its zone, or a delay from the submission on",
            examples=["2026-11-24T08:00+01:00", "2h"],
        ),
        live(shown=True, later=_WAIT),
        holds("word"),
    ] = ""
    max_runtime: Annotated[
        Duration,
        msgspec.Meta(
            description="when its containers have run for this time, it is cancelled, with a checkpoint; waiting "
            "and pauses do not count; default: no limit",
            examples=["12h"],
        ),
        live(shown=True),
    ] = ""
    notify: Annotated[
        Notify | None,
        msgspec.Meta(
            description="where to notify its owner: a URL, or a map with `url` and `on`; default: no notification"
        ),
        live(),
        holds("notify"),
    ] = None
    user: Annotated[User, never()] = "anonymous"
    labels: Annotated[
        dict[Annotated[Text, holds("label")], Annotated[Text, holds("value")]], msgspec.Meta(max_length=100), live()
    ] = {}

    def resources(self) -> dict[str, int]:
        """Return the demand of one container (d_i) in base units."""
        return resources(self.demand)

    @property
    def grace_s(self) -> float:
        return _seconds(self.grace)

    @property
    def stop_s(self) -> float:
        """Seconds from the request to stop to SIGKILL."""
        return self.stop_signal.before_s + self.grace_s

    @property
    def max_runtime_s(self) -> float | None:
        return _seconds(self.max_runtime) if self.max_runtime != "" else None

    @property
    def builds(self) -> bool:
        """Whether packages or commands of its own are built on each node; the path of a Python alone builds nothing on nodes
        that run plain processes."""
        return bool(self.requirements or self.setup or (self.python and not self.python.startswith("/")))

    @property
    def needs_environment(self) -> bool:
        """Whether something has to be built before its command can run."""
        return bool(self.requirements or self.setup or self.python)


class CheckedSpec(AppSpec, frozen=True, omit_defaults=True):
    """A spec that `check_spec` has accepted.  Only that function makes one (`events.spec.checking`)."""

    def stored(self) -> AppSpec:
        """Return the spec as a log gives it back: structs of different classes are never equal."""
        return AppSpec(**{name: getattr(self, name) for name in AppSpec.__struct_fields__})


def document_of(spec: AppSpec) -> dict[str, Any]:
    """Return the spec as its owner would write it: only the fields that differ from their defaults.

    Defaults are compared by value.  msgspec's own `omit_defaults` compares identity, so it would produce another document for
    a spec that came from another process."""
    document: dict[str, Any] = _differing(spec, _DEFAULTS)
    for name, defaults in _NESTED.items():
        if name in document and isinstance(part := getattr(spec, name), msgspec.Struct):
            document[name] = _differing(part, defaults)
    return document


def _differing(struct: msgspec.Struct, defaults: dict[str, Any]) -> dict[str, Any]:
    return {
        written: msgspec.to_builtins(value, str_keys=True)
        for name, written in zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
        if (value := getattr(struct, name)) != defaults.get(name, msgspec.NODEFAULT)
    }


def _defaults_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {
        field.name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
        for field in msgspec.structs.fields(kind)
        if not field.required
    }


_DEFAULTS = _defaults_of(AppSpec)
PARTS: dict[str, type[msgspec.Struct]] = {
    "engine_options": EngineOptions, "retries": Retries, "deadlines": Deadlines, "batch": BatchRange, "utility": Utility,
    "work": Work, "workdir": Workdir, "group": Group, "notify": Notify, "stop_signal": StopSignal,
}  # fmt: skip
_NESTED = {name: _defaults_of(kind) for name, kind in PARTS.items()}


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
    top["properties"]["notify"]["anyOf"].append({"type": "string", "maxLength": LONGEST_URL})
    top["properties"]["stop_signal"]["anyOf"] = [
        {"$ref": top["properties"]["stop_signal"].pop("$ref")},
        {"enum": list(SIGNALS)},
    ]
    for command in ("command", "resume", "checkpoint"):
        top["properties"][command]["prefixItems"] = [{"type": "string", "pattern": r"\S"}]
    for strict in (top, *definitions.values()):
        strict["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "title": "Dorm app spec",
        "description": "One distributed ML application, as its owner describes it.",
        "$defs": definitions,
    }

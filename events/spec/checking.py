"""The gate for specs: `check_spec` accepts a document, or reports to its author in one line what to change.

Only `check_spec` makes a `CheckedSpec`: code that needs a valid spec takes one, and need not check it again.  A spec
is checked twice on its way: by the client, which can explain it to its author at once, and by the master, which
believes no client.

*Amounts* are durations and resources, and the bounds on what one app may ask of a cluster and its neighbors.  Logs
hold specs that earlier releases accepted with other bounds, so the fold asks `can_be_read` alone.

*Texts* are commands, variables, labels and the image.

*Secrets* must not be in a spec: the log keeps every spec, and everyone who reads the log reads them.  No rule finds
every secret.  These find the usual ones by the formats of well-known credentials, and by names of variables.  A
message never repeats the value.
"""

from __future__ import annotations

import re
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from events.quantities import CPU, MEMORY, QuantityError, duration, humanize, resource, short
from events.spec.abilities import requirement_with
from events.spec.engines import ENGINES, check_command, check_options, check_role_counts
from events.spec.faults import Fault, SpecError, shape_faults, unknown_fields
from events.spec.gates import After, check_gates, starts_at
from events.spec.groups import check_group, completed, written
from events.spec.notify import as_map, check_notify
from events.spec.provided import check_environment, check_environment_form, check_volumes, check_volumes_form
from events.spec.requirements import RequirementError, requirement
from events.spec.spec import PARTS, SIGNALS, AppSpec, CheckedSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Set

    from events.quantities import Quantity


# --- amounts ----------------------------------------------------------------------------------------------------------

LONGEST_GRACE_S = 3600.0
"""Seconds for which a cancelled app that ignores SIGTERM may keep its containers (`dorm kill` does not wait)."""
LEAST_AMOUNTS = {CPU: 10, MEMORY: 8 * 2**20}
"""The smallest demand of a resource that a spec names, in base units: 10 milli-cores, 8 MiB.  Docker refuses less than
6 MiB; and a node could get so many containers of a milli-core that it does nothing but start them."""


def amount_faults(spec: AppSpec) -> Iterator[SpecError]:
    """Yield an error for each invalid quantity, and for each one out of bounds."""
    bad = False
    for path, quantity in _durations(spec).items():
        try:
            duration(quantity)
        except QuantityError as error:
            bad = True
            yield SpecError.at(path, error)
    if not bad:
        yield from _bounds(spec)
    amounts: dict[str, int] = {}
    for name, quantity in spec.demand.items():
        try:
            amounts[name] = resource(name, quantity)
        except QuantityError as error:
            yield SpecError(f"demand.{error}", code=f"spec.demand.{error.problem}")
    if not any(amounts.values()) and len(amounts) == len(spec.demand):
        yield SpecError("demand: at least one resource must be more than 0", code="spec.demand.all_zero")
    for name, least in LEAST_AMOUNTS.items():
        if 0 < amounts.get(name, 0) < least:
            little = f"{humanize(name, amounts[name])} is too little for a container"
            yield SpecError(
                f"demand.{name}: {little}; write at least {humanize(name, least)}", code="spec.demand.too_small"
            )


def _bounds(spec: AppSpec) -> Iterator[SpecError]:
    if spec.grace_s > LONGEST_GRACE_S:
        text = f"grace: {spec.grace!r} is longer than an hour; save a checkpoint more often and take a shorter grace"
        yield SpecError(text[:500], code="spec.grace.too_long")
    if spec.stop_signal.before_s > LONGEST_GRACE_S:
        text = f"stop_signal.before: {spec.stop_signal.before!r} is longer than an hour; take a shorter time"
        yield SpecError(text[:500], code="spec.stop_signal.before.too_long")
    if spec.stop_signal.before_s and spec.stop_signal.signal == "SIGTERM":
        text = "stop_signal.before: SIGTERM itself comes then; name the signal before it, such as SIGUSR1, or raise `grace`"
        yield SpecError(text, code="spec.stop_signal.before.sigterm")
    if not spec.deadlines.live_s:
        text = "deadlines.live: 0 would leave no time for a live resize; write a time such as 60s"
        yield SpecError(text, code="spec.deadlines.live.zero")
    if spec.work is not None and not spec.work.seconds:
        text = "work.mini_batch: 0 would be no work at all; write a time such as 200ms"
        yield SpecError(text, code="spec.work.mini_batch.zero")


def can_be_read(spec: AppSpec) -> bool:
    """Return whether every quantity is one.  `check_spec` makes sure of it; a log may hold other specs, and no reader may fail
    on them."""
    try:
        for quantity in _durations(spec).values():
            duration(quantity)
        spec.resources()
        starts_at(spec, 0)
    except QuantityError:
        return False
    return True


def _durations(spec: AppSpec) -> dict[str, Quantity]:
    """Return the durations by path, without empty deadlines."""
    retries, deadlines = spec.retries, spec.deadlines
    durations: dict[str, Quantity] = {
        "grace": spec.grace,
        "stop_signal.before": spec.stop_signal.before,
        "retries.backoff": retries.backoff,
        "retries.longest": retries.longest,
        "retries.reset": retries.reset,
        "deadlines.start": deadlines.start,
        "deadlines.progress": deadlines.progress,
        "deadlines.live": deadlines.live,
        "max_runtime": spec.max_runtime,
    }
    if spec.utility is not None:
        durations["utility.target"] = spec.utility.target
    if spec.work is not None:
        durations |= {"work.mini_batch": spec.work.mini_batch, "work.exchange": spec.work.exchange}
    return {path: value for path, value in durations.items() if value != "" or path not in _MAY_BE_EMPTY}


_MAY_BE_EMPTY = ("stop_signal.before", "deadlines.start", "deadlines.progress", "max_runtime")


# --- texts ------------------------------------------------------------------------------------------------------------

LARGEST_ARGUMENT = 128 * 1024 - 1
"""Bytes of one part of a command, or of one `NAME=value`: Linux's limit (MAX_ARG_STRLEN)."""


def check_texts(spec: AppSpec) -> None:
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
    for name, secret in spec.secrets.items():
        if name.endswith("\n") or secret.endswith("\n"):
            raise SpecError(f"secrets: {short(name)} can't hold a line end", code="spec.secrets.malformed")
        if name.startswith("DORM_"):
            raise SpecError(f"secrets.{name}: names that begin with DORM_ are Dorm's own", code="spec.secrets.reserved")
        if name in spec.env:
            raise SpecError(
                f"secrets.{name}: env has a variable of this name too; leave one out", code="spec.secrets.in_env"
            )
    if "" in spec.labels:
        raise SpecError("labels: a label's name is empty", code="spec.labels.malformed")
    for path, text in free_texts(spec):
        if "\x00" in text:
            raise SpecError(f"{path}: can't hold a NUL character", code=f"spec.{field_of(path)}.malformed")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise SpecError(f"{path}: is not valid Unicode text", code=f"spec.{field_of(path)}.not_unicode") from None
        if size > LARGEST_ARGUMENT:
            text = f"{path}: {size:,} bytes are more than a process can be given ({LARGEST_ARGUMENT:,})"
            raise SpecError(text, code=f"spec.{field_of(path)}.too_large")
    for path, command in (("command", spec.command), ("resume", spec.resume), ("checkpoint", spec.checkpoint)):
        if command and not command[0].strip():
            raise SpecError(f"{path}: the program's name is empty", code=f"spec.{path}.no_program")


def field_of(path: str) -> str:
    """Return the field of a path such as `command[1]` or `env.HOME`."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def free_texts(spec: AppSpec) -> list[tuple[str, str]]:
    """Return every free text of a spec, with its path."""
    texts = [("image", spec.image)]
    for path, command in (("command", spec.command), ("resume", spec.resume), ("checkpoint", spec.checkpoint)):
        texts += [(f"{path}[{index}]", part) for index, part in enumerate(command)]
    for path, lines in (("requirements", spec.requirements), ("setup", spec.setup)):
        texts += [(f"{path}[{index}]", line) for index, line in enumerate(lines)]
    for path, entries in (("env", spec.env), ("labels", spec.labels)):
        texts += [(path, name) for name in entries]
        texts += [(f"{path}.{short(name)[1:-1]}", f"{name}={value}") for name, value in entries.items()]
    return texts


# --- secrets ----------------------------------------------------------------------------------------------------------

_SECRET_FORMATS: dict[str, str] = {
    "a private key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY",
    "an AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": r"\b(?:gh[oprsu]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{20,})",
    "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "a Slack token": r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    "a Google API key": r"\bAIza[0-9A-Za-z_-]{35}",
    "an API key": r"\bsk-[A-Za-z0-9_-]{20,}",
    "an nkey's seed": r"\bS[ACNOPU][A-Z2-7]{56}\b",
    "a JSON web token": r"\beyJ[A-Za-z0-9_-]{10,400}\.eyJ[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{10}",
    "an address with a password": r"\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]{0,200}:[^\s/@$<{][^\s/@]{0,200}@",
}
_ANY = re.compile("|".join(f"({pattern})" for pattern in _SECRET_FORMATS.values()))
_NAMED = re.compile(
    r"(?:^|[_.-])(?:PASSW(?:OR)?D|PASSPHRASE|PASSWD|SECRET|SECRET_?KEY|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS|TOKEN)$",
    re.IGNORECASE,
)
"""Names such as `WANDB_API_KEY`.  Names of files and ids (`…_KEY_FILE`, `…_KEY_ID`) end otherwise."""
_OPAQUE = re.compile(r"(?=\S*[A-Za-z])(?=\S*[0-9])[^\s<>|${}/][^\s<>|{}]{7,}")
"""Pattern of a secret: at least eight signs with letters and digits, without a space: no word, number, path (`/run/key`),
reference (`$KEY`) or mark of a vocabulary (`<|end|>`)."""
_PASSWORD = re.compile(r"PASSW(?:OR)?D$|PASSPHRASE$", re.IGNORECASE)
_PATH_OR_REFERENCE = re.compile(r"[/$<{]|\.{0,2}/|file:")


def check_secrets(spec: AppSpec) -> None:
    """Refuse what looks like a secret.  Raises SpecError."""
    for path, text in free_texts(spec):
        if match := _ANY.search(text):
            what = tuple(_SECRET_FORMATS)[(match.lastindex or 1) - 1]
            raise _refusal(path, f"holds {what}")
    for name, value in spec.env.items():
        if _NAMED.search(name) and _looks_secret(name, value):
            raise _refusal(f"env.{short(name)[1:-1]}", "looks like a secret by its name")


def why_secret(name: str, value: str) -> str:
    """Return why a variable looks like a secret, as the end of a sentence about it; "" if it does not."""
    if match := _ANY.search(f"{name}={value}"):
        return f"holds {tuple(_SECRET_FORMATS)[(match.lastindex or 1) - 1]}"
    return "looks like a secret by its name" if _NAMED.search(name) and _looks_secret(name, value) else ""


def hide_secrets(text: str, instead: str) -> str:
    """Return a text with everything that has the format of a well-known credential replaced."""
    return _ANY.sub(lambda _: instead, text)


def names_secret(name: str) -> bool:
    """Return whether the value of a variable or option of this name is likely to be a secret."""
    return _NAMED.search(name) is not None


def _looks_secret(name: str, value: str) -> bool:
    if _PASSWORD.search(name):  # People also choose words.
        return bool(value.strip()) and not _PATH_OR_REFERENCE.match(value)
    return _OPAQUE.fullmatch(value) is not None


def _refusal(path: str, what: str) -> SpecError:
    return SpecError(
        f"{path}: {what}, and everyone who reads the log would see it; put it on the nodes instead and name it in `secrets`, "
        "such as `secrets: {API_KEY_FILE: key}`",
        code=f"spec.{field_of(path)}.secret",
    )


# --- the gate ---------------------------------------------------------------------------------------------------------

LARGEST_SPEC = 256 * 1024
"""Bytes of a spec in MessagePack; larger ones are refused."""

_FORMATS = {
    "name": "lower-case letters, digits and dashes, at most 48",
    "user": "letters, digits and _ @ + -, at most 64",
    "engine": f"{', '.join(ENGINES[:-1])} or {ENGINES[-1]}",
    "engine_options.rendezvous": "static or c10d",
    "placement": "spread or pack",
    "stop_signal.signal": f"{', '.join(SIGNALS[:-1])} or {SIGNALS[-1]}",
    "stop_signal.to": "main or group",
    "after[]": "the name or id of an app",
    "after[].app": "the name or id of an app",
    "after[].when": "completed, failed or ended",
    "elastic": "live",
    "on_doubtful": "resume or fall_back",
    "resizable": "auto or never",
    "from": "the name or id of an app, or APP@STEP",
    "secrets": "a variable's name (letters, digits and _, at most 127)",
    "group.name": "lower-case letters, digits and dashes, at most 42",
    "group.parameters": "a parameter's name (letters, digits and _, at most 63)",
    "demand": "a resource name (letters, digits and _ . / -, at most 63)",
    "python": "a version in quotes such as '3.12', or an absolute path",
    "volumes": "a volume's name (lower-case letters, digits and dashes, at most 48)",
}


MOST_ERRORS = 20
"""Errors of one document that are listed."""
_INSTEAD: dict[str, Any] = {"name": "x", "command": ["x"], "demand": {"cpu": 1}}
"""Values with which a document without these fields is checked further."""


def check_spec(document: object, *, every: bool = False) -> CheckedSpec:
    """Return a checked spec from a decoded document.  Raises SpecError; with `every`, its `others` are what else is wrong with
    the document, at most `MOST_ERRORS` in all."""
    made: list[CheckedSpec] = []
    errors = list(islice(_errors(document, made), MOST_ERRORS if every else 1))
    if errors:
        raise SpecError(str(errors[0]), code=errors[0].code, others=errors[1:])
    return made[0]


def _errors(document: object, made: list[CheckedSpec]) -> Iterator[SpecError]:
    """Yield everything that is wrong with a document; if nothing is, append the checked spec to `made`.  What follows from
    another error alone is no error: a check is left out if a field that it needs is wrong already."""
    if not isinstance(document, dict):
        text = f"a spec is a map with name, command and demand, not {_kind_of(document)}"
        yield SpecError(text, code="spec.not_a_map")
        return
    whole = document = as_map(document)
    if isinstance(name := document.get("stop_signal"), str):
        whole = document = {**document, "stop_signal": {"signal": name}}
    wrong: set[str] = set()
    for fault in _unknown_fields(document):
        wrong.add(field_of(fault.text.partition(":")[0]))
        yield SpecError.of(fault)
    for check in (check_volumes_form, check_environment_form):
        try:
            check(document)
        except SpecError as error:
            yield error
            document = {key: value for key, value in document.items() if key != field_of(str(error).partition(":")[0])}
    wrong |= {key for key in whole if key not in document}
    try:
        try:
            spec = msgspec.convert(document, CheckedSpec)
        except msgspec.ValidationError:
            document = {key: value for key, value in document.items() if isinstance(key, str)}
            for fault in shape_faults(document, CheckedSpec, AppSpec, _FORMATS, _INSTEAD):
                wrong.add(field_of(fault.text.partition(":")[0]))
                yield SpecError.of(fault)
            spec = msgspec.convert(document, CheckedSpec)
    except UnicodeEncodeError:
        yield SpecError("a text in the spec is not valid Unicode; write it again", code="spec.not_unicode")
        return
    except RecursionError:
        yield SpecError("the spec is nested too deeply", code="spec.too_deep")
        return
    if "n_min" not in document:
        spec = msgspec.structs.replace(spec, n_min=spec.gang)
    if "n_max" not in document:
        spec = msgspec.structs.replace(spec, n_max=spec.n_min)
    for spec_error in _faults(spec, wrong):
        wrong.add(field_of(str(spec_error).partition(":")[0]))
        yield spec_error
    if "group" not in wrong:
        spec = msgspec.structs.replace(spec, env=completed(spec.group, written(spec.group, spec.env)))
    size = 0 if wrong else len(msgspec.msgpack.encode(spec))
    if size > LARGEST_SPEC:
        wrong.add("size")
        yield SpecError(f"the spec has {size:,} bytes; at most {LARGEST_SPEC:,} are taken", code="spec.too_large")
    for spec_error in _raised(lambda: check_secrets(spec)):
        wrong.add("secrets")
        yield spec_error
    if not wrong:
        made.append(spec)


def _faults(spec: CheckedSpec, wrong: Set[str]) -> Iterator[SpecError]:
    """Yield what is wrong with fields that have the right types.  `wrong` has those that have not."""
    own = msgspec.structs.replace(spec, env=written(spec.group, spec.env))
    checks: tuple[tuple[set[str], Callable[[], None]], ...] = (
        ({"gang", "n_min", "n_max"}, lambda: check_gang(spec.gang, n_min=spec.n_min, n_max=spec.n_max)),
        ({"n_min", "n_max"}, lambda: _check_bounds(spec)),
        ({"engine", "engine_options", "n_min"}, lambda: check_roles(spec, spec.n_min)),
        ({"engine", "command"}, lambda: check_command(spec.engine, spec.command)),
        ({"engine", "resume"}, lambda: check_command(spec.engine, spec.resume)),
        ({"elastic", "resizable"}, lambda: _check_resizable(spec)),
        ({"speed", "speed_on"}, lambda: _check_speed(spec)),
        ({"batch"}, lambda: _check_batch(spec)),
        ({"require"}, lambda: _check_requirement(spec)),
    )
    for needs, check in checks:
        if not needs & wrong:
            yield from _raised(check)
    bad = False
    for error in amount_faults(spec):
        bad = True
        yield error
    rest: tuple[tuple[set[str], Callable[[], None]], ...] = (
        ({"start_after", "max_runtime", "after"}, lambda: None if bad else check_gates(spec)),
        ({"notify"}, lambda: check_notify(spec.notify)),
        ({"group"}, lambda: check_group(spec.group)),
        ({"group", "env", "secrets", "labels"}, lambda: check_texts(own)),
        ({"volumes"}, lambda: check_volumes(spec.volumes)),
        ({"requirements", "python"}, lambda: check_environment(spec.requirements, spec.python)),
    )
    for needs, check in rest:
        if not needs & wrong:
            yield from _raised(check)


def _raised(check: Callable[[], None]) -> Iterator[SpecError]:
    try:
        check()
    except SpecError as error:
        yield error


def _check_resizable(spec: AppSpec) -> None:
    if spec.elastic and spec.resizable == "never":
        text = "resizable: never excludes elastic: live, which lets an app be resized while it trains; leave out one of them"
        raise SpecError(text, code="spec.resizable.live")


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


def _unknown_fields(document: dict[Any, Any]) -> Iterator[Fault]:
    yield from unknown_fields(document, AppSpec.__struct_encode_fields__)
    for name, kind in PARTS.items():
        nested = document.get(name)
        if isinstance(nested, dict):
            yield from unknown_fields(nested, kind.__struct_encode_fields__, f"{name}.")
    after = document.get("after")
    for entry in after if isinstance(after, list) else ():
        if isinstance(entry, dict):
            yield from unknown_fields(entry, After.__struct_encode_fields__, "after.")


def _check_bounds(spec: AppSpec) -> None:
    if spec.n_min > spec.n_max:
        raise SpecError(f"n_min: {spec.n_min} is more than n_max, which is {spec.n_max}", code="spec.n_min.above_n_max")


def _check_requirement(spec: AppSpec) -> None:
    try:
        requirement(spec.require)
        requirement(requirement_with(spec))
    except RequirementError as error:
        raise SpecError.at("require", error) from None


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

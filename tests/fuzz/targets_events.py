"""Code that reads events and texts: the codec, specs, expressions, quantities, positions, settings."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from dorm.cli.errors import WrongUsage
from dorm.cli.output import as_yaml
from dorm.cli.settings import ClusterFile, policy_change
from dorm.cli.sweeps import split
from dorm.core.query.concerns import Concerns
from dorm.core.settings import all_after
from dorm.core.state import Settings
from dorm.local.spec_files import SPEC, parse, parse_spec
from dorm.policies.registry import names
from dorm_lab.workloads import nodes as simulated_nodes
from events import positions, subjects
from events.cloudevents import cloud_event
from events.codec import decode, document, encode
from events.kinds import Round, Unknown, Unreadable
from events.log.records import Record
from events.positions import logged
from events.quantities import capacity, duration, resource
from events.spec import SpecError, check_spec, document_of
from events.spec.requirements import requirement
from events.spec.sweeps import expanded
from replay import moments
from replay.moments import MomentError
from replay.simulator import SimulationError
from tests.fuzz import samples
from tests.fuzz.edits import changed, encoded, json_of, spliced, strange
from tests.fuzz.target import Target, one_line, pack_parts, parts_of

if TYPE_CHECKING:
    from tests.fuzz.edits import Source

LABELS = {"gpu_type": "h100", "zone": "a", "a": "1", "d": "z"}


# --- the codec ----------------------------------------------------------------------------------------------------------


def make_record(source: Source, near: samples.Body | None = None) -> tuple[str, bytes]:
    """Return subject and body: an edited good record, or nonsense."""
    subject, body, tree = near or source.pick(samples.bodies())
    kind = source.pick(range(20))
    if kind < 7:
        return subject, encoded(source, changed(source, tree, alike=True))
    if kind < 12:
        body = encoded(source, changed(source, tree))
    elif kind < 16:
        body = spliced(source, body, [source.pick(samples.bodies()).body])
    elif kind < 18:
        body = spliced(source, encoded(source, changed(source, tree)))
    elif kind < 19:
        body = source.bytes(source.below(60))
    else:
        body = encoded(source, strange(source))
    return (source.pick(samples.all_subjects()) if source.one_in(5) else subject), body


def _codec(source: Source) -> bytes:
    subject, body = make_record(source)
    return pack_parts([0, [[subject.encode(), body]]])


def _check_codec(data: bytes) -> None:
    for subject, body in pairs_of(data):
        record = Record(7, 1_000, subject, body, "msg-7")
        event = decode(record)
        with contextlib.suppress(ValueError):
            document(record)
        _check_again(event, subject)
        concerns = Concerns(kinds=["Resized", "AppSubmitted"], apps=["digits"], users=["ann"], nodes=["node-1"])
        for one in logged(record):
            shown = msgspec.json.decode(msgspec.json.encode(cloud_event(one)))
            assert shown["id"] == str(one.position)
            concerns.wants(one)


def _check_again(event: Any, subject: str) -> None:
    """Check that a decoded event survives a round trip."""
    if isinstance(event, Unreadable | Unknown):
        one_line(Exception(event.reason if isinstance(event, Unreadable) else f"unknown {event.name!r}"))
        return
    if isinstance(event, Round) and any(isinstance(fact, Unknown) for fact in event.events):
        return
    try:
        body = encode(event)
    except (TypeError, ValueError, ArithmeticError, RecursionError):
        return  # JSON may hold values that MessagePack cannot express, such as integers of any size.
    again = decode(Record(7, 1_000, subject, body, "msg-7"))
    assert encode(again) == body, f"{event!r} became {again!r}"


def pairs_of(data: bytes) -> list[tuple[str, bytes]]:
    return [(part[0].decode(errors="replace"), part[1]) for part in parts_of(data).parts if len(part) == 2]


# --- specs --------------------------------------------------------------------------------------------------------------


def _specs(source: Source) -> bytes:
    if source.one_in(50):
        return encoded(source, strange(source))
    return encoded(source, changed(source, source.pick(samples.SPECS), alike=source.one_in(3)))


def _check_spec_document(data: bytes) -> None:
    try:
        tree = document(Record(1, 1, "", data))
    except ValueError:
        return
    _checked(tree)


def _checked(tree: Any) -> None:
    try:
        spec = check_spec(tree)
    except SpecError as error:
        one_line(error)
        return
    assert all(amount > 0 for amount in spec.resources().values())
    assert spec.grace_s >= 0
    assert spec.n_min <= spec.n_max
    assert requirement(spec.require).matches(LABELS) in (True, False)
    plain = document_of(spec)
    assert check_spec(plain) == spec
    assert check_spec(parse_spec(as_yaml(msgspec.to_builtins(plain)))) == spec, "what is printed can be submitted"


def _files(source: Source) -> bytes:
    toml = source.one_in(3)
    texts = samples.TOML if toml else samples.YAML
    text = json_of(changed(source, source.pick(samples.SPECS))) if source.one_in(6) else source.pick(texts)
    return bytes([toml]) + spliced(source, text, texts).encode(errors="surrogatepass")


def _check_file(data: bytes) -> None:
    text = data[1:].decode(errors="replace")
    try:
        tree = parse(text, SPEC, toml=data[:1] == b"\1")
    except SpecError as error:
        one_line(error)
        return
    _checked(tree)
    _check_cluster(tree)
    with contextlib.suppress(SpecError):
        if isinstance(tree, dict):
            expanded(tree, most=20)
    _check_values(text)


def _check_values(text: str) -> None:
    """Read a text as `dorm sweep run --param` does, and any text in quotes."""
    with contextlib.suppress(WrongUsage):
        for value, quoted in split("p", text):
            assert quoted or value == value.strip() != ""
    assert split("p", f"""'{text.replace("'", "''")}'""") == [(text, True)]


# --- settings -----------------------------------------------------------------------------------------------------------


def _check_cluster(tree: Any) -> None:
    """Check a document as `dorm up --config` does."""
    if not isinstance(tree, dict):
        return
    with contextlib.suppress(msgspec.ValidationError, ValueError):
        file = msgspec.convert(tree, ClusterFile)
        file.resources()
        file.change()


_PARAMS = ("theta1", "theta2", "patience_s", "horizon_s", "adjust_s", "count", "counts", "n", "gap", "quantum_s")


def _settings(source: Source) -> bytes:
    params = {source.pick(_PARAMS): strange(source) for _ in range(source.pick((1, 1, 2, 4)))}
    name = source.pick([*names(), "none such"])
    return encoded(source, {"policy": name, source.pick(("params", "set_params")): params, "idle_s": strange(source)})


def _check_params(data: bytes) -> None:
    subject = subjects.fact(samples.CLUSTER, "PolicyChanged", "ann")
    event = decode(Record(1, 1, subject, data))
    with contextlib.suppress(ValueError, AttributeError):
        if not isinstance(event, Unreadable):
            all_after(Settings(), event)  # type: ignore[arg-type]  # or Unknown, which has no such fields
    try:
        tree = document(Record(1, 1, subject, data))
    except ValueError:
        return
    params = tree.get("params") if isinstance(tree, dict) else None
    if isinstance(params, dict):
        try:
            policy_change(str(tree.get("policy")), {str(key): value for key, value in params.items()})
        except SpecError as error:
            one_line(error)


# --- short texts --------------------------------------------------------------------------------------------------------


def _texts(source: Source) -> bytes:
    kind = source.pick(range(4))
    texts = (samples.REQUIREMENTS, samples.QUANTITIES, samples.MOMENTS, samples.all_subjects())[kind]
    return bytes([kind]) + spliced(source, source.pick(texts), texts).encode(errors="surrogatepass")


def _check_text(data: bytes) -> None:
    text = data[1:].decode(errors="surrogatepass") if data[1:].isascii() else data[1:].decode(errors="replace")
    kind = data[0] if data else 0
    (_check_requirement, _check_quantity, _check_moment, _check_subject)[kind % 4](text)


def _check_requirement(text: str) -> None:
    try:
        expression = requirement(text)
    except ValueError as error:
        one_line(error)
        return
    assert expression.matches(LABELS) in (True, False)
    assert requirement(str(expression)).matches(LABELS) is expression.matches(LABELS)


def _check_quantity(text: str) -> None:
    for name in ("cpu", "memory", "gpu"):
        try:
            assert 0 <= resource(name, text) <= 2**60
        except ValueError as error:
            one_line(error)
    for read in (duration, capacity):
        try:
            read(text)
        except ValueError as error:
            one_line(error)
    try:
        simulated_nodes.parse(text)
    except SimulationError as error:
        one_line(error)


def _check_moment(text: str) -> None:
    try:
        position = positions.parse(text)
        assert positions.parse(str(position)) == position
    except ValueError as error:
        one_line(error)
    try:
        moments.parse(text)
    except MomentError as error:
        one_line(error)


def _check_subject(text: str) -> None:
    kind, who, cluster = subjects.kind_of(text), subjects.who_of(text), subjects.cluster_of(text)
    assert all(isinstance(part, str) for part in (kind, who, cluster))
    subjects.valid(text)
    assert subjects.valid(subjects.token(text))
    for pattern in ("dorm.demo.*.*", "dorm.>", text):
        subjects.matches(pattern, text)
        subjects.overlap(pattern, text)


TARGETS = [
    Target("codec", 50, _codec, _check_codec),
    Target("spec", 16, _specs, _check_spec_document),
    Target("spec-file", 3, _files, _check_file),
    Target("settings", 4, _settings, _check_params),
    Target("text", 10, _texts, _check_text),
]

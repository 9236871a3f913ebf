"""Events to bytes and back, for any bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events import codec, subjects
from events.codec import decode, document, encode, submission_of
from events.kinds import (
    AppCompleted,
    AppFailed,
    AppSubmitted,
    ContainerStarted,
    Event,
    NodeDrainRequested,
    NodeLeft,
    NodeLost,
    Round,
    Unknown,
    Unreadable,
)
from events.log.records import Record
from tests.events.any_event import MASTER_FACTS, PLAIN, PUBLISHED, events_of, filled, record_of, subject_of
from tests.tries import tries

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBMIT = subjects.fact("c", "AppSubmitted", "alice")
LEFT = subjects.fact("c", "NodeLeft", "n1")
ROUND = subjects.rounds("c")


@pytest.mark.parametrize("kind", PUBLISHED, ids=lambda kind: kind.__name__)
@settings(max_examples=tries(4, 600), deadline=None)
@given(data=st.data())
def test_every_kind_survives_messagepack_and_json(kind: type[Event], data: st.DataObject) -> None:
    event = data.draw(events_of(kind))
    body = encode(event)
    assert decode(record_of(event, body)) == filled(event)
    assert decode(record_of(event, msgspec.json.encode(event))) == filled(event)
    assert decode(record_of(event, b" \n" + msgspec.json.encode(event))) == filled(event)
    # The slow way, which foreign bodies go, understands the same.
    assert codec._decode_slowly(record_of(event, body)) == filled(event)
    assert encode(decode(record_of(event, encode(filled(event))))) == encode(filled(event))


@pytest.mark.parametrize("kind", MASTER_FACTS, ids=lambda kind: kind.__name__)
@settings(max_examples=tries(4, 400), deadline=None)
@given(data=st.data())
def test_every_fact_of_the_master_survives_in_a_round(kind: type[Event], data: st.DataObject) -> None:
    facts: list[Any] = data.draw(st.lists(events_of(kind), min_size=1, max_size=3))
    event = Round(id="m-1", at=1, by="master", epoch=1, basis=5, allocated=False, events=facts)
    for body in (encode(event), msgspec.json.encode(event)):
        assert decode(record_of(event, body)) == event
    assert codec._decode_slowly(record_of(event, encode(event))) == event


@settings(max_examples=tries(6, 1000), deadline=None)
@given(events_of(*PUBLISHED))
def test_equal_events_have_equal_bytes(event: Event) -> None:
    again = decode(record_of(event, encode(event)))
    assert encode(again) == encode(filled(event))


SUBJECTS = st.sampled_from([subject_of(kind) for kind in PUBLISHED] + ["x", "", "dorm.c.Nothing.x"])


def check_decoding(subject: str, body: bytes) -> None:
    event = decode(Record(7, 1_000, subject, body, "msg-7"))
    assert isinstance(event, (*PUBLISHED, Unknown, Unreadable))
    assert event.id
    assert event.at
    if isinstance(event, Unreadable):
        assert event.reason
        assert "\n" not in event.reason
    elif not isinstance(event, Unknown):
        assert subjects.kind_of(subject) == type(event).__name__


@settings(max_examples=tries(31, 5000), deadline=None)
@given(SUBJECTS, st.binary(max_size=200))
def test_any_bytes_decode(subject: str, body: bytes) -> None:
    check_decoding(subject, body)


@settings(max_examples=tries(19, 3000), deadline=None)
@given(SUBJECTS, events_of(*PUBLISHED), st.data())
def test_broken_events_decode(subject: str, event: Event, data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from([encode(event), msgspec.json.encode(event)])))
    for _ in range(data.draw(st.integers(1, 5))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check_decoding(subject_of(type(event)), bytes(body))
    check_decoding(subject, bytes(body[: data.draw(st.integers(0, len(body)))]))


@settings(max_examples=tries(19, 3000), deadline=None)
@given(SUBJECTS, PLAIN, st.booleans(), st.dictionaries(st.sampled_from(["kind", "v", "id", "at", "events"]), PLAIN))
def test_any_document_decodes(subject: str, content: Any, claimed: bool, fields: dict[str, Any]) -> None:
    given_kind = {"kind": subjects.kind_of(subject)} if claimed else {}
    for body in (content, {**fields, **given_kind}, {"events": [content], **given_kind}):
        check_decoding(subject, msgpack.packb(body))
        check_decoding(subject, msgspec.json.encode(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xdd\xff\xff\xff\xff",
        b"\x82\xa4kind\xacAppSubmitted\xa4spec\xdd\xff\xff\xff\xff",
        b"\x82\xa4kind\xacAppSubmitted\xa4spec\xdf\xff\xff\xff\xff",
        b"\x82\xa4kind\xacAppSubmitted\xa4spec" + b"\x91" * 100_000 + b"\xc0",
        b'{"kind":"AppSubmitted","spec":' + b"[" * 100_000,
        b'{"kind":"AppSubmitted","spec":' + b"9" * 5000 + b"}",
        b'{"kind":"AppSubmitted","spec":1e999}',
        b'{"kind":"AppSubmitted","spec":"\\ud800"}',
        b"\x82\xa4kind\xacAppSubmitted\xa4spec\xc7\x0c\xff" + b"\xff" * 12,
        b"\x82\xa4kind\xacAppSubmitted\xa4spec\x81\x91\x01\x02",
        b"not an event",
        b"\x00" * 10_000_000,
    ],
    ids=range(13),
)
def test_hostile_bodies(body: bytes) -> None:
    check_decoding(SUBMIT, body)
    check_decoding(ROUND, body.replace(b"\xacAppSubmitted\xa4spec", b"\xa5Round\xa6events"))


def decoded(subject: str, body: dict[str, Any]) -> Event:
    """The same from MessagePack, made by the `msgpack` package, and from JSON."""
    by_messagepack = decode(Record(7, 1_000, subject, msgpack.packb(body), "msg-7"))
    assert decode(Record(7, 1_000, subject, msgspec.json.encode(body), "msg-7")) == by_messagepack
    return by_messagepack


def test_the_minimal_event_that_a_client_may_send() -> None:
    assert decoded(SUBMIT, {"kind": "AppSubmitted", "spec": {"name": "a"}}) == AppSubmitted(
        spec={"name": "a"}, id="msg-7", at=1_000, by="alice"
    )
    assert decoded(SUBMIT, {"spec": {"name": "a"}}) == AppSubmitted(
        spec={"name": "a"}, id="msg-7", at=1_000, by="alice"
    )
    without_id = Record(7, 1_000, SUBMIT, msgpack.packb({"kind": "AppSubmitted"}))
    assert decode(without_id) == AppSubmitted(id="alice.7", at=1_000, by="alice")


def test_the_publishers_fields_stay() -> None:
    body = {"kind": "NodeLeft", "node": "n1", "id": "n1-9", "at": 5, "by": "n1", "cause": "3.1"}
    assert decoded(LEFT, body) == NodeLeft(node="n1", id="n1-9", at=5, by="n1", cause="3.1")


def test_unknown_fields_are_ignored() -> None:
    body = {"kind": "NodeLeft", "node": "n1", "mood": {"good": [1, None]}}
    assert decoded(LEFT, body) == NodeLeft(node="n1", id="msg-7", at=1_000, by="n1")


def test_unknown_fields_of_an_accepted_spec_are_ignored() -> None:
    spec = {"name": "a", "command": ["x"], "demand": {"cpu": 1}, "priority": 3, "retries": {"limit": 1, "jitter": True}}
    fact = {"kind": "AppAccepted", "app": "a-1", "spec": spec, "submission": "alice-1", "nice": True}
    event = decoded(ROUND, {"kind": "Round", "epoch": 1, "basis": 3, "allocated": False, "events": [fact]})
    assert isinstance(event, Round)
    assert event.events[0].spec.retries.limit == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("subject", "kind"),
    [(LEFT, "AppSubmitted"), (SUBMIT, "Round"), (ROUND, "AppSubmitted"), (LEFT, "Nothing"), ("x", "AppSubmitted")],
)
def test_a_kind_on_a_subject_of_another_is_unreadable(subject: str, kind: str) -> None:
    event = decoded(subject, {"kind": kind, "node": "n1", "epoch": 1, "basis": 1, "allocated": True, "events": []})
    assert isinstance(event, Unreadable)
    assert event.reason == f"kind {kind} is not allowed on subject {subject}"


def test_a_fact_of_the_master_is_believed_in_its_rounds_only() -> None:
    event = decoded(
        subjects.fact("c", "AppCompleted", "mallory"), {"kind": "AppCompleted", "app": "a", "generation": 1}
    )
    assert isinstance(event, Unknown)


def test_an_unknown_kind_is_unknown() -> None:
    subject = subjects.fact("c", "AppPraised", "alice")
    assert decoded(subject, {"kind": "AppPraised", "app": "a"}) == Unknown(
        subject=subject, name="AppPraised", id="msg-7", at=1_000, by="alice"
    )


def test_a_newer_version_is_unknown() -> None:
    event = decoded(LEFT, {"kind": "NodeLeft", "node": "n1", "v": 2})
    assert isinstance(event, Unknown)
    assert event.name == "NodeLeft v2"


@pytest.mark.parametrize("version", [0, -1, "1", 1.5, None, True, [1]])
def test_an_invalid_version_is_unreadable(version: Any) -> None:
    assert isinstance(decoded(LEFT, {"kind": "NodeLeft", "node": "n1", "v": version}), Unreadable)


@pytest.fixture
def newer_kinds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if NodeLeft were at version 3 and AppCompleted at 2: fields were called otherwise before."""
    forget_versions()
    monkeypatch.setitem(codec.VERSIONS, "NodeLeft", 3)
    monkeypatch.setitem(codec.VERSIONS, "AppCompleted", 2)
    monkeypatch.setitem(codec.UPCASTERS, ("NodeLeft", 1), lambda body: {"host": body["name"]})
    monkeypatch.setitem(codec.UPCASTERS, ("NodeLeft", 2), lambda body: {"node": body["host"]})
    monkeypatch.setitem(
        codec.UPCASTERS, ("AppCompleted", 1), lambda body: {**body, "generation": body["generation"] + 100}
    )
    yield
    forget_versions()


def forget_versions() -> None:
    codec._WRITTEN.clear()
    codec._BELIEVED.clear()


@pytest.mark.usefixtures("newer_kinds")
def test_older_versions_are_upcast_step_by_step() -> None:
    expected = NodeLeft(node="n1", id="msg-7", at=1_000, by="n1", v=3)
    assert decoded(LEFT, {"kind": "NodeLeft", "name": "n1"}) == expected
    assert decoded(LEFT, {"kind": "NodeLeft", "host": "n1", "v": 2}) == expected
    assert decoded(LEFT, {"kind": "NodeLeft", "node": "n1", "v": 3}) == expected
    assert isinstance(decoded(LEFT, {"kind": "NodeLeft", "node": "n1", "v": 4}), Unknown)
    assert isinstance(decoded(LEFT, {"kind": "NodeLeft", "node": "n1"}), Unreadable)  # The upcaster misses a field.


def round_of(*facts: Any) -> dict[str, Any]:
    return {"kind": "Round", "epoch": 1, "basis": 3, "allocated": False, "events": list(facts)}


LOST = {"kind": "NodeLost", "node": "n1", "last_heard": 5}
COMPLETED = {"kind": "AppCompleted", "app": "a", "generation": 2}


@pytest.mark.usefixtures("newer_kinds")
def test_older_facts_in_a_round_are_upcast_even_if_they_look_like_new_ones() -> None:
    event = decoded(ROUND, round_of(LOST, COMPLETED, {**COMPLETED, "v": 2}))
    assert isinstance(event, Round)
    assert event.events == [
        NodeLost(node="n1", last_heard=5),
        AppCompleted(app="a", generation=102, v=2),
        AppCompleted(app="a", generation=2, v=2),
    ]


@pytest.mark.parametrize("unknown", [{"kind": "AppPraised", "app": "a"}, {**COMPLETED, "v": 2}, {"app": "a"}])
def test_unknown_facts_in_a_round_keep_their_places(unknown: dict[str, Any]) -> None:
    event = decoded(ROUND, round_of(LOST, unknown, COMPLETED))
    assert isinstance(event, Round)
    assert event.events[0::2] == [NodeLost(node="n1", last_heard=5), AppCompleted(app="a", generation=2)]
    assert isinstance(event.events[1], Unknown)


def test_no_fact_poses_as_unknown_in_a_round() -> None:
    event = decoded(ROUND, round_of(LOST, {"kind": "Unknown", "subject": "s", "name": "n"}))
    assert isinstance(event, Round)
    assert isinstance(event.events[1], Unknown)
    assert event.events[1].name == "Unknown"


@pytest.mark.parametrize("broken", [{**COMPLETED, "generation": "two"}, {"kind": "NodeLost"}, 7, None, [COMPLETED]])
def test_a_broken_fact_makes_a_round_unreadable(broken: Any) -> None:
    assert isinstance(decoded(ROUND, round_of(LOST, broken)), Unreadable)


def test_foreign_types_and_broken_text_reach_the_tools() -> None:
    body = msgpack.packb({"kind": "AppSubmitted", "spec": msgpack.ExtType(5, b"x"), "note": "ü"}).replace(
        b"\xc3", b"\xff"
    )
    shown = document(Record(1, 1, SUBMIT, body))
    assert shown["spec"] == msgpack.ExtType(5, b"x")
    assert "�" in shown["note"]
    assert isinstance(decode(Record(1, 1, SUBMIT, body)), AppSubmitted)


def test_an_unreadable_submission_is_answered() -> None:
    assert submission_of(decode(Record(1, 1, SUBMIT, b"\xff\xff")))
    assert submission_of(decode(Record(1, 1, SUBMIT, b"{}")))
    assert not submission_of(decode(Record(1, 1, LEFT, b"\xff\xff")))


def test_exit_codes_survive_a_round_trip() -> None:
    failed = AppFailed(app="a", generation=1, reason="exit code 3")
    event = Round(id="m", at=1, by="m", epoch=1, basis=1, allocated=False, events=[failed])
    assert decode(record_of(event, encode(event))) == event


def test_the_fast_path_decodes_our_own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow way would be right too, but ten times slower."""

    def refuse(record: Record) -> Event:
        raise AssertionError("the slow way")

    monkeypatch.setattr(codec, "_decode_slowly", refuse)
    event = ContainerStarted(id="n1-1", at=1, by="n1", app="a", generation=1, slot=0, node="n1")
    for body in (encode(event), msgspec.json.encode(event)):
        assert decode(record_of(event, body)) == event
    rounds = Round(id="m", at=1, by="m", epoch=1, basis=1, allocated=False, events=[NodeLost(node="n", last_heard=1)])
    assert decode(record_of(rounds, encode(rounds))) == rounds


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("levels", "readable"), [(1, True), (99, True), (101, False), (390, False), (900, False), (5000, False)]
)
def test_the_depth_limit_of_a_spec_depends_on_no_stack_or_interpreter(
    levels: int, readable: bool, as_json: bool
) -> None:
    """Decoders take as many levels as the interpreter's stack allows."""
    if as_json:
        body = b'{"kind": "AppSubmitted", "spec": ' + b"[" * levels + b"]" * levels + b"}"
    else:
        body = b"\x82\xa4kind\xacAppSubmitted\xa4spec" + b"\x91" * (levels - 1) + b"\x90"
    found = decode(Record(1, 1, "dorm.lab.AppSubmitted.ann", body, ""))
    assert isinstance(found, AppSubmitted if readable else Unreadable)
    if isinstance(found, Unreadable):
        assert found.reason == "the body is neither MessagePack nor JSON"


@pytest.mark.parametrize(("levels", "readable"), [(300, True), (5000, False)])
def test_ignored_fields_survive_too(levels: int, readable: bool) -> None:
    body = b"\x83\xa4kind\xb2NodeDrainRequested\xa4node\xa2n1\xa5extra" + b"\x91" * (levels - 1) + b"\x90"
    found = decode(Record(1, 1, "dorm.lab.NodeDrainRequested.ann", body, ""))
    assert isinstance(found, NodeDrainRequested if readable else Unreadable)

"""When certificates and tokens end, long before they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from dorm.doctor.expiry import ApiHere, Seen, api_of, in_files, judge_ends, judge_tokens, parsed
from dorm.security.certificates import Validity, new_authority, server_certificate, validity_of
from events.identities import Token
from events.quantities import SECOND

DAY = 24 * 3600 * SECOND
NOW = 20_000 * DAY


@pytest.mark.parametrize(
    ("begins", "ends", "level"),
    [
        (-335, 31, "ok"),
        (-336, 29, "wrong"),
        (-400, 0, "wrong"),
        (2, 90, "wrong"),  # Not valid yet: a clock is wrong.
        (-1, 6, "note"),  # A program renews certificates that last a week,
        (-5, 1, "wrong"),  # and has not.
        (-31, 59, "ok"),
    ],
)
def test_a_certificate_is_reported_thirty_days_before_it_ends(begins: int, ends: int, level: str) -> None:
    seen = Seen("nats-1", "its certificate", "renew it", Validity(NOW + begins * DAY, NOW + ends * DAY))
    (found,) = judge_ends([seen], NOW)
    assert (found.level, found.check, found.about) == (level, "certificate", "nats-1")
    assert bool(found.todo) == (level == "wrong")


def test_what_certificates_say_is_read_from_files_that_are_there(tmp_path: Path) -> None:
    ca, key = new_authority("lab", NOW)
    server, _ = server_certificate(ca, key, ["host0"], NOW)
    assert validity_of(ca).ends == NOW + 3650 * DAY
    assert validity_of(server + ca).ends == NOW + 825 * DAY, "the first to end counts"
    (tmp_path / "good.pem").write_bytes(server)
    (tmp_path / "bad.pem").write_text("nothing")
    found = in_files(
        [(tmp_path / name, "it", "renew it") for name in ("good.pem", "bad.pem", "none.pem", "good.pem/x")]
    )
    assert [one.about.rpartition("/")[2] for one in found] == ["good.pem", "bad.pem"]
    assert [one.level for one in judge_ends(found, NOW)] == ["ok", "unknown"]
    assert parsed("x", "it", ca.decode(), "").validity == validity_of(ca)


def test_tokens_are_worth_a_note_before_they_end_and_browsers_sessions_are_not() -> None:
    def token(name: str, ends: int) -> Token:
        return Token(name, "alice", "00", NOW + ends * DAY if ends else 0, 7)

    every = [token("never", 0), token("late", 40), token("soon", 29), token("over", -1), token("session-alice-1", 1)]
    found = [(one.level, one.about) for one in judge_tokens(every, NOW)]
    assert found == [("ok", "late"), ("note", "soon"), ("note", "over")]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "/x/python /x/bin/dorm serve --listen 127.0.0.1:24609 --tls-cert cert.pem --tls-key key.pem",
            ApiHere("https://127.0.0.1:24609", ("/run/cert.pem",)),
        ),
        ("dorm serve --tls-cert=/a.pem --tls-clients /c.pem", ApiHere("https://127.0.0.1:4280", ("/a.pem", "/c.pem"))),
        ("dorm serve --listen [::]:1 --tls-cert /a.pem", ApiHere("https://[::1]:1", ("/a.pem",))),
        ("dorm serve --listen host0 --tls-cert /a.pem", ApiHere("https://host0:4280", ("/a.pem",))),
        ("dorm serve --listen 0.0.0.0:0 --tls-cert /a.pem", ApiHere("", ("/a.pem",))),
        ("dorm serve", None),
        ("dorm", None),
        ("nginx serve --tls-cert /a.pem", None),
        ("", None),
    ],
)
def test_an_api_of_this_machine_is_found_by_its_command_line(command: str, expected: ApiHere | None) -> None:
    assert api_of(command.split(), Path("/run")) == expected

"""Where an app's owner wants to hear of it, in its spec."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from events.spec import SpecError, check_spec, document_of, spec_schema
from events.spec.notify import Notify
from tests.core.records import document
from tests.errors import raises

URL = "https://hooks.example.org/teams/vision"


def test_a_url_alone_is_the_short_form() -> None:
    short, long = (check_spec(document("app", notify=form)) for form in (URL, {"url": URL}))
    assert short == long
    assert short.notify == Notify(URL, ["completed", "failed", "cancelled"])
    assert document_of(short)["notify"] == {"url": URL}
    assert check_spec(msgspec.to_builtins(short)) == short
    assert b"notify" not in msgspec.msgpack.encode(check_spec(document("app")))
    assert {"type": "string", "maxLength": 2000} in spec_schema()["properties"]["notify"]["anyOf"]


@pytest.mark.parametrize(
    ("notify", "code"),
    [
        ("hooks.example.org", "spec.notify.malformed"), ("ftp://a/b", "spec.notify.malformed"), ("", "spec.notify.malformed"),
        ("https://a/b c", "spec.notify.malformed"), ("https://a\\b", "spec.notify.malformed"),
        ("https://a:99999/", "spec.notify.malformed"), ("https://" + "a" * 2000, "spec.notify.url.out_of_range"),
        ("https://ann:pw@a/b", "spec.notify.secret"), ({}, "spec.notify.url.missing"),
        ({"url": URL, "on": []}, "spec.notify.on.out_of_range"),
        ({"url": URL, "on": ["started"]}, "spec.notify.on.not_a_choice"),
        ({"url": URL, "when": []}, "spec.notify.unknown_field"), (7, "spec.notify.wrong_type"),
    ],
)  # fmt: skip
def test_invalid_notify_is_refused(notify: Any, code: str) -> None:
    with raises(SpecError, code):
        check_spec(document("app", notify=notify))

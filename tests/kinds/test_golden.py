"""What follows from the kinds is as it was when each of its tables was written by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dorm.core.state import SCHEMA
from tests.kinds import golden

EXPECTED: dict[str, Any] = json.loads(golden.GOLDEN.read_text())


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return golden.made()


def test_servers_have_the_same_configuration(made: dict[str, Any]) -> None:
    assert made["configuration"] == EXPECTED["configuration"]


@pytest.mark.parametrize("part", ["disguised", "hidden"])
def test_events_have_the_same_pseudonyms(made: dict[str, Any], part: str) -> None:
    differ = {name for name, digest in EXPECTED[part].items() if made[part].get(name) != digest}
    assert not differ


def test_tenants_read_the_same(made: dict[str, Any]) -> None:
    assert made["views"] == EXPECTED["views"]


def test_golden_logs_have_the_same_pseudonyms(made: dict[str, Any]) -> None:
    """Rounds hold digests of states, so a later version of the core makes others."""
    if EXPECTED["core"] == SCHEMA:
        assert made["anonymized"] == EXPECTED["anonymized"]

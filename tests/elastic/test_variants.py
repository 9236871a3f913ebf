"""The schedules catch a protocol that lacks one of its protections."""

from __future__ import annotations

import pytest

from tests.elastic.variants import VARIANTS, caught_by


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_protocol_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    VARIANTS[name].apply(monkeypatch)
    assert caught_by(VARIANTS[name]) is not None

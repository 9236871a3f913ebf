"""`dorm up` on a folder: a new cluster knows its users, and an existing one keeps its kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.cli.errors import Fail
from dorm.cli.up import users_of
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

NEW: tuple[str, ...] = ()
OPEN = ("jetstream",)
KNOWN = ("security", "jetstream")
INTERRUPTED = ("security",)
"""A first start that had made keys, and no log yet."""


@pytest.mark.parametrize(
    ("there", "trust", "open_to_all", "expected"),
    [
        (NEW, False, False, (True, True)),
        (NEW, True, False, (True, True)),
        (NEW, False, True, (False, True)),
        (OPEN, False, False, (False, False)),
        (OPEN, False, True, (False, False)),
        (OPEN, True, False, "data.open_cluster"),
        (KNOWN, False, False, (True, False)),
        (KNOWN, True, False, (True, False)),
        (KNOWN, False, True, "data.known_cluster"),
        (INTERRUPTED, False, False, (True, True)),
        (INTERRUPTED, False, True, "data.known_cluster"),
    ],
)
def test_a_folder_keeps_its_kind(
    tmp_path: Path, there: tuple[str, ...], trust: bool, open_to_all: bool, expected: tuple[bool, bool] | str
) -> None:
    for name in there:
        (tmp_path / "nats" / name).mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    if isinstance(expected, str):
        with raises(Fail, expected, str(tmp_path)):
            users_of(tmp_path, trust, open_to_all)
    else:
        assert users_of(tmp_path, trust, open_to_all) == expected
    assert sorted(tmp_path.rglob("*")) == before

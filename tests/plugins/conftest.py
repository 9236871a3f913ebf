"""Plug-ins that are installed for one test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.plugins import acme

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which Acme's policies are installed."""
    folder = tmp_path / "site"
    acme.install(folder, acme.ALL)
    acme.use(folder, monkeypatch)
    yield folder
    acme.forget()

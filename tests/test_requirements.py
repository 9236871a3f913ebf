"""The lock files in `requirements/` pin the requirements in `pyproject.toml`, every file by its hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT = Path(__file__).resolve().parents[1]
_PIN = re.compile(
    r"^(?P<pin>[^\s#-][^\\]*?)(?: \\)?\n(?P<hashes>(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)*)", re.MULTILINE
)
_ASKED = {
    "dev": ("dev", "build-system"),
    "runtime": (),
    "release": ("release",),
    "docs": ("docs",),
    "samples": ("samples",),
    "mutation": ("mutation",),
}
"""What each lock file is for: extras, and what builds the project."""


def text_of(name: str) -> str:
    return (_ROOT / "requirements" / f"{name}.txt").read_text()


def locked(name: str) -> dict[str, list[tuple[Requirement, int]]]:
    """The pins of a lock file by name (several if Python versions differ), and how many files each allows."""
    found: dict[str, list[tuple[Requirement, int]]] = {}
    for match in _PIN.finditer(text_of(name)):
        pin = Requirement(match["pin"])
        found.setdefault(canonicalize_name(pin.name), []).append((pin, match["hashes"].count("sha256:")))
    return found


def asked(*parts: str) -> list[Requirement]:
    """What the project needs with these extras."""
    document: dict[str, Any] = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    extras = document["project"]["optional-dependencies"]
    found = [Requirement(text) for text in document["project"]["dependencies"]]
    for part in parts:
        texts = document["build-system"]["requires"] if part == "build-system" else extras[part]
        for requirement in map(Requirement, texts):
            found += asked(*requirement.extras) if requirement.name == "dorm" else [requirement]
    return found


@pytest.mark.parametrize("name", _ASKED)
def test_a_lock_file_pins_all_requirements_of_the_project(name: str) -> None:
    pins = locked(name)
    for requirement in asked(*_ASKED[name]):
        for pin, _ in pins[canonicalize_name(requirement.name)]:
            (exact,) = pin.specifier
            assert exact.operator == "=="
            assert requirement.specifier.contains(exact.version), f"{requirement} is locked as {pin}: run `make lock`"


@pytest.mark.parametrize("name", ["uv", *_ASKED])
def test_every_pin_has_hashes_and_no_address(name: str) -> None:
    text = text_of(name)
    pins = [pin for pins in locked(name).values() for pin in pins]
    assert pins
    assert all(files for _, files in pins)
    assert len(pins) == sum(line[:1].isalnum() for line in text.splitlines())
    assert "://" not in text
    assert not any(line.startswith("-") for line in text.splitlines())


@pytest.mark.parametrize("name", ["runtime", "release", "samples", "mutation"])
def test_lock_files_agree(name: str) -> None:
    dev, other = locked("dev"), locked(name)
    both = dev.keys() & other.keys()
    assert both
    for one in both:
        assert {str(pin.specifier) for pin, _ in other[one]} == {str(pin.specifier) for pin, _ in dev[one]}

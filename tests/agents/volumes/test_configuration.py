"""`--volume` and settings files: what a node may offer."""

from __future__ import annotations

from pathlib import Path

import pytest

from agents.config import OfferedVolume, VolumeSettings, WrongVolume, parse_volume, parse_volumes
from tests.errors import raises


@pytest.mark.parametrize(
    ("text", "volume"),
    [
        ("data=/data", OfferedVolume(Path("/data"))),
        ("data=/data:ro", OfferedVolume(Path("/data"))),
        ("data=/data:rw", OfferedVolume(Path("/data"), writable=True)),
        ("data=/data:vision,nlp", OfferedVolume(Path("/data"), tenants=("vision", "nlp"))),
        ("data=/a=b:rw:vision", OfferedVolume(Path("/a=b"), writable=True, tenants=("vision",))),
    ],
)
def test_options(text: str, volume: OfferedVolume) -> None:
    assert parse_volume(text) == ("data", volume)
    again = volume.option("data")
    assert parse_volume(again) == ("data", volume)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("data", "config.volume.malformed"),
        ("data=", "config.volume.malformed"),
        ("Data=/data", "config.volume.malformed"),
        ("data=data", "config.volume.malformed"),
        ("data=/a/../b", "config.volume.malformed"),
        ("data=/data:rw:", "config.volume.malformed"),
        ("data=/data:rw:a:b", "config.volume.malformed"),
        ("data=/data:", "config.volume.malformed"),
        ("data=/", "config.volume.not_offerable"),
        ("data=/var/run/docker.sock", "config.volume.not_offerable"),
        ("data=/proc/1", "config.volume.not_offerable"),
    ],
)
def test_refused_options(text: str, code: str) -> None:
    with raises(WrongVolume, code, "volume"):
        parse_volume(text)


def test_a_volume_name_can_be_offered_only_once() -> None:
    with raises(WrongVolume, "config.volume.twice", "data"):
        parse_volumes(["data=/a", "data=/b"])


def test_a_settings_file_has_the_same_effect() -> None:
    settings = VolumeSettings("/data", read_only=False, tenants=["vision"])
    assert settings.offered("data") == OfferedVolume(Path("/data"), writable=True, tenants=("vision",))
    with raises(WrongVolume, "config.volume.malformed", "data"):
        VolumeSettings("data").offered("data")

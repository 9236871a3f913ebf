"""Volumes in a spec: two forms that mean the same, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from events.spec import SpecError, Volume, check_spec, volumes_of
from events.spec.provided import MOST_VOLUMES
from tests.core.records import document
from tests.errors import raises


def test_a_map_and_a_list_mean_the_same() -> None:
    short = check_spec(document(volumes={"models": "/models", "datasets": "/data"}))
    long = check_spec(document(volumes=[{"name": "models", "at": "/models"}, {"name": "datasets", "at": "/data"}]))
    assert (
        volumes_of(short.volumes)
        == volumes_of(long.volumes)
        == (Volume("datasets", "/data"), Volume("models", "/models"))
    )
    assert all(one.read_only for one in volumes_of(short.volumes))


def test_a_place_and_a_variable_follow_from_the_name() -> None:
    (volume,) = volumes_of(check_spec(document(volumes=[{"name": "big-data", "read_only": False}])).volumes)
    assert (volume.place, volume.variable, volume.read_only) == ("/volumes/big-data", "DORM_VOLUME_BIG_DATA", False)


@pytest.mark.parametrize(
    ("volumes", "code", "names"),
    [
        ("datasets", "spec.volumes.wrong_type", "datasets: /data"),
        (["datasets"], "spec.volumes.wrong_type", "volumes[0]"),
        ([{"at": "/data"}], "spec.volumes.name.missing", "volumes[0].name"),
        ([{"name": "data", "readonly": False}], "spec.volumes.unknown_field", "read_only"),
        ([{"name": "data"}, {"name": "data", "at": "/d"}], "spec.volumes.name.twice", "data is there twice"),
        ({"Data": "/data"}, "spec.volumes.malformed", "a volume's name"),
        ({"data": "data"}, "spec.volumes.malformed", "'data'"),
        ({"data": "/"}, "spec.volumes.at.malformed", "no path below /"),
        ({"data": "/a/../b"}, "spec.volumes.at.malformed", ".."),
        ({"data": "//data"}, "spec.volumes.at.malformed", "//data"),
        ({"data": "/data/"}, "spec.volumes.at.malformed", "/data/"),
        ({"data": "/dorm/run"}, "spec.volumes.at.reserved", "/dorm"),
        ({"data": "/proc/x"}, "spec.volumes.at.reserved", "/proc"),
        ({"a": "/data", "b": "/data"}, "spec.volumes.at.nested", "/data"),
        ({"a": "/data/x", "b": "/data"}, "spec.volumes.at.nested", "volumes.a"),
        ({f"v{i}": f"/v{i}" for i in range(MOST_VOLUMES + 1)}, "spec.volumes.out_of_range", str(MOST_VOLUMES)),
    ],
)
def test_refused_in_one_line(volumes: Any, code: str, names: str) -> None:
    with raises(SpecError, code, names):
        check_spec(document(volumes=volumes))


def test_paths_with_a_common_prefix_are_different() -> None:
    assert len(volumes_of(check_spec(document(volumes={"a": "/data", "b": "/data-2", "c": "/data.d/x"})).volumes)) == 3

"""Apps run only where their volumes are offered to them, and say what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.apps.offers import trouble_with_volumes
from events import kinds as k
from events.kinds import NodeOffers, VolumeOffer
from tests.core.records import Bench, joined

DATA = VolumeOffer()


def offering(node: str, cores: int = 4, /, **volumes: VolumeOffer) -> k.NodeJoined:
    return joined(node, cores, offers=NodeOffers(volumes))


def placed(bench: Bench) -> dict[str, int]:
    """Containers by node of the only app, as decided."""
    (app,) = bench.state.apps.values()
    return app.current.by_node() if app.current else {}


def test_an_app_goes_only_where_its_volume_is() -> None:
    bench = Bench(plain=16)
    bench.add(offering("data", 2, data=DATA))
    bench.submit(volumes={"data": "/data"})
    bench.settle()
    assert placed(bench) == {"data": 2}
    (app,) = bench.state.apps.values()
    assert app.waiting is not None
    assert "offers the volume data" in app.waiting.text
    assert "volume/" not in app.waiting.text, "what policies are told is not what people read"


def test_an_apps_own_requirement_still_counts() -> None:
    bench = Bench()
    bench.add(joined("far", 4, labels={"zone": "b"}, offers=NodeOffers({"data": DATA})))
    bench.add(joined("near", 4, labels={"zone": "a"}, offers=NodeOffers({"data": DATA})))
    bench.submit(volumes={"data": "/data"}, require="zone == 'a' or zone == 'c'")
    bench.settle()
    assert placed(bench) == {"near": 4}


@pytest.mark.parametrize(
    ("volumes", "code", "names"),
    [
        ({"dta": "/data"}, "spec.volumes.not_offered", "they offer data, models"),
        ({"private": "/p"}, "spec.volumes.not_allowed", "to me"),
        ([{"name": "data", "read_only": False}], "spec.volumes.read_only", "for reading only"),
        ({"data": "/data", "models": "/models"}, "spec.volumes.not_together", "all of data, models"),
    ],
)
def test_volumes_that_no_node_offers_are_refused(volumes: Any, code: str, names: str) -> None:
    bench = Bench(plain=4)
    bench.add(offering("one", data=DATA, private=VolumeOffer(tenants=["vision"])))
    bench.add(offering("two", models=DATA))
    bench.submit(volumes=volumes, user="me")
    (said,) = bench.decide()
    assert isinstance(said, k.AppRejected)
    assert said.code == code
    assert names in said.reason


def test_room_counts_only_on_the_nodes_with_the_volumes() -> None:
    bench = Bench(plain=16)
    bench.add(offering("data", 2, data=DATA))
    bench.submit(volumes={"data": "/data"}, n_min=3)
    (said,) = bench.decide()
    assert isinstance(said, k.AppRejected)
    assert "the nodes that offer its volumes (1 of 2) together, empty, take 2" in said.reason


def test_before_any_node_has_joined_an_app_waits() -> None:
    bench = Bench()
    bench.submit(volumes={"data": "/data"})
    (said,) = bench.decide()
    assert isinstance(said, k.AppAccepted)


def test_a_restricted_volume_is_refused_to_others() -> None:
    bench = Bench()
    bench.add(offering("one", private=VolumeOffer(tenants=["vision", "a@b"])))
    bench.add(offering("open", private=VolumeOffer(tenants=["other"])))
    bench.submit(volumes={"private": "/p"}, user="a@b")
    bench.settle()
    assert placed(bench) == {"one": 4}


def test_writing_needs_a_volume_that_may_be_written() -> None:
    bench = Bench()
    bench.add(offering("reading", 8, scratch=DATA))
    bench.add(offering("writing", 2, scratch=VolumeOffer(writable=True)))
    bench.submit(volumes=[{"name": "scratch", "read_only": False}])
    bench.settle()
    assert placed(bench) == {"writing": 2}


def test_a_missing_folder_gets_nothing_new_and_keeps_running_containers() -> None:
    bench = Bench()
    bench.add(offering("one", 2, data=DATA))
    bench.submit("first", volumes={"data": "/data"}, n_max=2)
    bench.settle()
    bench.add(offering("one", 2, data=VolumeOffer(missing=True)))
    bench.add(offering("two", 1, data=VolumeOffer(missing=True)))
    assert "mount it" in trouble_with_volumes(bench.state.nodes["two"])
    bench.submit("second", volumes={"data": "/data"}, n_max=1)
    bench.settle()
    first, second = bench.state.live_apps()
    assert first.current is not None
    assert first.current.by_node() == {"one": 2}, "it is neither moved nor stopped"
    assert second.current is None
    assert second.waiting is not None
    assert "missing on one, two" in second.waiting.text
    bench.add(offering("two", 1, data=DATA))
    bench.settle()
    assert second.current is not None, "it starts once the folder is there"


def test_an_environment_is_built_only_by_agents_that_can_and_with_a_python_that_is_there() -> None:
    bench = Bench(old=8)
    bench.submit(requirements=["numpy"])
    (said,) = bench.decide()
    assert isinstance(said, k.AppRejected)
    assert said.code == "spec.requirements.not_built"
    bench.add(joined("plain", 2, offers=NodeOffers(environments=True, pythons=["3.11", "3.12"])))
    bench.add(joined("images", 1, runtime="docker", offers=NodeOffers(environments=True)))
    bench.submit("newer", python="3.13", n_max=4)
    bench.submit("other", python="3.12", n_max=4)
    bench.settle()
    newer, other = bench.state.live_apps()
    assert newer.current is not None
    assert newer.current.by_node() == {"images": 1}, "an image brings its own"
    assert other.current is not None
    assert other.current.by_node() == {"plain": 2}
    assert other.waiting is not None
    assert other.waiting.text.startswith("no node that has its Python has 1 core free")


def test_requirements_of_many_volumes_are_not_too_long() -> None:
    names = [f"volume-{'x' * 38}-{number:02}" for number in range(16)]
    bench = Bench()
    bench.add(offering("one", 4, **{name: VolumeOffer(writable=True, tenants=["t@" * 30]) for name in names}))
    zones = " or ".join(f"zone == 'z{number}'" for number in range(50))
    bench.add(joined("two", labels={"zone": "z1"}, offers=bench.state.nodes["one"].offers))
    volumes = [{"name": name, "read_only": False} for name in names]
    bench.submit(volumes=volumes, user="t@" * 30, require=zones)
    bench.settle()
    assert placed(bench) == {"two": 4}

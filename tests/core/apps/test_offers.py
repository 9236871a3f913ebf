"""Apps run only where their volumes are offered to them, and say what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.asking import problem_of
from dorm.core.offers import trouble_with_fitness, trouble_with_volumes
from events import kinds as k
from events.kinds import NodeOffers, Unfit, VolumeOffer
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


def unfit(node: str, cores: int = 4, *, code: str = "health_program", text: str = "GPU 3 is gone") -> k.NodeJoined:
    return joined(node, cores, offers=NodeOffers(unfit=[Unfit(code, text)]))


def test_an_unfit_node_gets_nothing_new_and_keeps_what_runs() -> None:
    bench = Bench(one=2)
    bench.submit("first", n_max=4)
    bench.settle()
    bench.add(unfit("one", 2))
    assert bench.state.nodes["one"].shown == "unfit"
    bench.submit("second", n_max=1)
    bench.add(joined("two", 1))
    bench.settle()
    first, second = bench.state.live_apps()
    assert first.current is not None
    assert first.current.by_node() == {"one": 2}, "it is neither moved nor resized: that would start it again there"
    assert second.current is not None
    assert second.current.by_node() == {"two": 1}
    bench.add(joined("one", 2))
    bench.submit("third", n_max=2)
    bench.settle()
    assert not bench.state.nodes["one"].unfit


def test_an_app_that_waits_for_an_unfit_node_says_why() -> None:
    bench = Bench()
    bench.add(unfit("one", 8))
    bench.submit()
    bench.settle()
    (app,) = bench.state.live_apps()
    assert app.current is None
    assert app.waiting is not None
    assert app.waiting.text == "no node takes new containers; one takes nothing new: GPU 3 is gone"
    assert trouble_with_fitness(bench.state.nodes["one"]) == "one takes nothing new: GPU 3 is gone"
    bench.add(joined("two", 1))
    bench.settle()
    assert placed(bench) == {"two": 1}
    assert app.waiting is not None
    assert "one takes nothing new: GPU 3 is gone" in app.waiting.text
    assert "node/unfit" not in app.waiting.text
    bench.add(joined("one", 8))
    bench.submit("second", n_max=1)
    bench.settle()
    assert bench.app("second").current is not None, "once it is fit, it is used"


def test_an_app_that_fails_does_not_return_to_a_node_that_is_unfit_meanwhile() -> None:
    bench = Bench(one=2, two=2)
    bench.running(n_min=2, n_max=2, placement="pack")
    (where,) = placed(bench)
    bench.wait(3600)
    bench.add(unfit(where, 2))
    bench.all_exited(code=1)
    bench.settle()
    bench.wait(3600)
    bench.settle()
    assert set(placed(bench)) == {"one", "two"} - {where}


def test_an_app_goes_only_where_its_secret_is() -> None:
    bench = Bench()
    bench.add(joined("empty", 8, offers=NodeOffers(secrets={})))
    bench.add(joined("other", 8, offers=NodeOffers(secrets={"you": ["wandb"]})))
    bench.add(joined("has", 2, offers=NodeOffers(secrets={"me-too": ["w.andb", "hf"]})))
    bench.submit(secrets={"KEY_FILE": "w.andb"}, user="me-too")
    bench.settle()
    assert placed(bench) == {"has": 2}
    (app,) = bench.state.live_apps()
    assert app.waiting is not None
    assert "that has the secret w.andb" in app.waiting.text


def test_a_secret_that_no_node_has_is_waited_for() -> None:
    bench = Bench()
    bench.add(joined("one", 2, offers=NodeOffers(secrets={})))
    bench.submit(secrets={"KEY_FILE": "wandb"}, user="me")
    bench.settle()
    (app,) = bench.state.live_apps()
    assert app.waiting is not None
    assert app.waiting.text.startswith("no node has the secret wandb of user me: put it at me/wandb")
    bench.add(joined("one", 2, offers=NodeOffers(secrets={"me": ["wandb"]})))
    bench.settle()
    assert placed(bench) == {"one": 2}


@pytest.mark.parametrize("offers", [None, NodeOffers(), NodeOffers(environments=True)])
def test_agents_of_earlier_releases_say_nothing_of_secrets_and_get_apps(offers: NodeOffers | None) -> None:
    bench = Bench()
    bench.add(joined("new", 1, offers=NodeOffers(secrets={})))
    bench.add(joined("old", 2, offers=offers))
    bench.submit(secrets={"KEY_FILE": "wandb"}, user="me")
    bench.settle()
    assert placed(bench) == {"old": 2}


def test_a_node_that_serves_one_tenant_gets_no_others_apps() -> None:
    bench = Bench()
    bench.add(joined("nlp", 8, offers=NodeOffers(tenant="nlp")))
    bench.add(joined("vision", 2, offers=NodeOffers(tenant="vision")))
    bench.submit(id="vision//1", user="vision")
    bench.settle()
    (app,) = bench.state.live_apps()
    assert app.tenant == "vision"
    assert placed(bench) == {"vision": 2}
    assert app.waiting is not None
    assert "that serves vision" in app.waiting.text
    assert "nlp" not in app.waiting.text


def test_a_cluster_of_fit_nodes_without_secrets_has_the_problems_that_it_had() -> None:
    bench = Bench(one=4)
    bench.add(joined("two", 2, offers=NodeOffers(environments=True)))
    bench.submit(secrets={"KEY_FILE": "wandb"}, user="me", require="has zone or not has zone")
    bench.settle()
    problem = problem_of(bench.state, bench.now)
    assert [app.require for app in problem.apps] == ["has zone or not has zone"]
    assert [sorted(node.labels) for node in problem.nodes] == [[], ["environment", "environment/any"]]


def test_what_runs_is_not_moved_when_its_node_announces_whom_it_serves() -> None:
    """On an open cluster agents go by the spec's user, not by its sender."""
    bench = Bench(one=2)
    app = bench.running(user="ann", n_max=2)
    bench.add(joined("one", 2, offers=NodeOffers(tenant="ann")))
    bench.submit("second", user="ann", n_max=1)
    bench.settle()
    assert app.current is not None
    assert app.current.by_node() == {"one": 2} or bench.app("second").current is not None
    assert not any(one.waiting is not None and "serves" in one.waiting.text for one in bench.state.live_apps())

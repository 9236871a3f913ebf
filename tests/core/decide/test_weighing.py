"""What weights count for: against all apps, or within a tenant (`weights=tenants`)."""

from __future__ import annotations

from typing import Literal

import pytest

from dorm.core.asking import problem_of
from dorm.core.snapshot import dump, load
from events import kinds as k
from replay.frames import build
from tests.core.records import Bench


def shared(weights: Literal["apps", "tenants"], *apps: tuple[str, str, float]) -> dict[str, int]:
    """Return how many of 12 cores each app (name, tenant, weight) gets if all come at once and each could use all."""
    bench = Bench(a=12)
    bench.add(k.PolicyChanged(weights=weights))
    for name, tenant, weight in apps:
        bench.submit(name, id=f"{tenant}//{name}", n_max=12, weight=weight)
    bench.settle()
    held = {name: bench.app(name).current for name, _, _ in apps}
    return {name: len(one.containers) if one is not None else 0 for name, one in held.items()}


@pytest.mark.parametrize(
    ("weights", "apps", "counts"),
    [
        ("apps", [("a", "ann", 5), ("b", "bob", 1)], {"a": 10, "b": 2}),
        ("tenants", [("a", "ann", 5), ("b", "bob", 1)], {"a": 6, "b": 6}),
        ("apps", [("a", "ann", 1), ("b", "ann", 1), ("c", "bob", 1)], {"a": 4, "b": 4, "c": 4}),
        ("tenants", [("a", "ann", 1), ("b", "ann", 1), ("c", "bob", 1)], {"a": 3, "b": 3, "c": 6}),
        ("tenants", [("a", "ann", 1000), ("b", "ann", 200), ("c", "bob", 0.001)], {"a": 5, "b": 1, "c": 6}),
    ],
)
def test_shares(
    weights: Literal["apps", "tenants"], apps: list[tuple[str, str, float]], counts: dict[str, int]
) -> None:
    assert shared(weights, *apps) == counts


def test_a_changed_weight_affects_only_apps_of_the_same_tenant() -> None:
    bench = Bench(a=12)
    bench.add(k.PolicyChanged(weights="tenants"))
    for name, tenant in (("a", "ann"), ("b", "ann"), ("c", "bob")):
        bench.submit(name, id=f"{tenant}//{name}", n_max=12)
    bench.settle()
    bench.add(k.AppUpdated(app=bench.app("a").id, weight=3))
    weights = {app.id.partition("-")[0]: app.weight for app in problem_of(bench.state, bench.now).apps}
    assert weights == {"a": 0.75, "b": 0.25, "c": 1.0}


def test_on_an_open_cluster_each_user_is_a_tenant() -> None:
    bench = Bench(a=12)
    bench.add(k.PolicyChanged(weights="tenants"))
    bench.submit("a", n_max=12, weight=5, user="ann")
    bench.submit("b", n_max=12, user="bob")
    bench.settle()
    assert [len(bench.app(name).generations[1].containers) for name in "ab"] == [6, 6]


def test_the_setting_is_kept_in_snapshots_until_it_is_the_default_again() -> None:
    bench = Bench(a=4)
    bench.add(k.PolicyChanged(weights="tenants"))
    info, body = dump(bench.state, build=build())
    restored = load(info, body, build=build())
    assert restored is not None
    assert restored.settings.weights == "tenants"
    bench.add(k.PolicyChanged(quiet_ms=200))
    assert bench.state.settings.weights == "tenants"
    bench.add(k.PolicyChanged(weights="apps"))
    assert bench.state.settings.weights is None

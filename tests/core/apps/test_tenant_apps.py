"""How many apps a tenant may have that have not ended: a flood of waiting apps is refused, and only the flooder's."""

from __future__ import annotations

from typing import Any

from dorm.core.snapshot import dump, load
from events import kinds as k
from events.spec.abilities import EDITS
from replay.frames import build
from tests.core.records import Bench, joined


def submit(bench: Bench, *apps: str) -> None:
    """Submit apps, each as `TENANT//NAME`, one directly after the other."""
    for app in apps:
        bench.submit(app.rpartition("//")[2], id=app)


def answers(bench: Bench) -> dict[str, str]:
    """Answer all that wait, in one round; return the code of each refusal, "" for what is accepted, by submission."""
    said = [fact for fact in bench.decide() if isinstance(fact, k.AppAccepted | k.AppRejected)]
    return {fact.submission: getattr(fact, "code", "") for fact in said}


def test_one_more_than_allowed_is_refused_and_others_are_not() -> None:
    bench = Bench(a=4)
    bench.add(k.PolicyChanged(tenant_apps=3))
    submit(bench, *(f"ann//{name}" for name in "abcde"), "bob//a", "open")
    bench.add(k.AppHoldRequested(app="ann//a"))
    assert answers(bench) == {
        "ann//a": "", "ann//b": "", "ann//c": "", "ann//d": "tenant.apps.too_many", "ann//e": "tenant.apps.too_many",
        "bob//a": "", "open": "",
    }  # fmt: skip
    bench.settle()
    submit(bench, "ann//f", "bob//b")
    assert answers(bench) == {"ann//f": "tenant.apps.too_many", "bob//b": ""}

    # One that ends makes room for one.
    bench.add(k.AppCancelRequested(app="ann//b"))
    bench.settle()
    submit(bench, "ann//g", "ann//h")
    assert answers(bench) == {"ann//g": "", "ann//h": "tenant.apps.too_many"}


def test_refusals_name_the_remedy() -> None:
    bench = Bench(a=4)
    bench.add(k.PolicyChanged(tenant_apps=1))
    submit(bench, "ann//a", "ann//b")
    refused = next(fact for fact in bench.decide() if isinstance(fact, k.AppRejected))
    assert refused.reason == (
        "ann has 1 of at most 1 apps that have not ended; cancel some, or ask an operator to raise the limit "
        "(`dorm policy set tenant_apps=N`)"
    )


def test_an_ended_app_that_is_restarted_counts_again() -> None:
    bench = Bench()
    bench.add(joined("a", abilities=[EDITS]))
    bench.add(k.PolicyChanged(tenant_apps=1))
    submit(bench, "ann//a")
    bench.settle()
    first = bench.app("ann//a").id
    bench.add(k.AppCancelRequested(app=first))
    bench.settle()
    bench.all_exited(first)
    bench.settle()
    submit(bench, "ann//b")
    bench.settle()

    def restart(id: str) -> Any:
        bench.add(k.AppRestartRequested(id=f"ann//{id}", app=first), "ann")
        return next(fact for fact in bench.decide() if isinstance(fact, k.AppRestarted | k.AppRejected))

    assert restart("r1").code == "tenant.apps.too_many"
    bench.add(k.AppCancelRequested(app="ann//b"))
    bench.settle()
    assert isinstance(restart("r2"), k.AppRestarted)


def test_the_bound_is_kept_in_snapshots_until_it_is_the_default_again() -> None:
    bench = Bench(a=4)
    bench.add(k.PolicyChanged(tenant_apps=7))
    info, body = dump(bench.state, build=build())
    restored = load(info, body, build=build())
    assert restored is not None
    assert restored.settings.tenant_apps == 7
    bench.add(k.PolicyChanged(quiet_ms=200))
    assert bench.state.settings.tenant_apps == 7
    bench.add(k.PolicyChanged(tenant_apps=10_000))
    assert bench.state.settings.tenant_apps is None

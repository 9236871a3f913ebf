"""Apps that wait for others: they run once these have ended as required, and end if that has become impossible."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.asking import problem_of
from dorm.core.gates import age_ns, reason_of
from dorm.core.query.assumed import Assumed, PlanError
from dorm.core.query.plans import plan
from dorm.core.query.views import sizes
from events import kinds as k
from events.kinds import AppAccepted, AppCancelled, AppRejected
from events.spec import SpecError
from events.spec.gates import in_order
from tests.core.fold.test_identities import Said, trusting
from tests.core.records import Bench, checked, document, joined


def refusal(bench: Bench, name: str = "app", **fields: Any) -> str:
    """The code of the answer to a submission."""
    bench.submit(name, **fields)
    (answer,) = [fact for fact in bench.settle() if isinstance(fact, AppAccepted | AppRejected)]
    return answer.code if isinstance(answer, AppRejected) else ""


def why(bench: Bench, name: str = "app") -> str:
    reason = reason_of(bench.app(name), bench.now)
    return f"{reason.code}: {reason.text}" if reason is not None else ""


def end(bench: Bench, name: str, how: str) -> None:
    if how == "cancelled":
        bench.add(k.AppCancelRequested(app=name))
    else:
        bench.all_exited(name, code=0 if how == "completed" else 1)
    bench.settle()
    if how == "cancelled":
        bench.all_exited(name, asked=True)
    bench.settle()
    assert bench.app(name).ended == how


def waiting(when: str = "completed", **more: Any) -> Bench:
    """`prep` runs, and `app` waits for it."""
    bench = Bench(a=4)
    bench.running("prep", n_max=1, retries={"limit": 0})
    bench.submit("app", n_max=2, after=[{"app": "prep", "when": when}], **more)
    bench.settle()
    return bench


def test_a_waiting_app_is_not_part_of_the_demand() -> None:
    bench = waiting()
    assert (sizes(bench.app()), why(bench)) == ({}, "after: waits for prep to complete")
    assert [one.id for one in problem_of(bench.state, bench.now).apps] == [bench.app("prep").id]
    bench.wait(60.0)
    end(bench, "prep", "completed")
    assert (sizes(bench.app()), why(bench)) == ({"a": 2}, "")
    assert bench.app().waiting_since == 0  # It has its place.
    assert age_ns(bench.app(), bench.now) == 0


@pytest.mark.parametrize(
    ("when", "how", "runs"),
    [
        ("completed", "completed", True), ("completed", "failed", False), ("completed", "cancelled", False),
        ("failed", "failed", True), ("failed", "completed", False), ("failed", "cancelled", False),
        ("ended", "completed", True), ("ended", "failed", True), ("ended", "cancelled", True),
    ],
)  # fmt: skip
def test_the_end_of_the_awaited_app_decides(when: str, how: str, runs: bool) -> None:
    bench = waiting(when)
    end(bench, "prep", how)
    app = bench.app()
    if runs:
        assert (app.ended, sizes(app)) == ("", {"a": 2})
        return
    assert (app.ended, app.end_code) == ("cancelled", "after")
    was = "was cancelled" if how == "cancelled" else how
    can = {"completed": "complete", "failed": "fail"}[when]
    assert app.end_reason == f"prep {was}, so it can't {can}, and app was to run once it had {when}"


def test_the_end_of_an_app_propagates_through_a_chain() -> None:
    bench = waiting()
    bench.submit("last", after=["app"])
    bench.submit("anyhow", after=[{"app": "last", "when": "ended"}])
    bench.settle()
    end(bench, "prep", "failed")
    assert (
        bench.app("last").end_reason
        == "app was cancelled, so it can't complete, and last was to run once it had completed"
    )
    assert sizes(bench.app("anyhow")) == {"a": 4}


def test_a_hold_and_another_app_are_two_gates() -> None:
    bench = waiting(hold=True)
    assert why(bench) == "hold: held by someone: submitted so; waits for prep to complete"
    end(bench, "prep", "completed")
    assert (sizes(bench.app()), why(bench)) == ({}, "hold: held by someone: submitted so")
    bench.add(k.AppReleaseRequested(app="app"))
    bench.settle()
    assert sizes(bench.app()) == {"a": 2}


def test_a_held_app_ends_once_it_can_never_run() -> None:
    bench = waiting(hold=True)
    end(bench, "prep", "failed")
    assert bench.app().ended == "cancelled"


def test_ended_apps_count_by_their_end() -> None:
    bench = waiting()
    end(bench, "prep", "completed")
    assert refusal(bench, "later", after=["prep"]) == ""
    assert why(bench, "later").partition(":")[0] != "after"
    assert refusal(bench, "never", after=[{"app": bench.app("prep").id, "when": "failed"}]) == "spec.after.never"


def test_waiting_outlasts_the_memory_of_the_awaited_app() -> None:
    bench = waiting(hold=True)
    end(bench, "prep", "completed")
    bench.add(k.PolicyChanged(retention_s=0.0))
    bench.wait(10.0)
    bench.running("other", n_max=1)
    bench.all_exited("other")
    bench.settle()
    assert bench.state.find_app("prep") is None
    bench.add(k.AppReleaseRequested(app="app"))
    bench.settle()
    assert sizes(bench.app()) == {"a": 2}
    assert refusal(bench, "late", after=["prep"]) == "spec.after.unknown"


def test_apps_of_one_round_know_each_other() -> None:
    bench = Bench(a=4)
    bench.submit("prep", id="one", n_max=1)
    bench.submit("app", after=["prep"])
    first = [fact for fact in bench.decide() if isinstance(fact, AppAccepted)]
    assert [one.after for one in first] == [[], [first[0].app]]
    assert why(bench) == "after: waits for prep to complete"


@pytest.mark.parametrize(
    ("after", "code"),
    [
        (["nobody"], "spec.after.unknown"), (["app"], "spec.after.itself"), (["prep", {"app": "prep"}], "spec.after.repeated"),
        ([{"app": "prep", "when": "never"}], "spec.after.when.not_a_choice"),
        ([{"app": "prep", "then": 1}], "spec.after.unknown_field"),
        ([{"when": "ended"}], "spec.after.app.missing"), ([1], "spec.after.wrong_type"), ("prep", "spec.after.wrong_type"),
        (["Prep"], "spec.after.malformed"), (["prep\n"], "spec.after.malformed"), (["p"] * 101, "spec.after.out_of_range"),
    ],
)  # fmt: skip
def test_invalid_conditions_are_refused(after: Any, code: str) -> None:
    bench = Bench(a=4)
    bench.running("prep", n_max=1)
    assert refusal(bench, after=after) == code


def test_order_of_several_files() -> None:
    specs = [checked("c", after=["b", "a"]), checked("a"), checked("b", after=["a", "elsewhere"]), checked("d")]
    assert in_order(specs) == [1, 2, 0, 3]
    with pytest.raises(SpecError, match="a waits for b, which waits for a; remove one of these") as found:
        in_order([checked("d"), checked("a", after=["b"]), checked("b", after=["a"])])
    assert found.value.code == "spec.after.cycle"


def test_plans_know_awaited_apps() -> None:
    bench = waiting()
    specs = (checked("z", after=["y"]), checked("y"))
    (app, y, z) = [one for one in plan(bench.state, bench.now, Assumed(specs=specs)).apps if one.name != "prep"]
    assert (app.after, y.name, z.after) == (0, "y", 0)
    assert z.reason is not None
    assert z.reason.text == "waits for y to complete"
    with pytest.raises(PlanError, match="no app 'gone'"):
        plan(bench.state, bench.now, Assumed(specs=(checked("z", after=["gone"]),)))


# --- tenants ------------------------------------------------------------------------------------------------------------


def cluster() -> Said:
    said = trusting(ann="user", bob="user", op="operator")
    said.by("root", k.NodeEnrolled(node="n1"))
    said.by("n1", joined("n1"))
    said.by("bob", k.AppSubmitted(spec=document("secret")))
    said.by("ann", k.AppSubmitted(spec=document("prep")))
    said.bench.settle()
    return said


def answer(said: Said, who: str, name: str, after: str) -> tuple[str, str]:
    said.by(who, k.AppSubmitted(spec=document(name, after=[after])))
    (fact,) = [one for one in said.bench.settle() if isinstance(one, AppAccepted | AppRejected)]
    return (fact.code, fact.reason) if isinstance(fact, AppRejected) else ("", "")


def test_no_user_learns_about_apps_of_others() -> None:
    said = cluster()
    hidden, absent = said.bench.app("secret").id, "secret-aaaaaaaaaaaa"
    for name in ("secret", hidden):
        code, reason = answer(said, "ann", "one", name)
        other, words = answer(said, "ann", "two", absent if name == hidden else "nothing")
        assert (code, other) == ("spec.after.unknown", "spec.after.unknown")
        assert reason.replace(name, "X") == words.replace(absent if name == hidden else "nothing", "X")
    assert answer(said, "op", "three", "secret")[0] == "spec.after.unknown"  # An operator's apps are an operator's.
    assert answer(said, "ann", "four", "prep") == ("", "")


def test_ones_own_name_hides_no_app_of_others() -> None:
    said = cluster()
    said.by("ann", k.AppSubmitted(spec=document("secret")))
    said.by("ann", k.AppSubmitted(spec=document("app", after=["secret"])))
    accepted = [one for one in said.bench.settle() if isinstance(one, AppAccepted)]
    assert accepted[1].after == [accepted[0].app]
    said.by("bob", k.AppCancelRequested(app="secret"))
    cancelled = [one.app for one in said.bench.settle() if isinstance(one, AppCancelled)]
    assert accepted[1].app not in cancelled

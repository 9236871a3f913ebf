"""Doubtful checkpoints in the state, and what exit code 0 means after a request to stop and after one of them."""

from __future__ import annotations

from typing import Any

import pytest

from dorm.core.progress import doubt_shown
from dorm.core.query.views import describe
from events import kinds as k
from events.kinds import Doubt
from events.quantities import SECOND
from tests.core.records import Bench

TORN = Doubt(files=["model.pt"])


def saved(bench: Bench, step: int = 30, *, generation: int = 1) -> None:
    app = bench.app()
    node = app.generations[generation].containers[0].node
    bench.add(k.AppProgressed(app=app.id, generation=generation, step=step), node)
    bench.add(k.AppCheckpointed(app=app.id, generation=generation, step=step), node)


def restarted(bench: Bench, doubt: Doubt | None = TORN, code: int = 0, **how: Any) -> None:
    """Its first generation is asked to stop, and its next one starts."""
    bench.add(k.AppRestartRequested(id="r", app=bench.app().id))
    bench.settle()
    bench.all_exited(generation=1, code=code, asked=True, doubt=doubt, **how)
    bench.settle()
    bench.started()
    bench.settle()


def one(**fields: Any) -> Bench:
    bench = Bench(a=4)
    bench.running(n_max=1, retries={"limit": 1}, **{"command": ["bash", "run.sh"], **fields})
    saved(bench)
    return bench


def after(bench: Bench) -> list[Any]:
    """What the end of all containers of the latest generation with exit code 0 means."""
    bench.all_exited()
    return bench.decide()


@pytest.mark.parametrize("killed", [True, False])
def test_a_wrapper_that_ends_well_over_a_doubtful_checkpoint_has_failed(killed: bool) -> None:
    bench = one()
    restarted(bench, killed=killed)
    assert bench.app().generation == 2
    (said, *_) = after(bench)
    assert isinstance(said, k.GenerationFailed)
    assert (said.failure, said.counted, said.retries) == ("exit", True, 1)
    assert said.reason == (
        "slot 0 on a ended with exit code 0 without a step after a doubtful checkpoint; see `dorm checkpoints app`"
    )
    bench.wait((said.retry_at - bench.now) / SECOND)
    bench.settle()
    bench.started()
    bench.settle()
    (end, *_) = after(bench)
    assert isinstance(end, k.AppFailed), "no number of such ends means completed"
    assert end.exit_codes == {"0": 0}


@pytest.mark.parametrize(
    ("command", "script"),
    [
        (["python3", "train.py"], False),
        (["env", "-C", "/srv", "bash", "-c", "python train.py"], True),
        (["./run"], True),
        (["./run.sh"], True),
        (["/opt/conda/bin/python", "-m", "train"], False),
    ],
)
def test_a_program_that_runs_by_itself_is_believed(command: list[str], script: bool) -> None:
    """It may have had nothing left to do: its last file, which it did not report, was complete."""
    bench = one(command=command)
    restarted(bench)
    assert isinstance(after(bench)[0], k.GenerationFailed if script else k.AppCompleted)


def test_a_step_or_a_checkpoint_of_that_generation_is_proof() -> None:
    for kind in (k.AppProgressed, k.AppCheckpointed):
        bench = one()
        restarted(bench)
        bench.add(kind(app=bench.app().id, generation=2, step=30), "a")
        assert isinstance(after(bench)[0], k.AppCompleted)


def test_without_doubt_exit_code_0_needs_no_step() -> None:
    for doubt in (None, Doubt(files=["step-40.pt"], before=True)):
        bench = one()
        restarted(bench, doubt)
        if doubt is not None:  # It was set aside before the start, which the next start then says.
            app = bench.app()
            assert app.doubt is not None
            bench.exited(code=1)
            bench.settle()
            bench.wait(60)
            bench.settle()
            aside = Doubt(files=doubt.files, before=True, aside=".doubtful/generation-3")
            bench.add(k.ContainerStarted(app=app.id, generation=app.generation, slot=0, node="a", doubt=aside), "a")
            bench.settle()
        assert isinstance(after(bench)[0], k.AppCompleted)


def test_a_fresh_start_and_one_that_never_saved_have_no_doubtful_checkpoint() -> None:
    bench = one()
    bench.add(k.AppRestartRequested(id="r", app=bench.app().id, fresh=True))
    bench.settle()
    bench.all_exited(generation=1, asked=True, doubt=TORN)
    bench.settle()
    assert bench.app().doubt is None
    bench.started()
    assert isinstance(after(bench)[0], k.AppCompleted)

    bench = Bench(a=4)
    bench.running(n_max=1)
    restarted(bench)
    assert bench.app().doubt is None, "there is nothing that it could resume from"


def test_what_was_found_before_a_start_counts_for_that_generation_even_if_its_start_is_not_reported() -> None:
    bench = one()
    restarted(bench, None)
    bench.all_exited(doubt=TORN)
    assert isinstance(bench.decide()[0], k.GenerationFailed)
    shown = doubt_shown(bench.app())
    assert shown is not None
    assert shown["text"] == "model.pt changed after the last reported checkpoint (step 30), before generation 2 started"


def test_a_node_that_was_lost_says_nothing_and_the_next_one_finds_it() -> None:
    bench = Bench(a=4, b=4)
    bench.running(n_max=1, retries={"limit": 1}, command=["bash", "run.sh"])
    saved(bench)
    first = bench.placed()
    bench.wait(10_000)
    bench.conclude(**{first: 20.0})
    bench.conclude(**{first: 10_000.0})
    bench.settle()
    bench.wait(60)
    bench.settle()
    app = bench.app()
    assert app.generation == 2
    bench.add(k.ContainerExited(app=app.id, generation=1, slot=0, node=first, exit_code=0))
    assert bench.decided() == [], "a late record of a container that counts as ended changes nothing"
    bench.add(k.ContainerStarted(app=app.id, generation=2, slot=0, node=bench.placed(), doubt=TORN), bench.placed())
    assert isinstance(after(bench)[0], k.GenerationFailed)


@pytest.mark.parametrize("asked_slots", [[0], [1], [0, 1]])
@pytest.mark.parametrize("late", [True, False])
def test_exit_code_0_of_a_container_that_was_asked_never_completes_the_app(asked_slots: list[int], late: bool) -> None:
    bench = Bench(a=4)
    bench.running(n_min=2, n_max=2)
    saved(bench)
    if not late:
        bench.add(k.AppRestartRequested(id="r", app=bench.app().id))
        bench.settle()
    for slot in (1, 0):
        bench.exited(slot=slot, generation=1, asked=slot in asked_slots)
    said = bench.settle()
    assert not any(isinstance(fact, k.AppCompleted) for fact in said)
    assert bench.app().ended == ""


def test_the_next_report_of_a_checkpoint_ends_the_doubt() -> None:
    bench = one()
    restarted(bench)
    assert bench.app().doubt is not None
    bench.add(k.AppCheckpointed(app=bench.app().id, generation=2, step=40), "a")
    assert bench.app().doubt is None
    assert describe(bench.app(), bench.now)["doubt"] is None


@pytest.mark.parametrize(
    ("doubt", "how", "text", "advice"),
    [
        (
            TORN, {"killed": True},
            "model.pt changed after the last reported checkpoint (step 30), when slot 0 of generation 1 was killed",
            "no earlier one is there; to keep one, save under another name, then rename the complete file",
        ),
        (
            Doubt(files=["a-40", "b-40"], more=3, before=True), {"code": 1},
            "a-40, b-40 and 3 more changed after the last reported checkpoint (step 30), before slot 0 of generation 1 ended",
            "`dorm restart app --fall-back` sets it aside and resumes from the one before",
        ),
    ],
)  # fmt: skip
def test_doubt_in_words(doubt: Doubt, how: dict[str, Any], text: str, advice: str) -> None:
    bench = one()
    restarted(bench, doubt, **how)
    shown = describe(bench.app(), bench.now)["doubt"]
    assert (shown["text"], shown["advice"], shown["files"]) == (text, advice, doubt.files)

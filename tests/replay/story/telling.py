"""Stories of a bench's log, and decisions written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.core.state import State
from events import kinds as k
from replay.story.app_teller import AppTeller
from replay.travel import fold
from tests.core.records import Bench

if TYPE_CHECKING:
    from replay.story.chapters import Chapter, Places


def told(bench: Bench, name: str = "app", *, at: int | None = None) -> list[Chapter]:
    """The state of the bench's log, folded from its start."""
    state, teller = State(), AppTeller(name)
    fold(state, bench.records, len(bench.records) if at is None else at, None, teller.see)
    return teller.story()


def one(chapters: list[Chapter], what: str) -> Chapter:
    """The only chapter of this kind."""
    (found,) = [chapter for chapter in chapters if chapter.what == what]
    return found


def what(chapters: list[Chapter]) -> list[str]:
    return [chapter.what for chapter in chapters]


def causes(chapter: Chapter) -> list[str]:
    return [cause.text for cause in chapter.causes]


def contended() -> Bench:
    """A node of four cores that one app has to itself, until another comes."""
    bench = Bench(n1=4)
    bench.add(k.PolicyChanged(policy="dorm-exact", params={"theta2": 1.0}))
    bench.running("app", n_max=4)
    return bench


def decision(*changes: k.Resize, **fields: object) -> k.Resized:
    given = {
        "policy": "dorm", "policy_version": 1, "params": {}, "solver": "s", "reasons": {}, "utilization": 1.0,
        "fairness_loss": 0.0, "fairness_budget": 0.0, "excess": 0.0, "overhead": 1, "overhead_budget": 1,
        "status": "optimal", "bound": 1.0, "digest": "", **fields,
    }  # fmt: skip
    return k.Resized(changes=list(changes), **given)  # type: ignore[arg-type]  # a test's short way to write one


def resize(bench: Bench, name: str, places: Places, port: int) -> k.Resize:
    app = bench.app(name)
    nodes = [node for node, count in places.items() for _ in range(count)]
    placed = [
        k.Placed(slot=slot, node=node, address=f"addr-{node}", port=port + slot) for slot, node in enumerate(nodes)
    ]
    return k.Resize(
        app=app.id,
        from_generation=app.generation,
        to_generation=app.generation + 1,
        placement=placed,
        adjustment="restart" if app.generation else "start",
    )

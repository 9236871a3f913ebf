"""The log is rotated while masters, agents, clients and the server die: nothing is lost, and variants that lose records are
caught."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.rotation import rotation_due, rotator
from dorm.rotation.rotator import Rotator
from tests.rotation.simulated import RotatingHistory
from tests.simulation.breaking.patches import Variant, code, together
from tests.tries import tries

if TYPE_CHECKING:
    from tests.simulation.history import History

SEED = 4
"""Two masters; three rotations."""
_ARCHIVE_IS_LOOKED_AT = (
    "    archive = await open_archive_of(self._store, name, self._cluster)\n"
    "    try:\n"
    "        await self._keep_snapshot(cut, await last_snapshot(archive))\n"
    "    finally:\n"
    "        await archive.close()\n"
)
VARIANTS = {
    "records are removed before their archive is durable": Variant(
        together(
            code(
                Rotator.step,
                ("        await self._store.put(written.name, file)\n", ""),
                ("    await self._read_back(written, before)\n", ""),
            ),
            code(Rotator.finish, ("or name not in await self._store.names()", ""), (_ARCHIVE_IS_LOOKED_AT, "")),
        )
    ),
    "an archive ends where no seal does": Variant(
        together(
            code(
                rotation_due.plan,
                (
                    "return Plan(after, target, seal)",
                    "return Plan(after, target, __import__('msgspec').structs.replace(seal, upto=reach))",
                ),
            ),
            code(rotator.write, ("if info.chain != plan.seal.chain:", "if False:")),
        )
    ),
    "nothing is left to fold the stream from": Variant(
        together(
            code(Rotator.step, ("    await self._put_snapshot(written.snapshot, written.body)\n", "")),
            code(Rotator.finish, (_ARCHIVE_IS_LOOKED_AT, ""), ("if not await self._has_snapshot(cut):", "if False:")),
        )
    ),
    "a torn archive is taken for a whole one": Variant(
        together(
            code(Rotator.step, ("    await self._read_back(written, before)\n", "")),
            code(Rotator.finish, (_ARCHIVE_IS_LOOKED_AT, "")),
            lambda patch: patch.setattr(
                "events.archive.stores.shutil.copyfileobj",
                lambda source, copy, size: copy.write(source.read(600)),
            ),
        )
    ),
}


def outcome_of(seed: int) -> tuple[int, str]:
    history = RotatingHistory(seed)
    outcome = history.run()
    return history.cuts, "\n".join([outcome.broken, *outcome.story]) if outcome.broken else ""


@pytest.mark.parametrize("seed", range(1, 1 + tries(1, 60)))
def test_a_history_in_which_the_log_is_rotated(seed: int) -> None:
    _, broken = outcome_of(seed)
    assert not broken, broken


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_variants_that_lose_records_are_caught(name: str) -> None:
    with VARIANTS[name].broken():
        assert any(outcome_of(seed)[1] for seed in (SEED, 1, 2))


def test_the_histories_rotate_their_log() -> None:
    assert outcome_of(SEED)[0] >= 2


def steps_of(crash_in: int = 0) -> tuple[int, int]:
    """Return how many steps the leading master took in its first life if it dies before that step, and the rotations."""
    steps: list[int] = []

    def aim(history: History) -> None:
        history.world.after(0.0, watch, history)
        history.world.after(history.span_s, lambda: steps.append(history.leaders[history.masters[0]].steps))

    def watch(history: History) -> None:
        process = history.leaders[history.masters[0]]
        first = process.steps
        process.on_end(lambda ended: steps.append(ended.steps - first))
        if crash_in:
            process.kill(crash_in=crash_in)

    history = RotatingHistory(SEED, only=(), alter=aim)
    outcome = history.run()
    assert not outcome.broken, "\n".join([f"died before its step {crash_in}", *outcome.story])
    return steps[0], history.cuts


@pytest.mark.soak
def test_a_master_that_rotates_may_die_at_any_await() -> None:
    whole, cuts = steps_of()
    assert cuts >= 2
    tried = tries(60, whole)
    for number in range(tried):
        step = 1 + number * whole // tried
        assert steps_of(step)[0] == step

"""Broken on purpose: variants of the code that the simulation has to catch, or it would not find such bugs in the real one.

Each replaces a piece of the real source, or has the model of the server or the runtime break its word.  Which seeds catch a
variant is a matter of luck, so the ones that did are tried first, and then the others in their order.
"""

from __future__ import annotations

import contextlib
import inspect
import textwrap
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import agents.desired
import agents.reconcile
import dorm.core.decide
import dorm.core.evolve
import dorm.core.liveness
import dorm.core.rounds
from agents.agent import Agent
from agents.desired import Desired
from agents.ledger import Ledger
from agents.outbox import Outbox
from dorm.client import Client
from dorm.leading import Lease
from dorm.master import Master
from tests.core.mutants import mutate
from tests.simulation.connection import SimLog
from tests.simulation.runtime import SimRuntime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.simulation.history import History, Outcome

MOST_SEEDS = 300
"""Seeds within which each has to be caught."""

Break = "Callable[[pytest.MonkeyPatch], Callable[[History], None] | None]"


class Variant(msgspec.Struct, frozen=True):
    """`apply` breaks code by a patch, and may give a function that breaks a history's parts."""

    apply: Any
    first: tuple[int, ...] = ()
    """Seeds that have caught it."""

    @contextlib.contextmanager
    def broken(self) -> Iterator[Callable[[History], None]]:
        """While it is entered the code is broken; gives what is to be done to each history."""
        with pytest.MonkeyPatch.context() as patch:
            yield self.apply(patch) or _leave


def _leave(history: History) -> None:
    del history


def _method(owner: type, name: str, *changes: tuple[str, str]) -> Callable[[pytest.MonkeyPatch], None]:
    """The method with pieces of its source replaced, everywhere that they are in it."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        _rewrite(patch, owner, name, *changes)

    return apply


def _rewrite(patch: pytest.MonkeyPatch, owner: type, name: str, *changes: tuple[str, str]) -> None:
    source = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    for old, new in changes:
        assert old in source, f"{owner.__name__}.{name} has no {old!r}"
        source = source.replace(old, new)
    changed: dict[str, Any] = dict(vars(inspect.getmodule(owner)))
    exec(compile("from __future__ import annotations\n" + source, f"<variant of {name}>", "exec"), changed)
    patch.setattr(owner, name, changed[name])


def _module(module: Any, old: str, new: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: mutate(patch, module, old, new)


def _server(**settings: Any) -> Callable[[pytest.MonkeyPatch], Callable[[History], None]]:
    def alter(history: History) -> None:
        for name, value in settings.items():
            setattr(history.world.server, name, value)

    return lambda _: alter


def _all(*parts: Callable[[pytest.MonkeyPatch], Any]) -> Callable[[pytest.MonkeyPatch], Callable[[History], None]]:
    def apply(patch: pytest.MonkeyPatch) -> Callable[[History], None]:
        alters = [part(patch) or _leave for part in parts]

        def alter(history: History) -> None:
            for one in alters:
                one(history)

        return alter

    return apply


# --- what is broken ----------------------------------------------------------------------------------------------------


def _lease_is_everybodys(patch: pytest.MonkeyPatch) -> None:
    async def win(self: Lease) -> None:
        self.settled.set()

    async def keep(self: Lease) -> None:
        return None

    patch.setattr(Lease, "win", win)
    patch.setattr(Lease, "keep", keep)
    _lease_never_ends(patch)


def _lease_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "held", property(lambda self: True))
    patch.setattr(Lease, "check", lambda self: None)


def _wall_clock(patch: pytest.MonkeyPatch) -> None:
    for name in ("_listen", "_fold", "_elect", "_conclude", "_feel_pulse"):
        _rewrite(patch, Master, name, ("_loop_ns()", "self._clock()"))


def _lease_not_kept(patch: pytest.MonkeyPatch) -> None:
    async def extend_lease(self: SimRuntime, seconds: float) -> None:
        return None

    patch.setattr(SimRuntime, "extend_lease", extend_lease)


def _asked_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "asked", lambda self, key: False)


def _reader_skips(patch: pytest.MonkeyPatch) -> None:
    """A record is left out where a reader begins anew, and nobody asserts that sequences are contiguous."""
    changes = (
        ("_Reader(self._asker, after,", "_Reader(self._asker, after + 1 if after else 0,"),
        ("if not subjects and", "if False and"),
    )
    _rewrite(patch, SimLog, "read", *changes)
    mutate(patch, dorm.core.evolve, "if seq != state.seq + 1:", "if False:")


def _margin(seconds: float) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(dorm.core.liveness, "LEASE_MARGIN_S", seconds)


VARIANTS: dict[str, Variant] = {
    # the log
    "the server has no fence": Variant(_server(fence=False)),
    "the server stores repeats": Variant(_server(dedupe=False)),
    "the server loses what it acknowledged": Variant(_server(lose_acknowledged=2)),
    "a reader skips a record after an outage": Variant(_reader_skips),
    # masters
    "followers lead": Variant(_lease_is_everybodys),
    "a master that lost its lease, or was deposed, goes on": Variant(
        _all(_lease_never_ends, _method(Master, "_check_leading", ("raise Deposed", "str")))
    ),
    "a refused round is sent again with the new sequence": Variant(
        _method(
            Master,
            "_append",
            (
                "return last.seq if last and last.msg_id == event.id else None",
                "self.state.round_seq = last.seq if last else 0",
            ),
        )
    ),
    "silence goes by the wall clock": Variant(_wall_clock),
    "an outage counts as silence": Variant(
        _all(
            _method(
                Master,
                "_conclude",
                ("self._hearing.deaf(at)", "False"),
                ("except LogError", "except ZeroDivisionError"),
            ),
            lambda patch: patch.setattr("dorm.hearing.Hearing.deaf", lambda self, now: False),
            lambda patch: patch.setattr("dorm.hearing.Hearing.stored", lambda self, node, words, now: None),
        )
    ),
    "a lost node's lease ends with the grace time": Variant(
        _module(dorm.core.liveness, "silence > max(lease, grace)", "silence > grace")
    ),
    "the lease ends without a margin": Variant(_margin(-3.0)),
    # the core
    "a generation is released before the last one has ended": Variant(
        _module(dorm.core.decide, "if all(g.ended for g in earlier):", "if earlier is not None:")
    ),
    "a generation is released without room": Variant(
        _module(dorm.core.decide, "if _take_room(state, free, app, generation)", "if generation")
    ),
    "exit code 0 is done, asked or not": Variant(
        _module(dorm.core.decide, "container.exit_code == 0 and not container.asked", "container.exit_code == 0")
    ),
    "an app is done with its first slot": Variant(
        _module(dorm.core.decide, "if all(_done(container) for", "if any(_done(container) for")
    ),
    "checkpoints are not believed": Variant(
        _module(dorm.core.decide, "resume = app.checkpoint is not None", "resume = False")
    ),
    "an exit counts twice": Variant(
        _module(dorm.core.evolve, 'if container.state == "exited":', 'if container.state == "never":')
    ),
    "a repeated submission is a new one": Variant(
        _all(
            _module(dorm.core.evolve, "if submission.id in state.submissions:", "if False:"),
            _module(dorm.core.evolve, "if app_id(name_of(event.spec), event.id) in state.apps:", "if False:"),
        )
    ),
    "anybody may speak for a node": Variant(
        _module(
            dorm.core.evolve,
            "if subjects.who_of(record.subject) == subjects.token(event.node):",
            "if subjects.who_of(record.subject):",
        )
    ),
    "rounds that were overtaken count, and there is no fence": Variant(
        _all(
            _server(fence=False),
            _module(
                dorm.core.rounds, "if event.epoch < state.epoch or not fence <= event.basis < state.seq:", "if False:"
            ),
        )
    ),
    # agents
    "the runtime does not keep the lease": Variant(_lease_not_kept),
    "the agent forgets what it asked to stop": Variant(_asked_forgotten),
    "facts are dropped in an outage": Variant(_method(Outbox, "_store", ("await asyncio.sleep(pause)", "return"))),
    "facts are sent again with a new id": Variant(
        _method(Outbox, "_store", ("msg_id=event.id", "msg_id=f'{event.id}.{pause}'"))
    ),
    "what was not released is started": Variant(_method(Desired, "wanted", ("if app.released and", "if"))),
    "what was lost is started again": Variant(
        _module(agents.reconcile, "        if started:\n            return ReportExited(key, None)\n", "")
    ),
    "a container's last words are not read": Variant(
        _method(Agent, "_report_exited", ("await self._read_progress(key, final=True)", "pass"))
    ),
    "ended containers are discarded before their end is stored": Variant(
        _module(
            agents.reconcile, "    if key in desired.due:\n        return False", "    if False:\n        return False"
        )
    ),
    "generations that failed run on": Variant(_method(Desired, "wanted", ("and not app.failed", ""))),
    # clients
    "a submission is tried again with a new id": Variant(_method(Client, "submit", ("event_id = id or", "event_id ="))),
}


# --- catching them -----------------------------------------------------------------------------------------------------


def caught_by(name: str, seeds: Sequence[int] = range(MOST_SEEDS)) -> Outcome | None:
    """The first of the seeds that finds something wrong with this variant; None where none does."""
    from tests.simulation.running import Choice, play

    first = VARIANTS[name].first
    for seed in [*first, *(seed for seed in seeds if seed not in first)]:
        outcome = play(seed, Choice(variant=name)).outcome
        if outcome.broken:
            return outcome
    return None


def catch(names: Sequence[str], jobs: int) -> Iterator[tuple[str, Outcome | None]]:
    """Each variant with who caught it, in order."""
    with ProcessPoolExecutor(jobs, get_context("forkserver")) as pool:
        yield from zip(names, pool.map(caught_by, names), strict=True)

"""The interface for training scripts: `join`, `Job.steps`, and the steps (`step`).

The script's loop is ordinary Python; everything that can change (members, chunks, state) changes only between two steps.
If a member dies inside a step, the sum of that step returns the caller's own values, the step's effect on the state is undone
before the next one, and the same step is repeated.  The script need not know, except for effects outside the state.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from dorm.elastic import ledger
from dorm.elastic.checkpoints import Checkpoints, Saved
from dorm.elastic.chunks import DEFAULT_CHUNKS, Chunks
from dorm.elastic.contract import Contract, Progress
from dorm.elastic.errors import ContractError
from dorm.elastic.network.group import STOPPED, Group
from dorm.elastic.protocol import views as v
from dorm.elastic.state import Keeper
from dorm.elastic.statistics import Statistics
from dorm.elastic.step import Step
from dorm.elastic.values import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

    import numpy.typing as npt

    from dorm.elastic.collectives.groups import Groups
    from dorm.elastic.collectives.path import Path

    Arrays = list[npt.NDArray[Any]]

__all__ = ["Job", "Step", "join"]

_REPORT_S = 0.5
"""Seconds between two reports of progress."""
_LINGER_S = 0.1
"""Seconds that a leaver waits before it ends.  Its farewell and the end of its process take CPU time, and on a machine that
workers share they would take it from the first step of those that stay."""


@contextmanager
def join(
    state: Any = None,
    *,
    warm_up: Callable[[], object] | None = None,
    collectives: str = "auto",
    contract: Contract | None = None,
) -> Iterator[Job]:
    """Join the job that this process was started for, alone if it was started by hand.

    `state` is what all members share: arrays, objects with `state_dict` and `load_state_dict` (models, optimizers),
    or a dictionary of such.  It is changed in place.  A newcomer receives it from a member; before that, `warm_up` is
    called with a recent state loaded, for anything that takes time once (compiling, reading data), while the others train.

    `collectives` selects the transport for sums of tensors: "auto" is a process group of PyTorch (gloo or NCCL, by the device
    of the tensors in `state`) if all members can build it, else TCP; "tcp" is TCP alone.

    If the job was asked to stop (SIGTERM), the process ends with 143 after the block: 0 would mean that it is complete.

    Raises ContractError, StateError, LeftBehind.
    """
    if collectives not in ("auto", "tcp"):
        text = f"collectives is {collectives!r}; it is 'auto' or 'tcp'"
        raise ContractError(text, code="elastic.contract.collectives")
    job = Job(state, contract if contract is not None else Contract.from_environment())
    if collectives == "auto":
        job.use_groups()
    previous = job.handle_signal()
    try:
        job.open(warm_up)
        yield job
        job.leave_loop()
    finally:
        job.close()
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
    if job.stopping:
        raise SystemExit(STOPPED)


class Job:
    """This process's part of the job."""

    def __init__(self, state: Any, contract: Contract) -> None:
        self.contract = contract
        self.group = Group(contract)
        self.keeper = Keeper(state)
        self.statistics = Statistics(self.keeper.parts)
        self.groups: Groups | None = None
        """The process groups of PyTorch, where the state has tensors."""
        self.path: Path | None = None
        """Way in which tensors are summed in the present view; None if NumPy does all."""
        self.progress = Progress(contract.progress)
        self.stopping = False
        """Whether the job stops early, because its workers were asked to (SIGTERM); its state has been saved."""
        self.left = False
        """Whether the others continue without this member, as announced."""
        self.resumed_from: int | None = None
        """The step that a checkpoint continued from, if any."""
        self.began_at: float | None = None
        """Time at which the last step began."""
        self.sums_per_step = 0
        """Number of sums of the last complete step; 0 before it."""
        self._stop_requested = threading.Event()
        self._plan: Chunks | None = None
        self._make: Callable[[int, range], Any] | None = None
        self._values: dict[int, Any] = {}
        self._checkpoints = Checkpoints(contract.shared, contract.slot)
        self._save_every_s: float | None = None
        self._saved_at = time.monotonic()
        self._reported_at = 0.0
        self._requested: tuple[int | None, str] | None = None
        """Last request of this member."""
        self._waited_s = 0.0
        """Seconds that the script has waited in interrupted sums."""
        self._began = False
        self._inside: Step | None = None
        """The step that the script is in, or in which it left its loop."""

    def use_groups(self) -> None:
        """Sum tensors by process groups of PyTorch if the script has imported it and the state has tensors."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available():
            return
        from dorm.elastic.collectives import groups, pytorch  # These import PyTorch.

        devices = pytorch.devices_of(self.keeper.parts)
        if pytorch.available(devices):
            self.groups = groups.Groups(self.contract.slot, partial(pytorch.build, devices), self.group.deliver)
            self.group.use(self.groups)

    @property
    def members(self) -> tuple[int, ...]:
        """The slots of the training members."""
        return self.group.view.members if self.group.view is not None else ()

    @property
    def leads(self) -> bool:
        """Whether this member reports for the job."""
        return self.group.view is not None and self.group.view.leader == self.contract.slot

    def request_size(self, size: int | None, reason: str = "") -> None:
        """Ask the cluster for no more than `size` containers, with a reason for users; None withdraws the request.

        It is a hint, within the app's n_min and n_max, and holds until the job asks again.  Only the leading member's request
        counts, so all members may call this.  Outside a cluster it does nothing.  Raises ContractError."""
        if size is not None and size < 1:
            text = f"size is {size}; a job has at least 1 container, and None asks for no limit"
            raise ContractError(text, code="elastic.contract.size")
        if self.leads and self._requested != (size, reason):
            self._requested = size, reason
            self.progress.append(request_size=size, reason=reason)

    def steps(
        self,
        data: int | Sized,
        *,
        batch: int,
        epochs: int = 1,
        chunks: int | None = None,
        seed: int = 0,
        values: Callable[[int, range], Any] | None = None,
        save_every: float | None = None,
        least: int | None = None,
        drop_last: bool = False,
    ) -> Iterator[Step]:
        """Yield the steps of the job, in which each sample of `data` is used exactly once an epoch.

        `data` is a data set or its length, `batch` the number of samples of one step over all members, and `chunks` the number
        of parts of the data, which bounds the number of members (default: 32, or as many as there are
        samples).

        `least` is the fewest samples of a member that takes part in a step: 1, or 2 if the state has BatchNorm layers.  In a
        step with too few samples for all members, fewer take part (`Step.indices`), and the last step of an epoch takes what
        would not suffice for one.  With `values` it is 0, because a chunk's values stay with their owner.  With `drop_last` an
        epoch leaves out the samples that fill no batch.

        `values(chunk, samples)` creates the values of a chunk that move with it, such as dual variables: plain values and
        arrays, which are in `Step.values`.  `save_every` is the time in seconds between two checkpoints of the job, if workers
        share a folder; in any case, it saves when it is asked to stop.  Raises ContractError.
        """
        if self._plan is not None:
            raise ContractError(
                "steps() has been called before; a job has one loop", code="elastic.contract.steps_twice"
            )
        samples = data if isinstance(data, int) else len(data)
        count = chunks if chunks is not None else max(1, min(DEFAULT_CHUNKS, samples))
        share = self._least(least, min(batch, samples), valued=values is not None)
        self._plan = Chunks(samples, batch, count, seed, share, drop_last)
        self._make, self._save_every_s = values, save_every
        per_epoch = self._plan.steps_per_epoch
        saved = self._restore() if self.group.may_found else None
        plan = v.Plan(count, per_epoch, valued=values is not None)
        first = saved.step if saved is not None else 0
        self.group.start(plan, first, saved.used if saved is not None else ledger.EMPTY)
        return self._steps(first, epochs * per_epoch)

    def _least(self, wanted: int | None, batch: int, *, valued: bool) -> int:
        """Return the least share of a member.  Raises ContractError if shares could be smaller than they may be."""
        norm, why = self.statistics.batch_norm, ""
        if valued and wanted:
            why = f"least is {wanted}, and chunks with values stay with their owners, so shares may be empty; use one of them"
        elif norm and (valued or wanted == 0):
            why = "BatchNorm layers need 2 samples, and shares may be empty with values or least=0; use neither, or GroupNorm"
        elif norm and wanted is None and batch < 2:
            why = f"BatchNorm layers need 2 samples, and a batch has {batch}; use a larger batch, or GroupNorm"
        if why:
            raise ContractError(why, code="elastic.contract.least")
        if wanted is not None:
            return wanted
        return 0 if valued else 2 if norm else 1

    def _steps(self, first: int, total: int) -> Iterator[Step]:
        step: Step | None = None
        at = first
        while not (step is not None and at >= total):
            begin = self._begin(at)
            if begin is None or begin.step >= total:
                break
            at = begin.step
            repeated = step is not None and step.number == at
            step = Step(self, begin, self._chunks_plan, self._values, repeated=repeated)
            self._inside = step
            yield step
            self._inside = None
            step.finish()
            at = at if step.interrupted else at + 1
        if not self.left:
            self.group.finish(at)
        self._report_facts(0.0)

    @property
    def _chunks_plan(self) -> Chunks:
        assert self._plan is not None
        return self._plan

    # Between two steps.

    def _begin(self, at: int) -> v.Begin | None:
        began = time.monotonic()
        packed = {chunk: pack(value) for chunk, value in self._values.items()} if self._make is not None else {}
        answer = self.group.boundary(at, packed, lambda copy: self.keeper.gather(copy=copy), self._stop_requested)
        if isinstance(answer, v.Left):
            self.left = True
            return None
        if isinstance(answer, v.Stop):
            self.stopping = True
            self._save(answer.step)
            return None
        if answer.state is not None:
            self.keeper.load(answer.state)
        self._take_values(answer)
        self._follow()
        waited, self._waited_s = self._waited_s + time.monotonic() - began, 0.0
        self._report_facts(waited)
        if self._due():  # After the boundary, which counts the samples of the previous step.
            self._save(answer.step)
        return answer

    def _follow(self) -> None:
        """Use the process group of the present view, which is built by now unless a member has died."""
        view = self.group.view
        if self.groups is None or view is None or (self.path is not None and self.path.number == view.number):
            return
        from dorm.elastic.collectives.path import Path

        self.groups.retarget(*self.group.targets)
        self.path = Path(self.groups, view, self.group.disturbed)

    def _take_values(self, begin: v.Begin) -> None:
        if self._make is None:
            return
        for chunk in begin.gone:
            self._values.pop(chunk, None)
        for chunk, value in begin.values.items():
            if chunk not in self._values:
                self._values[chunk] = unpack(*value)
        new = [chunk for chunk in begin.chunks if chunk not in self._values]
        saved = self._checkpoints.chunks_of(self._saved_step(begin)) if new and not self._began else None
        for chunk in new:
            known = saved(chunk) if saved is not None else None
            samples = self._chunks_plan.samples_of(chunk)
            self._values[chunk] = known if known is not None else self._make(chunk, samples)
        self._began = True

    def _saved_step(self, begin: v.Begin) -> int | None:
        """Return the step of the checkpoint that the job continues from, if it begins with this step.  A membership may be
        announced before the first one has begun, so its number is no evidence."""
        return begin.step if begin.step > 0 and begin.step == self.group.founded_at else None

    def _due(self) -> bool:
        every = self._save_every_s
        return every is not None and self.leads and self._make is None and time.monotonic() - self._saved_at >= every

    def _save(self, step: int) -> None:
        """Save the state before `step`; every member saves its chunks, the leader everything else, and reports it."""
        self._saved_at = time.monotonic()
        self._checkpoints.save_chunks(step, {chunk: pack(value) for chunk, value in self._values.items()})
        if self.leads and self._checkpoints.save(Saved(step, self.group.used, self.keeper.gather(copy=False))):
            self.progress.append(checkpoint=step)

    def _restore(self) -> Saved | None:
        saved = self._checkpoints.newest()
        if saved is not None:
            self.keeper.load(saved.state)
            self.resumed_from = saved.step
        return saved

    def _report_facts(self, waited_s: float) -> None:
        for fact in self.group.facts():
            if isinstance(fact, v.EpochDone):
                self.progress.append(
                    epoch=fact.epoch, step=fact.step + 1, samples=fact.used.samples, ledger=fact.used.digest
                )
                continue
            line: dict[str, Any] = {
                "membership": fact.view.membership,
                "step": fact.step,
                "members": list(fact.view.members),
                "cause": fact.cause,
                "pause_s": round(waited_s, 6),
            }
            if self.path is not None and self.groups is not None:
                line.update(sums=self.path.transport, group_s=round(self.groups.seconds(fact.view.members), 6))
            if fact.cause == "death":
                line.update(lost=list(fact.lost), repeated=fact.repeated)
            else:
                measured = {"warm_up_s": fact.warm_up_s, "barrier_s": fact.barrier_s}
                line.update({name: round(value, 6) for name, value in measured.items()}, bytes_moved=fact.bytes_moved)
            self.progress.append(**line)

    # What a step asks.

    def contribute(self, sums: Any, used: ledger.Entry, seconds: float) -> Arrays | None:
        """Return the sum over all members, None if the step has to be repeated."""
        began = time.monotonic()
        answer = self.group.contribute(sums, used, seconds, stop=self._stop_requested.is_set())
        if isinstance(answer, v.Summed):
            return answer.arrays
        self._waited_s += time.monotonic() - began
        return None

    def report(self, step: int, **figures: float) -> None:
        now = time.monotonic()
        if self.leads and now - self._reported_at >= _REPORT_S:
            self._reported_at = now
            self.progress.append(step=step, **{name: float(value) for name, value in figures.items()})

    # From start to end.

    def open(self, warm_up: Callable[[], object] | None) -> None:
        self.group.open()
        state = self.group.join(self._stop_requested)
        if state is None:
            return
        began = time.monotonic()
        self.keeper.load((state.structure, state.payload))
        if warm_up is not None:
            warm_up()
        if self.groups is not None:
            self.groups.settle(self.group.settled)
        self.group.warmed_up(time.monotonic() - began)

    def leave_loop(self) -> None:
        """The script is done.  If it left its loop in a complete step, like all members, some of them slightly earlier, inform
        its peers: one that still waits for the step's last sum would take it for dead."""
        if self._inside is not None and self._inside.complete:
            self.group.finish(self._inside.number + 1)
            self._report_facts(0.0)

    def close(self) -> None:
        if self.left:
            time.sleep(_LINGER_S)
        self.group.close()
        if self.groups is not None:
            self.groups.close()

    def handle_signal(self) -> Any:
        """Let SIGTERM ask all members to stop after the same step; return the previous handler."""
        if threading.current_thread() is not threading.main_thread():
            return None
        return signal.signal(signal.SIGTERM, lambda *_: self._stop_requested.set())

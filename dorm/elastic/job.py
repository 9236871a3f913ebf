"""What a training script uses: `join`, `Job.steps`, and the steps.

The script's loop is ordinary Python; everything that can change (members, chunks, state) changes only between two steps.
If a member dies inside a step, the sum of that step returns what the caller gave, the step's effect on the state is undone
before the next one, and the same step comes again.  The script need not know, except for what it does beside the state.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dorm.elastic import ledger
from dorm.elastic.checkpoints import Checkpoints, Saved
from dorm.elastic.chunks import DEFAULT_CHUNKS, Chunks
from dorm.elastic.contract import Contract, Progress
from dorm.elastic.errors import ContractError
from dorm.elastic.nested import as_arrays, into, like, real_tensors
from dorm.elastic.network.group import Group
from dorm.elastic.protocol import views as v
from dorm.elastic.state import Keeper
from dorm.elastic.summing import partial_sums
from dorm.elastic.values import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

    import numpy.typing as npt

    from dorm.elastic.collectives.groups import Groups
    from dorm.elastic.collectives.path import Path

    Arrays = list[npt.NDArray[Any]]

__all__ = ["Job", "Step", "join"]

_STOPPED = 128 + signal.SIGTERM
_REPORT_S = 0.5
"""Seconds between two reports of progress."""


@contextmanager
def join(
    state: Any = None,
    *,
    warm_up: Callable[[], object] | None = None,
    collectives: str = "auto",
    contract: Contract | None = None,
) -> Iterator[Job]:
    """Join the job that this process was started for, alone if it was started by hand.

    `state` is what every member holds alike: arrays, objects with `state_dict` and `load_state_dict` (models, optimizers),
    or a dictionary of such.  It is changed in place.  A newcomer receives it from a member; before that, `warm_up` is
    called with a recent state loaded, for whatever takes time once (compiling, reading data), while the others train.

    `collectives` says what carries the sums of tensors: "auto" is a process group of PyTorch (gloo or NCCL, by the device of
    the tensors in `state`) where all members can build it, else TCP; "tcp" is TCP alone.

    Where the job was asked to stop (SIGTERM), the process ends with 143 after the block: 0 would mean that it is complete.

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
        raise SystemExit(_STOPPED)


class Job:
    """This process's part of the job."""

    def __init__(self, state: Any, contract: Contract) -> None:
        self.contract = contract
        self.group = Group(contract)
        self.keeper = Keeper(state)
        self.groups: Groups | None = None
        """The process groups of PyTorch, where the state has tensors."""
        self.path: Path | None = None
        """How tensors are summed in the present view; None where NumPy does all."""
        self.progress = Progress(contract.progress)
        self.stopping = False
        """Whether the job stops early, because its workers were asked to (SIGTERM); its state has been saved."""
        self.left = False
        """Whether the others continue without this member, as announced."""
        self.resumed_from: int | None = None
        """The step that a checkpoint continued from, if any."""
        self.began_at: float | None = None
        """When the last step began."""
        self.sums_per_step = 0
        """How many sums the last complete step had; 0 before it."""
        self._asked = threading.Event()
        self._plan: Chunks | None = None
        self._make: Callable[[int, range], Any] | None = None
        self._values: dict[int, Any] = {}
        self._checkpoints = Checkpoints(contract.shared, contract.slot)
        self._save_every_s: float | None = None
        self._saved_at = time.monotonic()
        self._reported_at = 0.0
        self._requested: tuple[int | None, str] | None = None
        """What this member asked for last."""
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
        """The slots of those who train."""
        return self.group.view.members if self.group.view is not None else ()

    @property
    def leads(self) -> bool:
        """Whether this member is the one that reports."""
        return self.group.view is not None and self.group.view.leader == self.contract.slot

    def request_size(self, size: int | None, reason: str = "") -> None:
        """Ask the cluster for no more than `size` containers, with a reason for people; None withdraws that.

        It is a hint, within the app's n_min and n_max, and holds until the job asks again.  Only the leading member's counts,
        so all members may call this alike.  Outside a cluster it does nothing.  Raises ContractError."""
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
    ) -> Iterator[Step]:
        """Yield the steps of the job, in which each sample of `data` is used exactly once an epoch.

        `data` is a data set or its length, `batch` the number of samples of one step over all members, and `chunks` into
        how many parts the data is divided, which bounds the number of members (default: 32, or as many as there are
        samples).

        `values(chunk, samples)` makes what belongs to a chunk and moves with it, such as dual variables: plain values and
        arrays, to be found in `Step.values`.  `save_every` is the time in seconds between two checkpoints of the job, where
        workers share a folder; it saves when it is asked to stop in any case.
        """
        if self._plan is not None:
            raise ContractError(
                "steps() has been called before; a job has one loop", code="elastic.contract.steps_twice"
            )
        samples = data if isinstance(data, int) else len(data)
        count = chunks if chunks is not None else max(1, min(DEFAULT_CHUNKS, samples))
        self._plan = Chunks(samples, batch, count, seed)
        self._make, self._save_every_s = values, save_every
        per_epoch = self._plan.steps_per_epoch
        saved = self._restore() if self.group.may_found else None
        plan = v.Plan(count, per_epoch, valued=values is not None)
        first = saved.step if saved is not None else 0
        self.group.start(plan, first, saved.used if saved is not None else ledger.EMPTY)
        return self._steps(first, epochs * per_epoch)

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
        asked = time.monotonic()
        packed = {chunk: pack(value) for chunk, value in self._values.items()} if self._make is not None else {}
        answer = self.group.boundary(at, packed, lambda copy: self.keeper.gather(copy=copy))
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
        waited, self._waited_s = self._waited_s + time.monotonic() - asked, 0.0
        self._report_facts(waited)
        if self._due():  # After the boundary, which counts the samples of the step before it.
            self._save(answer.step)
        return answer

    def _follow(self) -> None:
        """Take up the process group of the present view, which has been built by now unless a member has died."""
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
        """Return the step of the checkpoint that the job continues from, if it begins with this step."""
        view = self.group.view
        return begin.step if view is not None and view.membership == 1 and begin.step > 0 else None

    def _due(self) -> bool:
        every = self._save_every_s
        return every is not None and self.leads and self._make is None and time.monotonic() - self._saved_at >= every

    def _save(self, step: int) -> None:
        """Save the state before `step`; every member saves its chunks, the leader all else, and says so."""
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
        asked = time.monotonic()
        answer = self.group.contribute(sums, used, seconds, stop=self._asked.is_set())
        if isinstance(answer, v.Summed):
            return answer.arrays
        self._waited_s += time.monotonic() - asked
        return None

    def report(self, step: int, **figures: float) -> None:
        now = time.monotonic()
        if self.leads and now - self._reported_at >= _REPORT_S:
            self._reported_at = now
            self.progress.append(step=step, **{name: float(value) for name, value in figures.items()})

    # From start to end.

    def open(self, warm_up: Callable[[], object] | None) -> None:
        self.group.open()
        state = self.group.join()
        if state is None:
            return
        asked = time.monotonic()
        self.keeper.load((state.structure, state.payload))
        if warm_up is not None:
            warm_up()
        if self.groups is not None:
            self.groups.settle(self.group.settled)
        self.group.warmed_up(time.monotonic() - asked)

    def leave_loop(self) -> None:
        """The script is done.  If it left its loop in a complete step, as all do in that step, some of them a little earlier,
        its peers are told so: one that still waits for the step's last sum would take it for dead."""
        if self._inside is not None and self._inside.complete:
            self.group.finish(self._inside.number + 1)
            self._report_facts(0.0)

    def close(self) -> None:
        self.group.close()
        if self.groups is not None:
            self.groups.close()

    def handle_signal(self) -> Any:
        """Let SIGTERM ask all members to stop after the same step; return what handled it before."""
        if threading.current_thread() is not threading.main_thread():
            return None
        return signal.signal(signal.SIGTERM, lambda *_: self._asked.set())


class Step:
    """One step: which samples this member computes, and how the members' results become one."""

    def __init__(self, job: Job, begin: v.Begin, plan: Chunks, values: dict[int, Any], *, repeated: bool) -> None:
        self.number = begin.step
        self.epoch = plan.epoch_of(begin.step)
        self.repeated = repeated
        """Whether this step was begun before, and interrupted by a death."""
        self.chunks = tuple(begin.chunks)
        """This member's chunks."""
        self.values = values
        """What belongs to these chunks, by chunk; changes here count once the step is complete."""
        self.lost = begin.lost
        """Chunks of the whole job whose values died with their owner, since the last step: they were made again."""
        self.interrupted = False
        self._job = job
        self._plan = plan
        self._parts = {chunk: plan.part(begin.step, chunk) for chunk in begin.chunks}
        self._undo: tuple[v.Packed, dict[int, v.Packed]] | None = None
        self._sums = 0
        self._used = ledger.entry_of([self.indices])
        self._began = time.monotonic()
        self._period_s = None if job.began_at is None else self._began - job.began_at
        """Seconds since the step before began, with all that the script did in it."""
        job.began_at = self._began

    @property
    def parts(self) -> dict[int, npt.NDArray[np.int64]]:
        """The samples of this member, by chunk."""
        return dict(self._parts)

    @property
    def chunk_samples(self) -> dict[int, range]:
        """All samples of this member's chunks, whether they are part of this step or not."""
        return {chunk: self._plan.samples_of(chunk) for chunk in self.chunks}

    @property
    def indices(self) -> npt.NDArray[np.int64]:
        """The samples of this member: shape (k,), k >= 0."""
        return np.concatenate(list(self._parts.values())) if self._parts else np.zeros(0, dtype=np.int64)

    @property
    def batch(self) -> int:
        """How many samples all members together use in this step."""
        return min(self._plan.batch, self._plan.samples - self._plan.batch * (self.number % self._plan.steps_per_epoch))

    def sum_over(self, part: Callable[[npt.NDArray[np.int64]], Any]) -> Any:
        """Return the sum of `part(samples)` over all chunks: an array, a number, or a list of them.

        `part` is called once for each of this member's chunks, also with no samples.  The order of summation is fixed by
        the chunks, so the result has the same bits however many members there are.
        """
        if not self.chunks:
            text = f"this member has none of the {self._plan.count} chunks; steps() needs a chunk for each member"
            raise ContractError(text, code="elastic.contract.no_chunk")
        found: dict[int, Arrays] = {}
        shape: list[Any] = []

        def of(chunk: int) -> Arrays:
            if chunk not in found:
                value = part(self._parts[chunk])
                shape[:] = [value]
                found[chunk] = as_arrays(value)
            return found[chunk]

        sums = partial_sums(self._plan.count, self.chunks, of)
        arrays = self._summed(sums, found[self.chunks[0]])
        return like(shape[0], arrays)

    def allreduce(self, values: Any, *, op: str = "mean") -> Any:
        """Combine the members' values (an array or tensor, a number, or a list or dictionary of them), in place where that is
        possible, and return them.

        "mean" weighs each member by its number of samples: the mean over `indices` becomes the mean over the whole batch.
        "sum" adds.  The result is the same on every member, but its rounding depends on how many there are (unlike
        `sum_over`).  Tensors of floating-point numbers are summed by a process group of PyTorch where there is one.
        """
        if op not in ("mean", "sum"):
            raise ContractError(f"op is {op!r}; it is 'mean' or 'sum'", code="elastic.contract.op")
        weight = len(self.indices) if op == "mean" else 1
        path, tensors = self._job.path, real_tensors(values)
        if path is not None and tensors is not None:
            self._sum_tensors(path, tensors, weight / self.batch if op == "mean" else 1.0)
            return values
        arrays = as_arrays(values)
        used = [np.multiply(array, weight) if weight else np.zeros_like(array) for array in arrays]
        total = self._summed({(-1, -1): used}, arrays)
        if op == "mean" and not self.interrupted:
            total = [np.divide(array, self.batch).astype(array.dtype, copy=False) for array in total]
        return into(values, total)

    @property
    def transport(self) -> str:
        """What carries sums of tensors in this step: "gloo", "nccl" or "tcp"; "" where there is nothing to carry."""
        return self._job.path.transport if self._job.path is not None else ""

    def report(self, **figures: float) -> None:
        """Report figures of this step, such as `loss`: the leading member's appear in the log, at a limited rate."""
        if not self.interrupted:
            pace = {} if self._period_s is None else {"samples_per_s": self.batch / max(self._period_s, 1e-9)}
            self._job.report(self.number + 1, **{**pace, **figures})

    @property
    def complete(self) -> bool:
        """Whether all sums of this step are known, as far as the steps before tell how many it has."""
        return self._sums >= max(1, self._job.sums_per_step) and not self.interrupted

    def finish(self) -> None:
        """The script is done with the step."""
        if not self._sums:
            self._summed({(-1, -1): []}, [])
        if not self.interrupted:
            self._job.sums_per_step = self._sums
        if self.interrupted and self._undo is not None:
            state, values = self._undo
            self._job.keeper.load(state)
            for chunk, value in values.items():
                self.values[chunk] = unpack(*value)

    def _summed(self, sums: Any, own: Arrays) -> Arrays:
        """Return the sum; what this member gave, if the step has to be repeated."""
        if self.interrupted:
            return own
        self._begin_sum()
        arrays = self._contribute(sums, time.monotonic() - self._began)
        return own if arrays is None else arrays

    def _sum_tensors(self, path: Path, tensors: list[Any], scale: float) -> None:
        """Replace the tensors by their sum, unless the step has to be repeated."""
        if self.interrupted:
            return
        self._begin_sum()
        computed_s = time.monotonic() - self._began  # Without the time that the group takes.
        path.sum(tensors, scale, lambda arrays: self._contribute({(-1, -1): arrays}, computed_s))

    def _begin_sum(self) -> None:
        if self._sums == 0 and self._job.sums_per_step != 1:
            self._keep()  # After the first sum the script may change its state, and a later one may be interrupted.
        self._sums += 1

    def _contribute(self, sums: Any, seconds: float) -> Arrays | None:
        arrays = self._job.contribute(sums, self._used, seconds)
        if arrays is None:
            if self._undo is None:
                self._keep()  # The only sum so far: the state is still that before the step.
            self.interrupted = True
        return arrays

    def _keep(self) -> None:
        packed = self._job.keeper.gather(copy=True)
        values = {}
        for chunk, value in self.values.items():
            structure, arrays = pack(value)
            values[chunk] = (structure, [array.copy() for array in arrays])
        self._undo = (packed, values)

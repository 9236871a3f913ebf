"""One step of the loop: which samples a member computes, and how the results of all members are combined."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dorm.elastic import ledger
from dorm.elastic.errors import ContractError
from dorm.elastic.nested import as_arrays, into, like, real_tensors
from dorm.elastic.ownership import computed_by, owned_by
from dorm.elastic.summing import partial_sums
from dorm.elastic.values import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from dorm.elastic.chunks import Chunks
    from dorm.elastic.collectives.path import Path
    from dorm.elastic.contract import Contract
    from dorm.elastic.protocol import views as v
    from dorm.elastic.state import Keeper
    from dorm.elastic.statistics import Statistics

    Arrays = list[npt.NDArray[Any]]


class Loop(Protocol):
    """What a step needs from its job."""

    contract: Contract
    keeper: Keeper
    statistics: Statistics
    path: Path | None
    """Way in which tensors are summed in the present view; None if NumPy does all."""
    began_at: float | None
    """Time at which the last step began."""
    sums_per_step: int
    """Number of sums of the last complete step; 0 before it."""

    def contribute(self, sums: Any, used: ledger.Entry, seconds: float) -> Arrays | None:
        """Return the sum over all members, None if the step has to be repeated."""

    def report(self, step: int, **figures: float) -> None:
        """Report figures to the log, at a limited rate."""


class Step:
    """One step: which samples this member computes, and how the members' results are combined."""

    def __init__(self, job: Loop, begin: v.Begin, plan: Chunks, values: dict[int, Any], *, repeated: bool) -> None:
        self.number = begin.step
        self.epoch = plan.epoch_of(begin.step)
        self.repeated = repeated
        """Whether this step was begun before, and interrupted by a death."""
        self.chunks = tuple(begin.chunks)
        """This member's chunks."""
        self.values = values
        """Values of these chunks, by chunk; changes here count once the step is complete."""
        self.lost = begin.lost
        """Chunks of the whole job whose values died with their owner, since the last step: they were made again."""
        self.interrupted = False
        self._job = job
        self._plan = plan
        given, borrowed = self._shares(begin)
        self._parts = {chunk: plan.part(begin.step, chunk) for chunk in given}
        self._borrowed = {chunk: plan.part(begin.step, chunk) for chunk in borrowed}
        self.share = sum(map(len, self._parts.values()))
        """Number of samples of this member that count: `len(indices)`, or 0 if the samples in `indices` are those of
        another."""
        self._undo: tuple[v.Packed, dict[int, v.Packed]] | None = None
        self._statistics = job.statistics.kept()
        """Those that the step begins with."""
        self._averaged = False
        """Whether the members have averaged them since they were changed."""
        self._sums = 0
        left_out = [plan.left_out(begin.step, chunk) for chunk in given] if plan.drop_last else []
        self._used = ledger.entry_of([*self._parts.values(), *left_out])
        self._began = time.monotonic()
        self._period_s = None if job.began_at is None else self._began - job.began_at
        """Seconds since the step before began, with all that the script did in it."""
        job.began_at = self._began

    def _shares(self, begin: v.Begin) -> tuple[list[int], list[int]]:
        """Return the chunks of which this member computes the part, and, if it has no sample, those of another member whose
        samples it computes as well."""
        plan, slot = self._plan, self._job.contract.slot
        if not plan.least:
            return list(begin.chunks), []
        sizes = plan.sizes(begin.step)
        given = computed_by(sizes, begin.owners, begin.members, plan.least)
        own, borrowed, most = owned_by(given, slot), list[int](), 0
        if not any(sizes[chunk] for chunk in own):
            lender = next(owner for owner, size in zip(given, sizes) if size)
            for chunk in owned_by(given, lender):
                if sizes[chunk] and most < plan.least:
                    borrowed.append(chunk)
                    most += sizes[chunk]
        return own, borrowed

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
        """The samples to compute: shape (k,).

        In a step with fewer samples than all members can have their least share of, some members have none.  They compute
        samples of another member, so that their script need not know, and add nothing to any sum (`share` is 0).  With
        `least=0` k may be 0."""
        parts = list((self._parts if self.share else self._borrowed).values())
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    @property
    def batch(self) -> int:
        """How many samples all members together use in this step."""
        return self._plan.size(self.number)

    def sum_over(self, part: Callable[[npt.NDArray[np.int64]], Any]) -> Any:
        """Return the sum of `part(samples)` over all chunks: an array, a number, or a list of them.

        `part` is called once for each of this member's chunks, even without samples.  The chunks fix the order of summation,
        so the result has the same bits for any number of members.
        """
        if not self.chunks and not self._plan.least:
            text = f"this member has none of the {self._plan.count} chunks; steps() needs a chunk for each member"
            raise ContractError(text, code="elastic.contract.no_chunk")
        values: dict[int, Arrays] = {}
        shape: list[Any] = []

        def of(chunk: int) -> Arrays:
            if chunk not in values:
                value = part(self._parts[chunk])
                shape[:] = [value]
                values[chunk] = as_arrays(value)
            return values[chunk]

        sums = partial_sums(self._plan.count, self._parts, of)
        if not values:  # Others compute all parts, and this member needs to know what a part looks like.
            shape[:] = [part(np.zeros(0, dtype=np.int64))]
        arrays = self._summed(sums, values[min(values)] if values else as_arrays(shape[0]))
        return like(shape[0], arrays)

    def allreduce(self, values: Any, *, op: str = "mean") -> Any:
        """Combine the members' values (an array or tensor, a number, or a list or dictionary of them), in place if that is
        possible, and return them.

        "mean" weighs each member by its number of samples: the mean over `indices` becomes the mean over the whole batch.
        "sum" adds.  A member without samples adds nothing.  The result is the same on every member, but its rounding depends
        on their number (unlike `sum_over`).  Tensors of floating-point numbers are summed by a process group of PyTorch if
        there is one.  With "mean", the members also average the running statistics of BatchNorm layers in `state`.
        """
        if op not in ("mean", "sum"):
            raise ContractError(f"op is {op!r}; it is 'mean' or 'sum'", code="elastic.contract.op")
        weight = self.share if op == "mean" or (self._plan.least and not self.share) else 1
        statistics = self._job.statistics.averaged() if op == "mean" else []
        self._averaged |= op == "mean"
        path, tensors = self._job.path, real_tensors([values, statistics])
        if path is not None and tensors is not None:
            self._sum_tensors(path, tensors, weight / self.batch if op == "mean" else float(weight))
            return values
        arrays = as_arrays([values, statistics])
        used = [np.multiply(array, weight) if weight else np.zeros_like(array) for array in arrays]
        total = self._summed({(-1, -1): used}, arrays)
        if op == "mean" and not self.interrupted:
            total = [np.divide(array, self.batch).astype(array.dtype, copy=False) for array in total]
        return into([values, statistics], total)[0]

    @property
    def transport(self) -> str:
        """What carries sums of tensors in this step: "gloo", "nccl" or "tcp"; "" if there is nothing to carry."""
        return self._job.path.transport if self._job.path is not None else ""

    def report(self, **figures: float) -> None:
        """Report figures of this step, such as `loss`: the leading member's appear in the log, at a limited rate."""
        if not self.interrupted:
            if not len(self.indices):  # A mean over no samples says nothing.
                figures = {name: value for name, value in figures.items() if value == value}
            pace = {} if self._period_s is None else {"samples_per_s": self.batch / max(self._period_s, 1e-9)}
            self._job.report(self.number + 1, **{**pace, **figures})

    @property
    def complete(self) -> bool:
        """Whether all sums of this step are known, if it has as many as the previous steps."""
        return self._sums >= max(1, self._job.sums_per_step) and not self.interrupted

    def finish(self) -> None:
        """The script is done with the step."""
        if not self._sums:
            self._summed({(-1, -1): []}, [])
        if not self.interrupted:
            self._job.sums_per_step = self._sums
            if not self._averaged and self._job.statistics.changed(self._statistics):
                text = (
                    "the statistics of BatchNorm layers differ between workers, because no step.allreduce with op='mean' "
                    "has averaged them; average the gradients with it, or put the layers into eval mode"
                )
                raise ContractError(text, code="elastic.contract.batch_norm")
        if self.interrupted and self._undo is not None:
            state, values = self._undo
            self._job.keeper.load(state)
            self._job.statistics.restore(self._statistics)
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

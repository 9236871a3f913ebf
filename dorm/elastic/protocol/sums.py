"""Steps and their sums: the members' contributions, the leader's sum, and the ledger of the samples used.

A sum completes only with a contribution from every member of the view.  A step's samples count once the script has finished
the step, so a repeated step counts once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dorm.elastic.errors import ContractError
from dorm.elastic.ledger import EMPTY, Entry
from dorm.elastic.protocol import messages as m
from dorm.elastic.protocol import views as v
from dorm.elastic.protocol.changes import next_members
from dorm.elastic.summing import combine, in_order

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from dorm.elastic.protocol.known import Known

    Arrays = list[npt.NDArray[Any]]

__all__ = ["Sums"]

_NEWEST_RATE = 0.3
"""Weight of the newest measurement in a member's rate."""


class Sums:
    """One member's steps and sums, and the leader's addition of the members' contributions."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._contribution: m.Contribution | None = None
        """This member's part of the next sum, until the result is known: a new view may need it again."""
        self._last: m.Result | None = None
        """The last result, for members that miss it after a death."""
        self._pending = EMPTY
        """The samples of the step in flight."""
        self.epoch_done: v.EpochDone | None = None
        """The last complete epoch: a leader may have died before it reported it."""

    def complete(self, step: int) -> None:
        """The script has finished a step: its samples count."""
        known = self._known
        assert known.plan is not None
        known.used, self._pending = known.used + self._pending, EMPTY
        if (step + 1) % known.plan.steps_per_epoch == 0:
            self.epoch_done = v.EpochDone(step // known.plan.steps_per_epoch, step, known.used)
            if known.view is not None and known.view.leader == known.slot:
                known.facts.append(self.epoch_done)
            known.used = EMPTY

    def report_last(self) -> None:
        """The script ends: every member reports an epoch that ended with its last step, as the leader may have died in it."""
        known, done = self._known, self.epoch_done
        if done is not None and done.step == known.step - 1 and done not in known.facts:
            known.facts.append(done)

    def contribute(self, sums: Mapping[tuple[int, int], Arrays], used: Entry, seconds: float, *, stop: bool) -> None:
        """Take the script's part of the next sum and send it to the leader."""
        known = self._known
        self._contribution = m.Contribution(
            view=0,  # `give` sets it: the view may change before the sum completes.
            payload=[array for arrays in sums.values() for array in arrays],
            step=known.step,
            round=known.round,
            nodes=[[low, high, len(arrays)] for (low, high), arrays in sums.items()],
            used=[used.samples, *used.lanes],
            seconds=seconds,
            stop=stop,
        )
        self.give()

    def give(self) -> None:
        """Send this member's part of the sum to the leader of the present view, unless the step has to be repeated."""
        known = self._known
        if known.recovering or self._contribution is None or known.view is None:
            return
        if known.broken:
            self._pending, self._contribution = EMPTY, None
            known.reply(v.Interrupted())
            return
        self._contribution.view = known.view.number
        if known.view.leader == known.slot:
            self.gather(known.slot, self._contribution)
        else:
            known.send(known.view.leader, self._contribution)

    def gather(self, sender: int, part: m.Contribution) -> None:
        """The leader adds up once every member has given its part.  Raises ContractError if the parts do not match."""
        known, view = self._known, self._known.view
        assert view is not None
        if sender not in view.members:
            return
        known.contributions[sender] = part
        if set(known.contributions) != set(view.members) or known.recovering:
            return  # A survivor's report stays true until the view of the survivors is known.
        parts, known.contributions = [known.contributions[slot] for slot in view.members], {}
        if len({(part.step, part.round) for part in parts}) > 1:
            given = zip(view.members, parts)
            places = ", ".join(f"slot {slot}: step {part.step}, sum {part.round}" for slot, part in given)
            text = f"the members disagree about the next sum ({places}); each must call allreduce equally often"
            raise ContractError(text, code="elastic.contract.sums_differ")
        for slot, contribution in zip(view.members, parts):
            self._measure(slot, contribution)
        used = [sum(column) for column in zip(*(part.used for part in parts))]
        result = m.Result(
            view.number,
            payload=self._total(parts),
            step=parts[0].step,
            round=parts[0].round,
            used=[used[0], *(lane % 2**64 for lane in used[1:])],
            barrier=next_members(known) is not None,
            stop=any(part.stop for part in parts),
        )
        for slot in view.members:
            if slot != known.slot:
                known.send(slot, result)
        self.take(result)

    def take(self, result: m.Result) -> None:
        """Answer the script with the sum that it waits for.  Any other sum is a repeat that it already has."""
        known = self._known
        if known.waiting != "sum" or (result.step, result.round) != (known.step, known.round) or known.recovering:
            return  # During a recovery, the survivor that has it sends it again.
        self._last, self._contribution = result, None
        known.round += 1
        self._pending = Entry(result.used[0], tuple(result.used[1:]))
        known.barrier = known.barrier or result.barrier
        known.stop = known.stop or result.stop
        known.reply(v.Summed(result.payload))

    def pass_on(self, recover: m.Recover) -> None:
        """Send the last result to the survivors that miss it, if that is this member's task.

        A barrier that it may have announced was the dead leader's: members that know of it do not wait there either, and a
        member that did would wait for others that are in their next step."""
        if self._known.slot == recover.holder and self._last is not None:
            for slot in recover.behind:
                self._known.send(slot, m.Result(**{**vars(self._last), "view": recover.view, "barrier": False}))

    def resume(self, recover: m.Recover) -> None:
        """Contribute again in the view of the survivors, unless the result of that sum is on its way."""
        if self._known.slot not in recover.behind and self._known.waiting == "sum":
            self.give()

    def _total(self, parts: Sequence[m.Contribution]) -> Arrays:
        assert self._known.plan is not None
        sums: dict[tuple[int, int], Arrays] = {}
        if any([low, high] == [-1, -1] for part in parts for low, high, _ in part.nodes):
            return in_order([part.payload for part in parts])
        for part in parts:
            rest = iter(part.payload)
            for low, high, count in part.nodes:
                sums[low, high] = [next(rest) for _ in range(count)]
        if not any(sums.values()):
            return []
        return combine(self._known.plan.chunks, sums)

    def _measure(self, slot: int, part: m.Contribution) -> None:
        """Learn how fast a member computes, from the first sum of a step."""
        if part.round == 0 and part.seconds > 0 and part.used[0] > 0:
            rates, rate = self._known.rates, part.used[0] / part.seconds
            known = rates.get(slot)
            rates[slot] = rate if known is None else (1 - _NEWEST_RATE) * known + _NEWEST_RATE * rate

"""What a thousand readers cost the master: its rounds without them and next to them, turn by turn.

A round's time is the log's own: from the moment a submission is stored until the round that answers it is.  It includes the
log server, its disk, and each wait for a processor.  Each turn without readers is compared with a turn with them right before
or after it, so what drifts is in both.  The change is the mean over these pairs, `master_round_change_error_percent` its
standard error: a change of that size means nothing.

The readers stand for other machines.  What they compute here runs only where nothing else wants a processor (`SCHED_IDLE`), so
the figure is what the API does to the master: its work at the priority that `dorm up` gives it, and what it asks of the log
server.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from dorm.bench import BenchError
from dorm.bench.apart import items_of
from dorm.bench.api.callers import Lags, streams
from dorm.bench.api.load import round_times
from dorm.bench.report import figure, percentile, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dorm.bench.api.processes import Cluster
    from dorm.bench.report import Figure, Progress

TURNS = 8
"""Turns without readers, and as many with them."""


class _Turn(NamedTuple):
    """What happened in one turn."""

    rounds: list[float]
    """Time that each took, in seconds."""
    cores: dict[str, float]
    """Number of cores that each process used, on average."""
    waited: float
    """The part of the time for which the master had work and no processor."""


class Rounds(NamedTuple):
    """The master's rounds, and what readers saw next to them."""

    alone: list[_Turn]
    together: list[_Turn]
    lags: list[Lags]

    def figures(self, goals: Mapping[str, str]) -> dict[str, Figure]:
        alone, together = _all(self.alone), _all(self.together)
        lags = [second for turn in self.lags for second in turn.seconds]
        lag, change = "sse_lag_p99_s", "master_round_change_percent"
        return {
            "sse_lag_p50_s": figure(percentile(lags, 50), "s"),
            lag: figure(percentile(lags, 99), "s", goals[lag]),
            "events_fewest_of_a_reader": figure(sum(turn.fewest for turn in self.lags), "events"),
            "events_most_of_a_reader": figure(sum(turn.most for turn in self.lags), "events"),
            "streams_ended": figure(sum(turn.ended for turn in self.lags), "streams", "<= 0"),
            **spread("master_round", alone),
            **spread("master_round_with_readers", together),
            **self._change("master_round_change", partial(percentile, percent=50), goals[change]),
            **self._change("master_round_mean_change", _mean),
            **self._change("master_round_p95_change", partial(percentile, percent=95)),
            "master_waited": figure(_mean([turn.waited for turn in self.alone]), "of the time"),
            "master_waited_with_readers": figure(_mean([turn.waited for turn in self.together]), "of the time"),
            **_cores("without_readers", self.alone),
            **_cores("readers", self.together),
        }

    def _change(self, name: str, of: Callable[[list[float]], float], goal: str | None = None) -> dict[str, Figure]:
        """Return by how many percent rounds are longer with readers, and the standard error."""
        logs = [
            math.log(of(with_.rounds) / of(without.rounds))
            for without, with_ in zip(self.alone, self.together, strict=True)
            if without.rounds and with_.rounds
        ]
        if len(logs) < 2:
            raise BenchError("the master answered too few submissions", code="bench.nothing_measured")
        change = math.exp(_mean(logs))
        error = change * statistics.stdev(logs) / math.sqrt(len(logs))
        return {
            f"{name}_percent": figure((change - 1) * 100, "%", goal),
            f"{name}_error_percent": figure(error * 100, "%"),
        }


def _all(turns: list[_Turn]) -> list[float]:
    return [round_s for turn in turns for round_s in turn.rounds]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _cores(when: str, turns: list[_Turn]) -> dict[str, Figure]:
    return {
        f"{when}_cores_of_{name}": figure(_mean([turn.cores[name] for turn in turns]), "cores")
        for name in turns[0].cores
    }


async def measured_rounds(cluster: Cluster, readers: int, seconds: float, progress: Progress) -> Rounds:
    """Measure for so many seconds without readers, and as long with them.  Raises BenchError."""
    rounds, each_s = Rounds([], [], []), seconds / TURNS
    for turn in range(TURNS):
        progress(f"the master's rounds, without readers and with {readers:,}: turn {turn + 1} of {TURNS}")
        if turn % 2:  # Neither kind is always the later one.
            await _with(cluster, readers, each_s, rounds)
        await _without(cluster, each_s, rounds)
        if not turn % 2:
            await _with(cluster, readers, each_s, rounds)
    return rounds


async def _without(cluster: Cluster, seconds: float, rounds: Rounds) -> None:
    begun = await _begin(cluster)
    await asyncio.sleep(seconds)
    rounds.alone.append(await _end(cluster, begun))


async def _with(cluster: Cluster, readers: int, seconds: float, rounds: Rounds) -> None:
    reading = items_of([(streams, (cluster.api.url, readers, seconds))])
    try:
        await asyncio.to_thread(next, reading)  # All of them are open.
        begun = await _begin(cluster)
        lags = await asyncio.to_thread(next, reading)
        assert isinstance(lags, Lags)
        rounds.together.append(await _end(cluster, begun, callers_s=lags.cpu_s))
    finally:
        await asyncio.to_thread(reading.close)
    rounds.lags.append(lags)


class _Begun(NamedTuple):
    position: int
    at: float
    cpu_s: dict[str, float]
    waited_s: float


async def _begin(cluster: Cluster) -> _Begun:
    position = await cluster.connection.log.end()
    return _Begun(position, time.monotonic(), cluster.cpu_s(), cluster.master.waited_s())


async def _end(cluster: Cluster, begun: _Begun, *, callers_s: float | None = None) -> _Turn:
    took_s = time.monotonic() - begun.at
    spent = {name: used - begun.cpu_s[name] for name, used in cluster.cpu_s().items()}
    spent |= {} if callers_s is None else {"callers": callers_s}
    waited = (cluster.master.waited_s() - begun.waited_s) / took_s
    rounds = await round_times(cluster.connection, begun.position)
    return _Turn(rounds, {name: used / took_s for name, used in spent.items()}, waited)

"""The cost to encode, to decode, and to decode and fold one event, in CPU time of one core.

An event is one record of the log; a master's round counts as one, however many facts it holds.  The log is the demo's
(`demo_log`), copied often enough to spread its bodies over memory, as in a long log; each copy is folded into a state
of its own.  CPU time of the measuring thread, not wall time, so waiting for a core does not count; other processes' effects on
caches and clock rates do, so the best of several passes is reported next to the median.  Goals are compared with the best, the
closest to an undisturbed core.

`msgpack_unpack_us` is the yardstick in the same run: `msgpack.unpackb` to plain dicts, without types or checks.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgpack
import msgspec

from dorm.bench import BenchError
from dorm.bench.demo_log import demo_log
from dorm.bench.report import Figure, Report, figure, this_machine
from dorm.core.evolve import evolve
from dorm.core.state import State, digest
from events.codec import decode, encode
from events.kinds import Unknown, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dorm.bench.report import Progress
    from events.log.records import Record

GOAL = ">= 700000"


def bench_codec(*, events: int, passes: int, progress: Progress, log: Sequence[Record] | None = None) -> Report:
    """Measure about `events` records in each pass.  `log` replaces the demo's: all of it, from sequence 1.
    Raises BenchError if it holds records that this build can't read, because their cost differs."""
    machine = this_machine()
    if log is None:
        progress("writing the demo's log")
    source = "the demo's log, in virtual time" if log is None else "a given log"
    records = demo_log() if log is None else list(log)
    if not records:
        raise BenchError("the log is empty", code="log.empty")
    decoded = [decode(record) for record in records]
    mix = Counter(type(event).__name__ for event in decoded)
    if mix.keys() & {Unknown.__name__, Unreadable.__name__}:
        raise BenchError("the log holds records that this build can't read", code="log.unreadable")
    copies = [_copy(records) for _ in range(max(1, round(events / len(records))))]
    times = _measure(copies, decoded, passes, progress)
    per_event = {name: [1e6 * seconds / (len(copies) * len(records)) for seconds in times[name]] for name in times}
    return Report(
        bench="codec",
        machine=machine,
        settings={
            "log": source,
            "records": len(records),
            "bytes_per_record": round(sum(len(record.body) for record in records) / len(records), 1),
            "mix": dict(mix.most_common()),
            "events_per_pass": len(copies) * len(records),
            "passes": passes,
            "clock": "CPU time of one thread; values are the best pass, _median the median pass",
        },
        figures=_figures(per_event),
    )


def _figures(per_event: dict[str, list[float]]) -> dict[str, Figure]:
    """Return figures from microseconds per event.  Folding alone is the difference, pass by pass: `evolve` decodes too."""
    both = per_event["decode_fold"]
    series = {
        "encode": per_event["encode"],
        "decode": per_event["decode"],
        "fold": [total - decoding for total, decoding in zip(both, per_event["decode"], strict=True)],
        "decode_fold": both,
        "msgpack_unpack": per_event["msgpack_unpack"],
    }
    figures = {"decode_fold_events_per_s": figure(1e6 / min(both), "events/s", GOAL)}
    figures["decode_fold_median_events_per_s"] = figure(1e6 / statistics.median(both), "events/s")
    for name, values in series.items():
        best = (
            min(range(len(both)), key=both.__getitem__)
            if name == "fold"
            else min(range(len(values)), key=values.__getitem__)
        )
        figures[f"{name}_us"] = figure(values[best], "us")
        figures[f"{name}_median_us"] = figure(statistics.median(values), "us")
    return figures


def _copy(records: Sequence[Record]) -> list[Record]:
    """Return equal records with bodies of their own."""
    return [msgspec.structs.replace(record, body=bytes(bytearray(record.body))) for record in records]


def _measure(
    copies: Sequence[Sequence[Record]], decoded: Sequence[Any], passes: int, progress: Progress
) -> dict[str, list[float]]:
    """Return CPU seconds of each pass over all copies.  Passes take turns, so a disturbance affects all alike."""
    works: dict[str, Callable[[], None]] = {
        "encode": lambda: _encode_all(decoded, len(copies)),
        "decode": lambda: _decode_all(copies),
        "decode_fold": lambda: _fold_all(copies),
        "msgpack_unpack": lambda: _unpack_all(copies),
    }
    _check(copies[0], decoded)
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(passes):
        progress(f"pass {number + 1} of {passes}")
        for name, work in works.items():
            began = time.thread_time()
            work()
            times[name].append(time.thread_time() - began)
    return times


def _check(records: Sequence[Record], decoded: Sequence[Any]) -> None:
    """Check that the timed code works correctly.  Raises BenchError."""
    state, twin = State(), State()
    for record in records:
        evolve(state, record)
        evolve(twin, record)
    if state.seq != len(records) or digest(state) != digest(twin):
        raise BenchError("the log does not fold to its end", code="bench.wrong_answer")
    for record, event in zip(records, decoded, strict=True):
        if decode(msgspec.structs.replace(record, body=encode(event))) != event:
            raise BenchError(f"record {record.seq} does not survive encoding", code="bench.wrong_answer")


def _encode_all(decoded: Sequence[Any], times: int) -> None:
    for _ in range(times):
        for event in decoded:
            encode(event)


def _decode_all(copies: Sequence[Sequence[Record]]) -> None:
    for records in copies:
        for record in records:
            decode(record)


def _fold_all(copies: Sequence[Sequence[Record]]) -> None:
    for records in copies:
        state = State()
        for record in records:
            evolve(state, record)


def _unpack_all(copies: Sequence[Sequence[Record]]) -> None:
    for records in copies:
        for record in records:
            msgpack.unpackb(record.body)

"""The golden log: the recorded story of a small cluster, and the core's result.

    python -m tests.core.golden_log            print this build's result for the recorded log
    python -m tests.core.golden_log --rewrite  play the story again and record both

Only commit a rewrite if you understand what caused it: a changed digest means that old logs fold to another state, which
`SCHEMA` in `dorm.core.state` has to say; a changed decision means another policy or solver version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from dorm.core.allocation import SOLVER
from dorm.core.claims import HOLD_S
from dorm.core.evolve import evolve
from dorm.core.next_round import decide
from dorm.core.state import State, digest
from events import kinds as k
from events.codec import decode
from events.log.records import Record
from tests.core.nonsense import nonsense
from tests.core.records import CLUSTER, Bench, joined

FOLDER = Path(__file__).parent / "golden"
LOG, MADE = FOLDER / "log.msgpack", FOLDER / "made.json"


def story() -> list[Record]:
    """Two policies, growing and shrinking, a crash, a lost node, a drain, idle ticks, nonsense, and every end an app can
    have."""
    bench = Bench(a=4, b=4)
    bench.running("wide", n_max=8, weight=2.0)
    bench.wait(5)
    bench.running("late", n_min=2, n_max=4)
    wide, late = bench.app("wide"), bench.app("late")
    bench.add(k.AppCheckpointed(app=wide.id, generation=1, step=100), "a")
    bench.add(k.AppProgressed(app=wide.id, generation=1, step=130, loss=0.25))
    bench.wait(1)
    bench.all_exited("wide", 143, generation=1, asked=True)
    bench.settle()
    bench.started("wide")
    bench.started("late")
    bench.settle()
    bench.exited("late", 0, 1)
    bench.settle()
    bench.all_exited("late", 143, asked=True)
    bench.wait(2)
    bench.settle()
    bench.started("late")
    bench.add(k.AppProgressed(app=wide.id, generation=wide.generation, step=110))
    bench.add(k.PolicyChanged(idle_s=20, set_params={"theta2": 0.2, "floor": None}))
    bench.settle()
    bench.wait(30)
    bench.settle()
    for subject, body in nonsense("a", wide.id):
        bench.raw(f"dorm.{CLUSTER}.{subject}", body)
    bench.settle()
    bench.conclude(a=20, b=1)
    bench.settle()
    bench.conclude(a=400, b=1)
    bench.settle()
    bench.add(joined("a", 3))
    bench.add(joined("c", 4, labels={"zone": "east"}))
    bench.add(k.PolicyChanged(policy="static", params={"count": 3, "counts": {"late-*": 2}}))
    for app in (wide, late):
        bench.all_exited(app.id, 143, asked=True)
    bench.wait(10)
    bench.settle()
    for app in (wide, late):
        bench.started(app.id)
    bench.settle()
    bench.add(k.NodeDrainRequested(node="b"))
    bench.submit("small", cpu=0.5, retries={"limit": 0})
    bench.submit("large", cpu=64)
    bench.settle()
    bench.wait(HOLD_S)  # Apps that had to leave the drained node come first for this long.
    bench.settle()
    bench.started("small")
    bench.exited("small", 0, None, reason="out_of_memory")
    bench.add(k.AppCancelRequested(app="late", reason="enough"))
    bench.settle()
    bench.all_exited("late", 143, asked=True)
    while not wide.ended:
        running = max(number for number, generation in wide.generations.items() if generation.released)
        moves = running != wide.generation
        bench.all_exited(wide.id, 143 if moves else 0, generation=running, asked=moves)
        bench.settle()
    return bench.records


def made_of(records: list[Record]) -> dict[str, Any]:
    """This build's result for a log: the state's digest along the way, and its decision at each basis.

    Decisions of the optimizer are compared only where they were made by the same solver."""
    decided = {event.basis for event in map(decode, records) if isinstance(event, k.Round)}
    state, digests, decisions = State(), {}, {}
    for record in records:
        evolve(state, record)
        if record.seq % 10 == 0 or record.seq == len(records):
            digests[str(record.seq)] = digest(state)
        if record.seq in decided:
            facts = decide(state, record.time, allocate=True).facts
            decisions[str(record.seq)] = json.loads(msgspec.json.encode(facts))
    return {"solver": SOLVER, "digests": digests, "decisions": decisions}


def recorded() -> tuple[list[Record], dict[str, Any]]:
    return msgspec.msgpack.decode(LOG.read_bytes(), type=list[Record]), json.loads(MADE.read_text())


def main() -> None:
    if "--rewrite" in sys.argv:
        records = story()
        FOLDER.mkdir(exist_ok=True)
        LOG.write_bytes(msgspec.msgpack.encode(records))
        MADE.write_text(json.dumps(made_of(records), indent=1, sort_keys=True) + "\n")
    print(json.dumps(made_of(recorded()[0]), sort_keys=True))


if __name__ == "__main__":
    main()

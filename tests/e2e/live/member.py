"""A member of a live app that keeps to the contract and trains nothing: it counts steps, with its peers on the same machine.

    python member.py follows|ignores STEPS

Members meet in a folder below the checkpoints.  `state.json` there is the membership that trains, written by its leader.
What a library does over sockets (warming up, the barrier, noticing deaths), they do by looking at files and processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

SLOT = int(os.environ["DORM_SLOT"])
FOLDER = Path(os.environ["DORM_CHECKPOINT_DIR"]) / f"peers-{os.environ['DORM_GENERATION']}"
CHECKPOINT = FOLDER.parent / "step"
TICK_S = 0.02


def put(name: str, content: Any) -> None:
    aside = FOLDER / f".{name}.{SLOT}"
    aside.write_text(json.dumps(content))
    aside.replace(FOLDER / name)


def get(name: str) -> Any:
    try:
        return json.loads((FOLDER / name).read_text())
    except FileNotFoundError:
        return None


def say(**words: Any) -> None:
    with open(os.environ["DORM_PROGRESS"], "a") as file:
        file.write(json.dumps(words) + "\n")


def lives(slot: int) -> bool:
    pid = get(f"{slot}.pid")
    try:
        os.kill(pid or 0, 0)
    except ProcessLookupError:
        return False
    return pid is not None


def save(*_: object) -> None:
    """As asked: the leader saves for all."""
    state = get("state.json")
    if state and min(state["members"]) == SLOT:
        CHECKPOINT.write_text(str(state["step"]))
        say(checkpoint=state["step"])
    sys.exit(0)


def lead(state: dict[str, Any], told: dict[str, Any]) -> None:
    """One step of the leader: deaths, then a new membership whose members are all ready, then work."""
    lost = [slot for slot in state["members"] if not lives(slot)]
    if lost:
        state["members"] = [slot for slot in state["members"] if slot not in lost]
        say(membership=state["membership"], step=state["step"], members=state["members"], cause="death", lost=lost,
            repeated=True, pause_s=0.02)  # fmt: skip
    wanted = [member["slot"] for member in told["members"]]
    if follows and told["membership"] > state["membership"] and all(
        lives(slot) and get(f"{slot}.ready") == told["membership"] for slot in wanted
    ):  # fmt: skip
        before, state["members"], state["membership"] = state["members"], wanted, told["membership"]
        joined, left = set(wanted) - set(before), set(before) - set(wanted)
        cause = "move" if joined and left else "grow" if joined else "shrink" if left else "death"
        state["cause"] = cause
        put("state.json", state)
        return
    state["step"] += 1
    if state["step"] % 10 == 0:
        say(step=state["step"], loss=1 / state["step"])
    if state["step"] % 100 == 0:
        say(epoch=state["step"] // 100, step=state["step"], samples=1000, ledger="ab" * 32)
    put("state.json", state)


follows, steps = sys.argv[1] == "follows", int(sys.argv[2])
FOLDER.mkdir(parents=True, exist_ok=True)
signal.signal(signal.SIGTERM, save)
put(f"{SLOT}.pid", os.getpid())
told = json.loads(Path(os.environ["DORM_MEMBERS"]).read_text())
if told["membership"] == 1 and told["members"][0]["slot"] == SLOT:
    step = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
    members = [member["slot"] for member in told["members"]]
    while not all(get(f"{slot}.pid") for slot in members):
        time.sleep(TICK_S)
    put("state.json", {"membership": 1, "members": members, "step": step})
    say(membership=1, step=step, members=members, cause="start")
joined, known = False, 1
while True:
    told = json.loads(Path(os.environ["DORM_MEMBERS"]).read_text())
    if get(f"{SLOT}.ready") != told["membership"]:
        put(f"{SLOT}.ready", told["membership"])
    state = get("state.json")
    if state is not None:
        joined |= SLOT in state["members"]
        if joined and (state["step"] >= steps or SLOT not in state["members"]):
            sys.exit(0)
        if state["membership"] > known and state["members"][0] == SLOT:  # The old leader may have left.
            say(membership=state["membership"], step=state["step"], members=state["members"], cause=state["cause"],
                warm_up_s=0.1, barrier_s=0.001, pause_s=0.004, bytes_moved=1000)  # fmt: skip
        known = max(known, state["membership"])
        if joined and next((slot for slot in state["members"] if lives(slot)), None) == SLOT:
            lead(state, told)
    time.sleep(TICK_S)

"""Runs a transcript; see the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import yaml

from dorm.core.evolve import evolve
from dorm.core.invariants import violations
from dorm.core.leader import Leader, Moment, Publish, Ready
from dorm.core.next_round import decide
from dorm.core.state import State
from events import kinds as k
from events.codec import encode
from events.log.records import Record
from events.quantities import SECOND
from tests.core.records import START, subject_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from dorm.core.generation import Container as SlotOfGeneration
    from dorm.core.generation import Generation

FOLDER: Final = Path(__file__).parent
MOST_STEPS: Final = 100
UNSHOWN: Final = frozenset(
    [
        "at",
        "by",
        "id",
        "kind",
        "v",
        "core",
        "spec",
        "submission",
        "build",
        "key",
        "params",
        "policy",
        "policy_version",
        "solver",
        "digest",
        "bound",
        "status",
        "utilization",
        "fairness_loss",
        "fairness_budget",
        "excess",
        "overhead",
        "overhead_budget",
        "address",
        "port",
        "master_port",
    ]
)
"""Fields of facts that no transcript is about."""


class Silence:
    """A failure detector that the transcript tells what it hears.  It looks whenever it is asked, and asks for stored
    heartbeats first."""

    alive: Container[str] | None = None
    asks = True

    def __init__(self, state: State) -> None:
        self._state = state
        self.since: dict[str, int] = {}
        """When each silent node was heard last (UTC ns)."""
        self._looked_at = -1

    def look_at(self) -> int | None:
        return self._looked_at + 1 if self.since else None

    def looked(self, at: int) -> None:
        self._looked_at = at

    def unsure(self, at: int) -> bool:
        del at
        return False

    def heard(self, moment: Moment) -> Mapping[str, int]:
        return {node: self.since.get(node, moment.now) for node in self._state.nodes}


class Transcript:
    """One story: a log in memory, its state, and a leader."""

    def __init__(self) -> None:
        self.state = State()
        self.now = START
        self.silence = Silence(self.state)
        self.leader = Leader(self.state, self.silence)
        self.ready = Ready()
        self.pending: Publish | None = None
        self._commands: dict[str, Callable[[str, list[str]], list[str]]] = {
            "record": self._record,
            "step": self._step,
            "carry": self._carry_out,
            "compute": self._compute,
            "publish": self._publish_pending,
            "settle": self._settle,
            "wait": self._wait,
            "silent": self._silent,
            "heard": self._heard,
            "lead": self._lead,
            "started": self._started,
            "exited": self._exited,
            "state": self._show_state,
        }

    def run(self, command: str, lines: list[str]) -> list[str]:
        """Return the lines of output.  Raises KeyError for a command that does not exist."""
        name, _, rest = command.partition(" ")
        output = self._commands[name](rest, lines)
        assert violations(self.state) == []
        return [self._with_names(line) for line in output]

    def _with_names(self, line: str) -> str:
        for app in self.state.apps.values():
            line = line.replace(app.id, app.name)
        return line

    # --- the log --------------------------------------------------------------------------------------------------------

    def _append(self, event: k.Event, who: str) -> str:
        record = Record(self.state.seq + 1, self.now, subject_of(event, who), encode(event))
        outcome = evolve(self.state, record).outcome
        self.leader.folded(self.now)
        return f"{record.seq} {type(event).__name__} {outcome}"

    def _record(self, _: str, lines: list[str]) -> list[str]:
        output = []
        for line in lines:
            kind, _, fields = line.partition(" ")
            described = yaml.safe_load(fields) or {}
            if (app := self.state.find_app(str(described.get("app", "")))) is not None:
                described["app"] = app.id
            sender = str(described.pop("from", described.get("by", "someone")))
            event = _event({"kind": kind, **described})
            output.append(self._append(event, getattr(event, "node", sender)))
        return output

    def _started(self, target: str, _: list[str]) -> list[str]:
        return self._report(target, "ContainerStarted", {})

    def _exited(self, target: str, lines: list[str]) -> list[str]:
        return self._report(target, "ContainerExited", {"exit_code": 0, **(yaml.safe_load("\n".join(lines)) or {})})

    def _report(self, target: str, kind: str, fields: dict[str, Any]) -> list[str]:
        """Fold a report of each container that `target` names: APP, for all of its last released generation, and slots."""
        name, *slots = target.split()
        app = self.state.find_app(name)
        assert app is not None
        generation = max((one for one in app.generations.values() if one.released), key=lambda one: one.number)
        containers = {container.slot: container for container in generation.all_containers()}
        output = []
        for slot in map(int, slots) if slots else sorted(containers):
            event = {"kind": kind, "app": app.id, "generation": generation.number, "slot": slot, **fields}
            node = containers[slot].node
            output.append(self._append(_event({**event, "node": node}), node))
        return output

    def _publish(self, said: Publish) -> list[str]:
        """Store the round if nothing of a master's came before it, as the fence of a stream does."""
        if said.expected_last != self.state.round_seq:
            self.leader.overtaken(said, self.now)
            return [
                f"not stored: expected round {said.expected_last} to be the last one, and it is {self.state.round_seq}"
            ]
        stored = self._append(msgspec.structs.replace(said.round, id=f"r{self.state.seq}", by="master"), "master")
        return [stored, *(f"  {self._fact(fact)}" for fact in said.round.events)]

    # --- the leader -----------------------------------------------------------------------------------------------------

    def _moment(self) -> Moment:
        return Moment(self.now, self.now)

    def _step(self, _: str, __: list[str]) -> list[str]:
        self.ready = self.leader.step(self._moment())
        return self._show_ready(self.ready)

    def _show_ready(self, ready: Ready) -> list[str]:
        if ready.ask:
            return [f"ask for the stored heartbeats of {', '.join(ready.ask)}"]
        if ready.publish is not None:
            return ["publish", *(f"  {self._fact(fact)}" for fact in ready.publish.round.events)]
        if ready.compute is not None:
            return [f"compute an allocation on the state at {ready.compute.basis}"]
        return ["nothing" if ready.wake is None else f"nothing until {self._moment_of(ready.wake)}"]

    def _allocation(self) -> Publish | None:
        asked = self.ready.compute
        assert asked is not None, "the last step asked for no allocation"
        decision = decide(self.state, asked.now, allocate=True)
        return self.leader.computed(asked, decision)

    def _carry_out(self, _: str, __: list[str]) -> list[str]:
        said = self.ready.publish or (self._allocation() if self.ready.compute is not None else None)
        self.ready = Ready()
        return ["nothing changes"] if said is None else self._publish(said)

    def _compute(self, _: str, __: list[str]) -> list[str]:
        self.pending = self._allocation()
        self.ready = Ready()
        if self.pending is None:
            return ["nothing changes"]
        return [f"basis {self.pending.round.basis}", *(f"  {self._fact(fact)}" for fact in self.pending.round.events)]

    def _publish_pending(self, _: str, __: list[str]) -> list[str]:
        said, self.pending = self.pending, None
        assert said is not None, "no allocation was computed"
        return self._publish(said)

    def _settle(self, _: str, __: list[str]) -> list[str]:
        output = []
        for _step in range(MOST_STEPS):
            self.ready = self.leader.step(self._moment())
            if self.ready.ask:  # Nothing more is stored.
                output += self._show_ready(self.ready)
                continue
            if self.ready.publish is None and self.ready.compute is None:
                return output + self._show_ready(self.ready)
            carried_out = self._carry_out("", [])
            output += [] if carried_out == ["nothing changes"] else carried_out
        raise AssertionError("the leader never comes to rest")

    def _lead(self, _: str, __: list[str]) -> list[str]:
        self.leader = Leader(self.state, self.silence)
        output = self._publish(self.leader.elect(self.now))
        self.leader.elected(self.now, dirty_at=self.now)
        return output

    # --- time and silence -----------------------------------------------------------------------------------------------

    def _wait(self, seconds: str, _: list[str]) -> list[str]:
        self.now += int(float(seconds.removesuffix("s")) * SECOND)
        return [f"it is {self._moment_of(self.now)}"]

    def _silent(self, node: str, _: list[str]) -> list[str]:
        self.silence.since[node] = self.now
        return [f"{node} is silent"]

    def _heard(self, node: str, _: list[str]) -> list[str]:
        del self.silence.since[node]
        return [f"{node} is heard"]

    # --- as text --------------------------------------------------------------------------------------------------------

    def _moment_of(self, at: int) -> str:
        return f"{(at - START) / SECOND:g}s"

    def _fact(self, fact: k.Event) -> str:
        default = {field.encode_name: field.default for field in msgspec.structs.fields(type(fact))}
        fields = {
            name: value
            for name, value in msgspec.to_builtins(fact).items()
            if name not in UNSHOWN and value != default[name] and value not in ([], {})
        }
        return type(fact).__name__ + (f" {self._flow(fields)}" if fields else "")

    def _flow(self, value: object) -> str:
        """YAML in one line, without what says nothing; moments as seconds of the story."""
        if isinstance(value, dict) and {"slot", "node"} <= set(value):
            return f"{value['slot']} on {value['node']}"
        if isinstance(value, dict):
            shown = {
                name: one for name, one in value.items() if name not in UNSHOWN and one not in ([], {}, "", None, 0)
            }
            return "{" + ", ".join(f"{name}: {self._flow(one)}" for name, one in shown.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(self._flow, value)) + "]"
        if isinstance(value, int) and not isinstance(value, bool) and value > START // 2:
            return self._moment_of(value)
        return str(value)

    def _show_state(self, _: str, __: list[str]) -> list[str]:
        output = []
        for app in self.state.apps.values():
            output.append(f"{app.id} {app.phase}")
            output += [line for generation in app.generations.values() for line in _generation(generation)]
        output += [f"{node.id} takes nothing new" for node in self.state.nodes.values() if not node.takes_new]
        return output or ["no apps"]


def _event(fields: dict[str, Any]) -> k.Event:
    """Return the event that `fields` describe.  Raises AssertionError for a field that its kind does not have, which a master
    would ignore."""
    kind = getattr(k, fields["kind"])
    assert set(fields) <= {"kind", *(field.encode_name for field in msgspec.structs.fields(kind))}, fields
    event: k.Event = msgspec.convert(fields, kind, strict=False)
    return event


def _generation(generation: Generation) -> list[str]:
    stage = "void" if generation.void else "released" if generation.released else "waits for its room"
    lines = [f"  generation {generation.number} ({stage}): {_placed(generation.containers)}"]
    if generation.change is not None:
        lines.append(f"    joining: {_placed(generation.change.newcomers)}; staying: {generation.change.stay}")
    if generation.leaving:
        lines.append(f"    leaving: {_placed(generation.leaving)}")
    return lines


def _placed(containers: Mapping[int, SlotOfGeneration]) -> str:
    placed = (f"{slot} on {container.node} {container.state}" for slot, container in sorted(containers.items()))
    return ", ".join(placed) or "none"


BLOCK: Final = re.compile(
    r"(?P<head>(?:#[^\n]*\n|\n)*)(?P<input>[^\n]+\n(?:(?!----\n)[^\n]+\n)*)----\n(?P<output>(?:[^\n]+\n)*)"
)


def rewritten(text: str) -> str:
    """Return the transcript `text` with what happens now.  Raises ValueError for text that is no block."""
    transcript, parts, end = Transcript(), [], 0
    for block in BLOCK.finditer(text):
        if block.start() != end:
            raise ValueError(f"no block: {text[end : block.start()]!r}")
        end = block.end()
        command, *lines = block["input"].splitlines()
        output = transcript.run(command, lines)
        parts.append(block["head"] + block["input"] + "----\n" + "".join(f"{line}\n" for line in output))
    if text[end:].strip():
        raise ValueError(f"no block: {text[end:]!r}")
    return "".join(parts)


def transcripts() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))

"""Contenders: a policy with its parameters, and the cost of its way of sharing.

    dorm,theta1=0.2,theta2=0.1          a policy with parameters, values as YAML reads them
    dorm,static,task-level              three contenders: a part without = starts the next one
    static,counts={lr-*: 8, mf-*: 4}    commas in brackets are part of a value
    static,counts=paper                 the counts of the paper's baseline on its workload
    fair:dorm,theta1=0                  with its own label
    dorm,timings=live                   its apps are resized while they run
    task-level,task_s=2,overhead_s=0.1  how long tasks take, and the cost of each

A contender that shares by tasks has nothing to adjust and pays with every task; the others pay for adjustments (`timings`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dorm.policies.registry import policy
from events.documents import read
from events.errors import code_of
from events.quantities import short
from events.spec import SpecError
from replay.simulator import SimulationError
from replay.simulator.scenario import Rounds, Tasks
from replay.simulator.timings import FREE, LIVE, Timings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.simulator.scenario import Scenario

BY_TASKS = ("task-level",)
"""Policies that assign slots to short tasks: adjusting is free, and every task pays."""
BY_TIME = ("gavel", "optimus", "pollux", "shockwave", "sia", "srtf", "themis", "tiresias")
"""Policies whose answer may change although nothing has happened, since they use apps' service, age or remaining work:
they decide periodically."""
ROUND_S = 60.0
"""Their period, unless the scenario has rounds (Pollux, OSDI 2021, §5.1)."""
LONG_ROUNDS_S = {"gavel": 360.0, "shockwave": 120.0}
"""The period of those that stop many apps in each round, unless the scenario's is longer: Gavel, OSDI 2020, §5; Shockwave,
NSDI 2023 (`time_per_iteration` of its published code)."""
STATIC_COUNTS = {
    "lr-*": 8, "mf-*": 8, "caffenet-*": 4, "vgg-16-*": 2, "googlenet-*": 2, "alexnet-*": 3, "resnet-50-*": 3,
}  # fmt: skip
"""The parameter `counts` that makes policy `static` the Dorm paper's baseline, on that paper's workload."""
TIMINGS = {"docker": Timings(), "live": LIVE, "free": FREE}
"""Timings by name."""
_PAUSE = "pause="
_MALFORMED = "contender.malformed"
_OPENS, _CLOSES, _QUOTES = "[{(", ")}]", "\"'"


class Contender(msgspec.Struct, frozen=True):
    """One of the policies that are compared on the same workload."""

    label: str
    """Name of the contender in tables and plots."""
    policy: str
    params: dict[str, Any] = {}
    tasks: Tasks | None = None
    """Set if it shares by tasks."""
    timings: Timings | None = None
    """Timings of all its apps, if they differ from the scenario's and the apps' own."""

    def of(self, scenario: Scenario) -> Scenario:
        """Return the same scenario with this policy."""
        rounds = scenario.rounds
        if self.policy in BY_TIME:
            every_s = rounds.every_s if rounds else ROUND_S
            rounds = Rounds(max(every_s, LONG_ROUNDS_S.get(self.policy, 0.0)), always=True)
        changed = msgspec.structs.replace(
            scenario, policy=self.policy, params=self.params, tasks=self.tasks, rounds=rounds
        )
        return changed if self.timings is None else with_timings(changed, self.timings)


def parse(text: str) -> Contender:
    """Parse `dorm,theta1=0.2,theta2=0.1`; the text is also the label, unless `LABEL:dorm,…` sets another.

    Raises SimulationError for an unknown policy or parameter, and for an invalid value."""
    label, colon, rest = text.partition(":")
    if not colon or "," in label or "=" in label:
        label, rest = text, text
    if not label.strip():
        raise SimulationError(f"{short(text)}: write LABEL:policy or the policy alone", code=_MALFORMED)
    name, *pairs = _split(rest)
    name = name.strip()
    own: dict[str, str] = {}
    params: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        key = key.strip()
        if not sign or not key:
            message = f"{short(text)}: write policy,key=value,…; {pair.strip()!r} is not key=value"
            raise SimulationError(message, code=_MALFORMED)
        if key in params or key in own:
            raise SimulationError(f"{short(text)}: {key} is given twice", code="contender.parameter.given_twice")
        if key in ("timings", "pause") or (name in BY_TASKS and key in Tasks.__struct_fields__):
            own[key] = value.strip()
        elif (name, key, value.strip()) == ("static", "counts", "paper"):
            params[key] = dict(STATIC_COUNTS)
        else:
            params[key] = _value(text, key, value)
    try:
        policy(name).check_params(params)
    except (LookupError, ValueError) as error:
        raise SimulationError(str(error), code=code_of(error)) from None
    return Contender(
        label=label.strip(),
        policy=name,
        params=params,
        tasks=_tasks(text, own) if name in BY_TASKS else None,
        timings=_own_timings(text, own),
    )


def split_all(texts: Sequence[str]) -> list[str]:
    """Return the contenders that texts name, one text for each."""
    return [part for text in texts for part in _each(text)]


def parse_all(texts: Sequence[str]) -> list[Contender]:
    """Parse texts that name one or several contenders each; labels must be unique.  Raises SimulationError."""
    contenders = [parse(part) for part in split_all(texts)]
    labels = [contender.label for contender in contenders]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        text = f"{twice[0]!r} is given twice; LABEL:{twice[0]} gives one of them another name"
        raise SimulationError(text, code="contender.given_twice")
    return contenders


def parse_timings(text: str) -> Timings:
    """Parse `docker`, `live`, `free`, or `pause=30` for that many seconds without work at each start and restart, during which
    the containers are held (as in the simulators of Pollux, OSDI 2021, §5.1, and Sia, SOSP 2023).

    Raises SimulationError."""
    if text.startswith(_PAUSE):
        return _pause(text.removeprefix(_PAUSE))
    if text not in TIMINGS:
        message = f"unknown timings {short(text)}; choose {', '.join(TIMINGS)} or pause=SECONDS"
        raise SimulationError(message, code="timings.unknown")
    return TIMINGS[text]


def with_timings(scenario: Scenario, timings: Timings) -> Scenario:
    """Return the same scenario with these timings for every app, instead of its own."""
    apps = tuple(app if app.timings is None else msgspec.structs.replace(app, timings=None) for app in scenario.apps)
    return msgspec.structs.replace(scenario, apps=apps, timings=timings)


def _each(text: str) -> list[str]:
    """Split a text into one text for each policy."""
    parts: list[str] = []
    for part in _split(text):
        if "=" in part and parts:
            parts[-1] += f",{part}"
        else:
            parts.append(part.strip())
    return parts


def _split(text: str) -> list[str]:
    """Split at the commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for sign in text:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES:
            quote = sign
        elif sign in _OPENS:
            depth += 1
        elif sign in _CLOSES:
            depth -= 1
        elif sign == "," and depth <= 0:
            parts.append("")
            continue
        parts[-1] += sign
    return parts


def _value(text: str, key: str, value: str) -> Any:
    try:
        return read(value).value
    except SpecError:
        message = f"{short(text)}: the value of {key} is not YAML: {short(value.strip())}"
        raise SimulationError(message, code="contender.parameter.not_yaml") from None


def _seconds(what: str, value: str, *, least: float) -> float:
    try:
        seconds = float(value.strip().removesuffix("s"))
    except ValueError:
        raise SimulationError(f"{what}: {short(value)} is not a number of seconds", code="timings.malformed") from None
    if not least <= seconds <= 1e9:
        raise SimulationError(f"{what}: {value} is not between {least:g} and 1e9 seconds", code="timings.out_of_range")
    return seconds


def _pause(value: str) -> Timings:
    seconds = _seconds("pause", value, least=0.0)
    return Timings(checkpoint_s=0.0, stop_s=0.0, start_s=0.0, boot_s=seconds, resume_s=seconds)


def _own_timings(text: str, own: dict[str, str]) -> Timings | None:
    if "pause" in own and "timings" in own:
        message = f"{short(text)}: timings and pause exclude each other; give one of them"
        raise SimulationError(message, code="timings.given_twice")
    if "pause" in own:
        return _pause(own["pause"])
    return parse_timings(own["timings"]) if "timings" in own else None


def _tasks(text: str, own: dict[str, str]) -> Tasks:
    given = {
        key: _seconds(f"{short(text)}: {key}", own[key], least=0.0) for key in Tasks.__struct_fields__ if key in own
    }
    tasks = Tasks(**given)
    if tasks.task_s <= 0:
        raise SimulationError(f"{short(text)}: task_s must be more than 0", code="timings.out_of_range")
    return tasks

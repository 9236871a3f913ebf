"""The wording of each error, in one table: code, what raises it, text.  `tests/error_texts` holds the longer parts of it.

Everything else asserts codes, so a sentence is changed here and in the code, nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from dorm.core.settings import policy_after
from dorm.core.state import Settings
from dorm.policies import registry
from events import positions, subjects
from events.errors import DormError
from events.kinds import PolicyChanged
from events.quantities import capacity, duration, resource
from events.spec import check_spec
from events.spec.requirements import requirement
from events.times import Times, times_after
from tests.error_texts import settings as of_settings
from tests.error_texts import specs, values

if TYPE_CHECKING:
    from collections.abc import Callable


def spec(**fields: Any) -> Callable[[], object]:
    """Return the check of a spec with these fields; None leaves one out."""
    document = {"name": "app", "command": ["work"], "demand": {"cpu": 1}, **fields}
    return lambda: check_spec({name: value for name, value in document.items() if value is not None})


def times(**change: Any) -> Callable[[], object]:
    return lambda: times_after(Times(), PolicyChanged(**change))


def settings(**change: Any) -> Callable[[], object]:
    return lambda: policy_after(Settings(), PolicyChanged(**change))


def unknown_policy() -> object:
    """Other tests of this process may have registered policies of their own."""
    ours = {name: place for name, place in registry._REGISTRY.items() if place[0].startswith("dorm.")}
    with mock.patch.object(registry, "_REGISTRY", ours):
        return settings(policy="lottery")()


TABLE: list[tuple[str, Callable[[], object], str]] = [
    # specs
    ("spec.not_a_map", lambda: check_spec([1]), "a spec is a map with name, command and demand, not a list"),
    ("spec.command.missing", spec(command=None), "command: missing"),
    ("spec.unknown_field", spec(nmax=3), "nmax: unknown field; did you mean n_max?"),
    (
        "spec.retries.unknown_field",
        spec(retries={"limits": 3}),
        "retries.limits: unknown field; did you mean limit?",
    ),
    (
        "spec.retries.limit.out_of_range",
        spec(retries={"limit": -1}),
        "retries.limit: expected an integer of at least 0, got -1",
    ),
    ("spec.n_max.wrong_type", spec(n_max="many"), "n_max: expected an integer, got 'many'"),
    ("spec.command.out_of_range", spec(command=[]), "command: expected a list of at least 1 entry, got an empty list"),
    (
        "spec.name.malformed",
        spec(name="App"),
        "name: expected lower-case letters, digits and dashes, at most 48, got 'App'",
    ),
    (
        "spec.engine.not_a_choice",
        spec(engine="spark"),
        "engine: expected plain, torchrun, mpi, tensorflow, ps or elastic, got 'spark'",
    ),
    ("spec.n_min.above_n_max", spec(n_min=3, n_max=2), "n_min: 3 is more than n_max, which is 2"),
    (
        "spec.n_max.splits_gang",
        spec(gang=4, n_min=4, n_max=6),
        "n_max: 6 is not a multiple of gang, which is 4; write 4 or 8",
    ),
    (
        "spec.speed.not_ascending",
        spec(speed=[[2, 1.0], [1, 2.0]]),
        "speed[1]: 1 containers come after 2; list each count once, ascending",
    ),
    (
        "spec.batch.initial_outside",
        spec(batch={"initial": 8, "least": 16, "most": 64, "per_container": 4}),
        "batch: initial is 8; it must be between least (16) and most (64)",
    ),
    ("spec.demand.all_zero", spec(demand={"cpu": 0}), "demand: at least one resource must be more than 0"),
    ("spec.demand.negative", spec(demand={"cpu": -1}), "demand.cpu: expected a quantity of at least 0, got -1"),
    ("spec.demand.too_large", spec(demand={"gpu": 1e300}), "demand.gpu: 1e+300 is more than any cluster has"),
    (
        "spec.demand.unknown_unit",
        spec(demand={"memory": "2XB"}),
        "demand.memory: '2XB' has an unknown unit; write 512MiB or 2GiB",
    ),
    ("spec.grace.malformed", spec(grace="soon"), "grace: 'soon' is not a duration; write 10s, 500ms, 2m or 1h"),
    (
        "spec.deadlines.start.out_of_range",
        spec(deadlines={"start": "9999d"}),
        "deadlines.start: '9999d' is not a duration between 0 and a year",
    ),
    ("spec.env.reserved", spec(env={"DORM_X": "1"}), "env.DORM_X: names that begin with DORM_ are Dorm's own"),
    (
        "spec.env.malformed",
        spec(env={"A=B": "1"}),
        "env: 'A=B' can't be the name of a variable (it is empty or holds '=')",
    ),
    ("spec.command.no_program", spec(command=[" "]), "command: the program's name is empty"),
    ("spec.command.malformed", spec(command=["a\0b"]), "command[0]: can't hold a NUL character"),
    (
        "spec.command.too_large",
        spec(command=["work", "x" * 200_000]),
        "command[1]: 200,000 bytes are more than a process can be given (131,071)",
    ),
    (
        "spec.require.malformed",
        spec(require="zone ="),
        'require: expected "==", "!=", "in" or "not in" at character 6, got \'=\'; write ==',
    ),
    # quantities and requirements, where they stand alone
    ("quantity.malformed", lambda: capacity("cpu"), "'cpu': write name=amount, such as cpu=4,memory=8GiB,gpu=1"),
    ("quantity.malformed", lambda: resource("gpu", "x"), "gpu: 'x' is not a quantity; write a whole number"),
    (
        "quantity.unknown_unit",
        lambda: resource("cpu", "2G"),
        "cpu: '2G' is not a number of cores; write 2, 0.5 or 500m",
    ),
    ("quantity.out_of_range", lambda: duration(-1), "-1 is not a duration between 0 and a year"),
    ("requirement.too_long", lambda: requirement("a" * 2000), "2,000 characters are too many; at most 1,024 are taken"),
    (
        "requirement.too_deep",
        lambda: requirement("not " * 40 + "has a"),
        "more than 32 levels of brackets and not, at character 133",
    ),
    # settings
    (
        "settings.node_grace.too_short",
        times(node_grace_s=8.0),
        "node_grace (8s) > 2 x heartbeat (5s) does not hold, so a single late heartbeat would lose a node: set a longer "
        "node_grace, or a shorter heartbeat in the same change",
    ),
    (
        "settings.node_lease.below_grace",
        times(node_lease_s=10.0),
        "node_lease (10s) >= node_grace (15s) + heartbeat (5s) does not hold, so nodes would kill their containers before "
        "the master counts them as lost: set a longer node_lease, or a shorter node_grace in the same change",
    ),
    (
        "policy.unknown",
        unknown_policy,
        "unknown policy 'lottery'; `dorm policy list` shows the known ones",
    ),
    (
        "policy.parameter.out_of_range",
        settings(set_params={"theta1": 7}),
        "policy dorm: theta1 has to be between 0 and 1, not 7",
    ),
    (
        "policy.parameter.wrong_type",
        settings(set_params={"theta1": "high"}),
        "policy dorm: theta1 has to be a number, not 'high'",
    ),
    # names and places
    (
        "position.malformed",
        lambda: positions.parse("last"),
        "'last' is not a position; write a sequence (118), or with the index in a round (118.2), or what an interrupted "
        "reading reported (118.2~57)",
    ),
    (
        "cluster.name.malformed",
        lambda: subjects.check_cluster("a b"),
        "cluster name 'a b': use 1 to 64 letters, digits, '-' and '_'",
    ),
]


WHOLE = [*TABLE, *specs.ROWS, *values.ROWS, *of_settings.ROWS]


@pytest.mark.parametrize(("code", "act", "text"), WHOLE, ids=[f"{code}-{text[:20]}" for code, _, text in WHOLE])
def test_an_error_has_its_code_and_advice(code: str, act: Callable[[], object], text: str) -> None:
    with pytest.raises(DormError) as raised:
        act()
    assert (raised.value.code, str(raised.value)) == (code, text)

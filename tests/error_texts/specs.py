"""Errors about specs."""

# ruff: noqa: E501 - a text stands on one line, so that it can be searched for

from __future__ import annotations

from math import inf, nan
from typing import TYPE_CHECKING, Any

from events.spec import LARGEST_ARGUMENT, AppSpec, check_spec
from events.spec.gates import in_order

if TYPE_CHECKING:
    from collections.abc import Callable

    from events.spec import CheckedSpec


FIELDS = ", ".join(AppSpec.__struct_encode_fields__)


_FIELDS = ", ".join(AppSpec.__struct_fields__)


def spec(change: dict[Any, Any]) -> Callable[[], object]:
    """Return the check of a good spec with these fields changed."""
    return lambda: check_spec({"name": "digits", "command": ["python", "train.py"], "demand": {"cpu": 1}, **change})


def one(name: str, after: str) -> CheckedSpec:
    return check_spec({"name": name, "command": ["work"], "demand": {"cpu": 1}, "after": [after]})


ROWS: list[tuple[str, Callable[[], object], str]] = [
    (
        "spec.unknown_field",
        spec({"x y": 3}),
        f"'x y': unknown field; the fields are {FIELDS}",
    ),
    (
        "spec.unknown_field",
        spec({7: 3}),
        f"7: unknown field; the fields are {FIELDS}",
    ),
    (
        "spec.unknown_field",
        spec({10**5000: 3}),
        f"a huge number: unknown field; the fields are {FIELDS}",
    ),
    (
        "spec.start_after.no_zone",
        spec({"start_after": "2026-11-24T08:00"}),
        "start_after: '2026-11-24T08:00' has no time zone; add Z for UTC, or an offset such as +01:00",
    ),
    (
        "spec.start_after.malformed",
        spec({"start_after": "soon"}),
        "start_after: 'soon' is neither a delay nor a time; write a delay such as 2h, or a time such as 2026-11-24T08:00Z or 2026-11-24T08:00+01:00",
    ),
    (
        "spec.resizable.live",
        spec({"elastic": "live", "resizable": "never"}),
        "resizable: never excludes elastic: live, which lets an app be resized while it trains; leave out one of them",
    ),
    (
        "spec.max_runtime.zero",
        spec({"max_runtime": 0}),
        "max_runtime: 0 would end it at once; write a time such as 2h, or leave it out",
    ),
    (
        "spec.after.itself",
        spec({"after": ["digits"]}),
        "after: digits can't wait for itself; name an earlier app of this name by its id (`dorm ps -a`)",
    ),
    (
        "spec.after.when.not_a_choice",
        spec({"after": [{"app": "prep", "when": "never"}]}),
        "after[0].when: expected completed, failed or ended, got 'never'",
    ),
    (
        "spec.after.wrong_type",
        spec({"after": [1]}),
        "after[0]: expected text or a map, got 1",
    ),
    (
        "spec.after.cycle",
        lambda: in_order([one("a", "b"), one("b", "a")]),
        "after: a waits for b, which waits for a; remove one of these",
    ),
    (
        "spec.name.malformed",
        spec({"name": ""}),
        "name: expected lower-case letters, digits and dashes, at most 48, got ''",
    ),
    (
        "spec.name.malformed",
        spec({"name": "Digits"}),
        "name: expected lower-case letters, digits and dashes, at most 48, got 'Digits'",
    ),
    (
        "spec.name.malformed",
        spec({"name": "a" * 49}),
        "name: expected lower-case letters, digits and dashes, at most 48, got 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
    ),
    (
        "spec.name.malformed",
        spec({"name": "a" * 10**6}),
        "name: expected lower-case letters, digits and dashes, at most 48, got 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...",
    ),
    ("spec.name.malformed", spec({"name": "digits\n"}), "name: 'digits\\n' can't hold a line end"),
    ("spec.name.wrong_type", spec({"name": 7}), "name: expected text, got 7; write it in quotes"),
    ("spec.name.wrong_type", spec({"name": None}), "name: expected text, got nothing"),
    (
        "spec.command.wrong_type",
        spec({"command": "python train.py"}),
        "command: expected a list, got 'python train.py'",
    ),
    ("spec.command.wrong_type", spec({"command": ["a", 7]}), "command[1]: expected text, got 7; write it in quotes"),
    ("spec.command.malformed", spec({"command": ["a", "b\0"]}), "command[1]: can't hold a NUL character"),
    ("spec.command.not_unicode", spec({"command": ["a", "\ud800"]}), "command[1]: is not valid Unicode text"),
    (
        "spec.command.out_of_range",
        spec({"command": ["a"] * 1001}),
        "command: expected a list of at most 1000 entries, got a list",
    ),
    (
        "spec.command.too_large",
        spec({"command": ["a", "x" * (LARGEST_ARGUMENT + 1)]}),
        "command[1]: 131,072 bytes are more than a process can be given (131,071)",
    ),
    ("spec.resume.no_program", spec({"resume": [" "]}), "resume: the program's name is empty"),
    ("spec.checkpoint.malformed", spec({"checkpoint": ["a\0"]}), "checkpoint[0]: can't hold a NUL character"),
    ("spec.demand.out_of_range", spec({"demand": {}}), "demand: expected a map of at least 1 entry, got an empty map"),
    (
        "spec.demand.malformed",
        spec({"demand": {"cpu": "-1"}}),
        "demand.cpu: '-1' is not a quantity; write 2, 0.5 or 500m",
    ),
    ("spec.demand.too_large", spec({"demand": {"cpu": inf}}), "demand.cpu: inf is more than any cluster has"),
    (
        "spec.demand.too_large",
        spec({"demand": {"cpu": 10**400}}),
        "demand.cpu: a huge number is more than any cluster has",
    ),
    ("spec.demand.too_large", spec({"demand": {"cpu": 1e300}}), "demand.cpu: 1e+300 is more than any cluster has"),
    (
        "spec.demand.malformed",
        spec({"demand": {"cpu": "2 cores"}}),
        "demand.cpu: '2 cores' is not a quantity; write 2, 0.5 or 500m",
    ),
    (
        "spec.demand.unknown_unit",
        spec({"demand": {"cpu": "2GiB"}}),
        "demand.cpu: '2GiB' is not a number of cores; write 2, 0.5 or 500m",
    ),
    (
        "spec.demand.malformed",
        spec({"demand": {"cpu": "٣"}}),
        "demand.cpu: '٣' is not a quantity; write 2, 0.5 or 500m",
    ),
    (
        "spec.demand.unknown_unit",
        spec({"demand": {"memory": "1XB"}}),
        "demand.memory: '1XB' has an unknown unit; write 512MiB or 2GiB",
    ),
    (
        "spec.demand.malformed",
        spec({"demand": {"memory": "9" * 10**6}}),
        "demand.memory: '99999999999999999999999999999999999999999999999999999999... is not a quantity; write 512MiB or 2GiB",
    ),
    (
        "spec.demand.wrong_type",
        spec({"demand": {"cpu": 1, "gpu": True}}),
        "demand.gpu: expected a quantity (a number, or text like 500m or 2GiB), got True",
    ),
    (
        "spec.demand.wrong_type",
        spec({"demand": {"cpu": 1, "gpu": None}}),
        "demand.gpu: expected a quantity (a number, or text like 500m or 2GiB), got nothing",
    ),
    (
        "spec.demand.malformed",
        spec({"demand": {"": 1}}),
        "demand: '' is not a resource name (letters, digits and _ . / -, at most 63)",
    ),
    (
        "spec.demand.malformed",
        spec({"demand": {"c\0": 1}}),
        "demand: 'c\\x00' is not a resource name (letters, digits and _ . / -, at most 63)",
    ),
    ("spec.demand.malformed", spec({"demand": {"cpu\n": 1}}), "demand: 'cpu\\n' can't hold a line end"),
    (
        "spec.demand.out_of_range",
        spec({"demand": {f"r{number}": 1 for number in range(33)}}),
        "demand: expected a map of at most 32 entries, got a map",
    ),
    (
        "spec.demand.too_small",
        spec({"demand": {"cpu": "9m"}}),
        "demand.cpu: 0.009 cores is too little for a container; write at least 0.01 cores",
    ),
    (
        "spec.demand.too_small",
        spec({"demand": {"cpu": 1, "memory": "1MiB"}}),
        "demand.memory: 1 MiB is too little for a container; write at least 8 MiB",
    ),
    ("spec.demand.wrong_type", spec({"demand": [1]}), "demand: expected a map, got a list"),
    ("spec.n_min.out_of_range", spec({"n_min": 0}), "n_min: expected an integer of at least 1, got 0"),
    ("spec.n_min.out_of_range", spec({"n_min": -3}), "n_min: expected an integer of at least 1, got -3"),
    ("spec.n_min.out_of_range", spec({"n_min": 100_001}), "n_min: expected an integer of at most 100000, got 100001"),
    (
        "spec.n_min.out_of_range",
        spec({"n_min": 2**80}),
        "n_min: expected an integer of at most 100000, got 1208925819614629174706176",
    ),
    ("spec.n_min.wrong_type", spec({"n_min": 1.5}), "n_min: expected an integer, got 1.5"),
    ("spec.n_min.wrong_type", spec({"n_min": "2"}), "n_min: expected an integer, got '2'"),
    ("spec.n_min.wrong_type", spec({"n_min": True}), "n_min: expected an integer, got True"),
    ("spec.n_min.above_n_max", spec({"n_min": 5, "n_max": 3}), "n_min: 5 is more than n_max, which is 3"),
    ("spec.weight.out_of_range", spec({"weight": 0}), "weight: expected a number of at least 0.001, got 0"),
    ("spec.weight.out_of_range", spec({"weight": -1}), "weight: expected a number of at least 0.001, got -1"),
    ("spec.weight.out_of_range", spec({"weight": inf}), "weight: expected a number of at most 1000.0, got inf"),
    ("spec.weight.wrong_type", spec({"weight": "heavy"}), "weight: expected a number, got 'heavy'"),
    ("spec.require.wrong_type", spec({"require": 7}), "require: expected text, got 7; write it in quotes"),
    (
        "spec.require.out_of_range",
        spec({"require": "a" * 1025}),
        "require: expected text of at most 1024 characters, got 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...",
    ),
    (
        "spec.require.malformed",
        spec({"require": "gpu_type = 'h100'"}),
        'require: expected "==", "!=", "in" or "not in" at character 10, got \'=\'; write ==',
    ),
    ("spec.require.malformed", spec({"require": "a == 'b\0'"}), "require: the text at character 6 can't hold '\\x00'"),
    (
        "spec.require.malformed",
        spec({"require": "a == '\ud800'"}),
        "require: the text at character 6 can't hold '\\ud800'",
    ),
    ("spec.placement.not_a_choice", spec({"placement": "near"}), "placement: expected spread or pack, got 'near'"),
    ("spec.placement.wrong_type", spec({"placement": None}), "placement: expected text, got nothing"),
    ("spec.steps.out_of_range", spec({"steps": -1}), "steps: expected an integer of at least 0, got -1"),
    (
        "spec.steps.out_of_range",
        spec({"steps": 2**70}),
        "steps: expected an integer of at most 1000000000000000, got 1180591620717411303424",
    ),
    ("spec.speed.wrong_type", spec({"speed": [2, 1.5]}), "speed[0]: expected a list, got 2"),
    ("spec.speed.out_of_range", spec({"speed": [[2]]}), "speed[0]: expected a list of 2 entries, got a list"),
    ("spec.speed.out_of_range", spec({"speed": [[0, 1.5]]}), "speed[0][0]: expected an integer of at least 1, got 0"),
    ("spec.speed.out_of_range", spec({"speed": [[1, 0]]}), "speed[0][1]: expected a number of at least 1e-09, got 0"),
    (
        "spec.speed.out_of_range",
        spec({"speed": [[1, inf]]}),
        "speed[0][1]: expected a number of at most 1000000000000.0, got inf",
    ),
    (
        "spec.speed.not_ascending",
        spec({"speed": [[1, 2], [4, 3], [4, 5]]}),
        "speed[2]: 4 containers come after 4; list each count once, ascending",
    ),
    (
        "spec.batch.least.missing",
        spec({"batch": {"initial": 8, "most": 64, "per_container": 4}}),
        "batch.least: missing",
    ),
    ("spec.gang.out_of_range", spec({"gang": 0}), "gang: expected an integer of at least 1, got 0"),
    ("spec.gang.out_of_range", spec({"gang": 1025}), "gang: expected an integer of at most 1024, got 1025"),
    ("spec.gang.wrong_type", spec({"gang": "4"}), "gang: expected an integer, got '4'"),
    (
        "spec.n_min.splits_gang",
        spec({"gang": 4, "n_min": 6}),
        "n_min: 6 is not a multiple of gang, which is 4; write 4 or 8",
    ),
    (
        "spec.n_min.splits_gang",
        spec({"gang": 4, "n_min": 3, "n_max": 8}),
        "n_min: 3 is not a multiple of gang, which is 4; write 4",
    ),
    (
        "spec.n_max.splits_gang",
        spec({"gang": 4, "n_min": 4, "n_max": 9}),
        "n_max: 9 is not a multiple of gang, which is 4; write 8 or 12",
    ),
    (
        "spec.n_max.splits_gang",
        spec({"gang": 4, "n_max": 2}),
        "n_max: 2 is not a multiple of gang, which is 4; write 4",
    ),
    ("spec.n_min.above_n_max", spec({"gang": 4, "n_min": 8, "n_max": 4}), "n_min: 8 is more than n_max, which is 4"),
    (
        "spec.engine.not_a_choice",
        spec({"engine": "spark"}),
        "engine: expected plain, torchrun, mpi, tensorflow, ps or elastic, got 'spark'",
    ),
    (
        "spec.engine_options.of_another_engine",
        spec({"engine": "plain", "engine_options": {"processes": 2}}),
        "engine_options.processes: the engine plain has no such option; it belongs to torchrun and mpi",
    ),
    (
        "spec.command.launches_twice",
        spec({"engine": "torchrun", "command": ["torchrun", "train.py"]}),
        "command: it starts torchrun, and the engine torchrun does that already; write the script alone, "
        "`command: [python, train.py]`, with `engine_options: {processes: N}` for N workers in each container",
    ),
    (
        "spec.engine_options.restarts.without_c10d",
        spec({"engine": "torchrun", "engine_options": {"restarts": 2}}),
        "engine_options.restarts: needs `rendezvous: c10d`; with a static one Dorm's own `retries` apply",
    ),
    (
        "spec.engine_options.servers.given_twice",
        spec({"engine": "ps", "n_min": 4, "engine_options": {"servers": 1, "workers_per_server": 2}}),
        "engine_options.workers_per_server: `servers` already says how many there are; leave out one of the two",
    ),
    (
        "spec.engine_options.rendezvous.not_a_choice",
        spec({"engine": "torchrun", "engine_options": {"rendezvous": "etcd"}}),
        "engine_options.rendezvous: expected static or c10d, got 'etcd'",
    ),
    (
        "spec.n_min.below_roles",
        spec({"engine": "ps", "engine_options": {"servers": 2}}),
        "n_min: 1 is too few for the engine ps, which needs 2 servers and a worker; write at least 3",
    ),
    ("spec.image.malformed", spec({"image": "a\0"}), "image: can't hold a NUL character"),
    (
        "spec.image.out_of_range",
        spec({"image": "a" * 513}),
        "image: expected text of at most 512 characters, got 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...",
    ),
    ("spec.env.wrong_type", spec({"env": {"PORT": 8080}}), "env.PORT: expected text, got 8080; write it in quotes"),
    (
        "spec.env.malformed",
        spec({"env": {"": "x"}}),
        "env: '' can't be the name of a variable (it is empty or holds '=')",
    ),
    (
        "spec.env.reserved",
        spec({"env": {"DORM_RANK": "0"}}),
        "env.DORM_RANK: names that begin with DORM_ are Dorm's own",
    ),
    ("spec.env.malformed", spec({"env": {"A\0": "x"}}), "env: can't hold a NUL character"),
    ("spec.env.malformed", spec({"env": {"A": "x\0"}}), "env.A: can't hold a NUL character"),
    (
        "spec.env.too_large",
        spec({"env": {"A": "x" * LARGEST_ARGUMENT}}),
        "env.A: 131,073 bytes are more than a process can be given (131,071)",
    ),
    (
        "spec.too_large",
        spec({"env": {f"A{number}": "x" * 100_000 for number in range(3)}}),
        "the spec has 300,082 bytes; at most 262,144 are taken",
    ),
    ("spec.env.wrong_type", spec({"env": ["A=B"]}), "env: expected a map, got a list"),
    (
        "spec.grace.too_long",
        spec({"grace": "61m"}),
        "grace: '61m' is longer than an hour; save a checkpoint more often and take a shorter grace",
    ),
    (
        "spec.env.secret",
        spec({"env": {"WANDB_API_KEY": "0a1b2c3d4e5f"}}),
        "env.WANDB_API_KEY: looks like a secret by its name, and everyone who reads the log would see it; put it on the nodes instead and name it in `secrets`, such as `secrets: {API_KEY_FILE: key}`",
    ),
    (
        "spec.command.secret",
        spec({"command": ["train", "--data", "s3://user:pass@store/data"]}),
        "command[2]: holds an address with a password, and everyone who reads the log would see it; put it on the nodes instead and name it in `secrets`, such as `secrets: {API_KEY_FILE: key}`",
    ),
    (
        "spec.secrets.reserved",
        spec({"secrets": {"DORM_KEY": "a"}}),
        "secrets.DORM_KEY: names that begin with DORM_ are Dorm's own",
    ),
    (
        "spec.secrets.in_env",
        spec({"env": {"KEY": "/a"}, "secrets": {"KEY": "a"}}),
        "secrets.KEY: env has a variable of this name too; leave one out",
    ),
    (
        "spec.secrets.malformed",
        spec({"secrets": {"a b": "a"}}),
        "secrets: 'a b' is not a variable's name (letters, digits and _, at most 127)",
    ),
    ("spec.secrets.malformed", spec({"secrets": {"A\n": "a"}}), "secrets: 'A\\n' can't hold a line end"),
    ("spec.grace.out_of_range", spec({"grace": -1}), "grace: -1 is not a duration between 0 and a year"),
    ("spec.grace.out_of_range", spec({"grace": nan}), "grace: nan is not a duration between 0 and a year"),
    ("spec.grace.out_of_range", spec({"grace": "9999d"}), "grace: '9999d' is not a duration between 0 and a year"),
    (
        "spec.grace.out_of_range",
        spec({"grace": 10**400}),
        "grace: a huge number is not a duration between 0 and a year",
    ),
    (
        "spec.retries.backoff.malformed",
        spec({"retries": {"backoff": "x"}}),
        "retries.backoff: 'x' is not a duration; write 10s, 500ms, 2m or 1h",
    ),
    ("spec.retries.wrong_type", spec({"retries": 3}), "retries: expected a map, got 3"),
    (
        "spec.retries.out_of_memory.out_of_range",
        spec({"retries": {"out_of_memory": -1}}),
        "retries.out_of_memory: expected an integer of at least 0, got -1",
    ),
    (
        "spec.retries.reset.malformed",
        spec({"retries": {"reset": "never"}}),
        "retries.reset: 'never' is not a duration; write 10s, 500ms, 2m or 1h",
    ),
    (
        "spec.retries.fatal_exit_codes.out_of_range",
        spec({"retries": {"fatal_exit_codes": [0]}}),
        "retries.fatal_exit_codes[0]: expected an integer of at least 1, got 0",
    ),
    (
        "spec.deadlines.start.malformed",
        spec({"deadlines": {"start": "soon"}}),
        "deadlines.start: 'soon' is not a duration; write 10s, 500ms, 2m or 1h",
    ),
    (
        "spec.deadlines.unknown_field",
        spec({"deadlines": {"stop": "1m"}}),
        "deadlines.stop: unknown field; the fields are start, progress, live",
    ),
    (
        "spec.deadlines.live.zero",
        spec({"deadlines": {"live": "0s"}}),
        "deadlines.live: 0 would leave no time for a live resize; write a time such as 60s",
    ),
    (
        "spec.utility.worth.out_of_range",
        spec({"utility": {"worth": 0}}),
        "utility.worth: expected a number of at least 1e-06, got 0",
    ),
    (
        "spec.utility.target.malformed",
        spec({"utility": {"worth": 1, "target": "soon"}}),
        "utility.target: 'soon' is not a duration; write 10s, 500ms, 2m or 1h",
    ),
    ("spec.utility.wrong_type", spec({"utility": 3}), "utility: expected a map, got 3"),
    ("spec.work.mini_batch.missing", spec({"work": {"chunks": 4}}), "work.mini_batch: missing"),
    (
        "spec.work.mini_batch.zero",
        spec({"work": {"mini_batch": 0, "chunks": 4}}),
        "work.mini_batch: 0 would be no work at all; write a time such as 200ms",
    ),
    ("spec.user.malformed", spec({"user": "a b"}), "user: expected letters, digits and _ @ + -, at most 64, got 'a b'"),
    ("spec.user.malformed", spec({"user": "a\n"}), "user: 'a\\n' can't hold a line end"),
    ("spec.labels.malformed", spec({"labels": {"": "x"}}), "labels: a label's name is empty"),
    ("spec.labels.malformed", spec({"labels": {"a": "\0"}}), "labels.a: can't hold a NUL character"),
    ("spec.labels.wrong_type", spec({"labels": {"a": 1}}), "labels.a: expected text, got 1; write it in quotes"),
    ("spec.labels.malformed", spec({"labels": {1: "a"}}), "labels: 1 is not a name"),
]

"""`dorm policy`: what is in force, changed one value at a time, on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from dorm.cli.changes import change_of
from dorm.cli.errors import WrongUsage
from dorm.client.client import Client
from dorm.client.errors import Refused
from dorm.core.query.in_force import in_force, shown, words
from dorm.core.settings import all_after
from dorm.core.state import Settings
from dorm.master.master import Master
from dorm.policies.registry import names, parameters_of, policy, summary_of
from events.codec import decode, encode
from events.kinds import PolicyChanged, Resized, Round
from events.nats.connection import Connection
from events.spec import SpecError
from tests.core.records import document, joined
from tests.e2e.commands import done, dorm, environment, refused
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.lab.machines.nats_server import NatsServer


class TestWords:
    @pytest.mark.parametrize(
        ("pairs", "changed"),
        [
            (["theta2=0.2"], {"set_params": {"theta2": 0.2}}),
            (["theta2=default", "floor=0"], {"set_params": {"theta2": None, "floor": 0}}),
            (["quiet=500ms"], {"quiet_ms": 500}),
            (["quiet=2s", "quiet_limit=1m"], {"quiet_ms": 2000, "quiet_limit_ms": 60_000}),
            (["quiet_ms=300", "idle_s=45.5"], {"quiet_ms": 300, "idle_s": 45.5}),
            (["idle=1m", "node_grace=20s", "node_lease=5m", "retention=2d"],
             {"idle_s": 60.0, "node_grace_s": 20.0, "node_lease_s": 300.0, "retention_s": 172_800.0}),
            (["retention=1h", "retention.alice=30d", "retention.bob=default"],
             {"retention_s": 3600.0, "tenant_retention_s": {"alice": 2_592_000.0, "bob": None}}),
            (["quiet=default"], {"quiet_ms": 200}),
            (["weights=tenants"], {"weights": "tenants"}),
            (["weights=default"], {"weights": "apps"}),
            (["tenant_apps=500"], {"tenant_apps": 500}),
            (["tenant_apps=default"], {"tenant_apps": 10_000}),
            (["suspect_after=0"], {"suspect_after": 0}),
            (["suspect_after=default", "suspect_within=2h"], {"suspect_after": 3, "suspect_within_s": 7200.0}),
            (["policy=static", "count=3"], {"policy": "static", "set_params": {"count": 3}}),
            (["policy=static", "counts={a-*: 2}"], {"policy": "static", "set_params": {"counts": {"a-*": 2}}}),
            (["policy=dorm", "theta1=0.3"], {"set_params": {"theta1": 0.3}}),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )  # fmt: skip
    def test_settings_become_a_policy_change(self, pairs: list[str], changed: dict[str, Any]) -> None:
        assert change_of(pairs, Settings()) == PolicyChanged(**changed)

    @pytest.mark.parametrize(
        ("pairs", "code", "named"),
        [
            (["theta9=1"], "settings.unknown", "did you mean theta"),
            (["count=3"], "settings.unknown", "adjust_s, floor, horizon_s, max_changes, patience_s, theta1, theta2"),
            (["count=3"], "settings.unknown", "quiet, quiet_limit, idle, heartbeat, node_grace, node_lease"),
            (["policy=static", "theta1=0.1"], "settings.unknown", "backfill, count, counts"),
            (["policy=lottery"], "policy.unknown", "'lottery'"),
            (["theta1=7"], "policy.parameter.out_of_range", "theta1"),
            (["theta1=much"], "policy.parameter.wrong_type", "'much'"),
            (["theta1=["], "file.not_yaml", "theta1"),
            (["theta1=.nan"], "policy.parameter.out_of_range", "nan"),
            (["quiet=20m"], "settings.quiet.out_of_range", "20m"),
            (["quiet=soon"], "settings.quiet.malformed", "'soon'"),
            (["quiet_ms=500ms"], "settings.quiet.malformed", "quiet_ms"),
            (["quiet_ms=nan"], "settings.quiet.out_of_range", "nan"),
            (["idle=500ms"], "settings.idle.out_of_range", "500ms"),
            (["weights=users"], "settings.weights.unknown", "'users'"),
            (["tenant_apps=0"], "settings.tenant_apps.malformed", "from 1 to 1,000,000"),
            (["tenant_apps=many"], "settings.tenant_apps.malformed", "'many'"),
            (["suspect_after=33"], "settings.suspect_after.malformed", "from 0 to 32"),
            (["suspect_within=10s"], "settings.suspect_within.out_of_range", "10s"),
            (["theta1=0.1", "theta1=0.2"], "settings.given_twice", ""),
            (["quiet=1s", "quiet_ms=200"], "settings.given_twice", "quiet"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_invalid_settings_are_refused(self, pairs: list[str], code: str, named: str) -> None:
        with raises(SpecError, code, named):
            change_of(pairs, Settings())

    def test_an_argument_without_a_value_is_refused(self) -> None:
        with raises(WrongUsage, "usage.not_a_pair", "theta1"):
            change_of(["theta1"], Settings())

    @pytest.mark.parametrize("name", names())
    def test_every_setting_has_a_description(self, name: str) -> None:
        assert summary_of(name)
        declared = parameters_of(name)
        assert {key: parameter.default for key, parameter in declared.items()} == policy(name).check_params({})
        assert all(parameter.meaning for parameter in declared.values())
        parameters, times = in_force(Settings(policy=name))
        assert {one.name for one in times} | {"policy", "params", "checkpoints", "tenant_retention_s"} == set(
            Settings().__struct_fields__
        )
        assert len(words(Settings(policy=name))) == len(parameters) + len(times) + 2

    def test_shown_settings_can_be_set_again(self) -> None:
        for settings in (
            Settings(),
            Settings(quiet_ms=1500, quiet_limit_ms=2000, idle_s=90, node_lease_s=3600, retention_s=0),
            Settings(tenant_retention_s={"alice": 60.0, "bob@x+y": 0.0}),
            Settings(weights="tenants"),
            Settings(tenant_apps=20_000),
            Settings(suspect_after=0, suspect_within_s=60.0),
        ):
            parameters, times = in_force(settings)
            pairs = [f"{one.word}={shown(one, one.value)}" for one in (*parameters, *times)]
            again = all_after(Settings(), change_of(pairs, Settings()))
            assert in_force(again) == (parameters, times)


class Lab:
    def __init__(self, home: Path, common: list[str], client: Client, connection: Connection) -> None:
        self.home, self.common, self.client, self.connection = home, common, client, connection

    async def policy(self, *arguments: str) -> str:
        return await done(self.home, "policy", *arguments, *self.common)

    async def refuses(self, *arguments: str, code: int = 2) -> str:
        return await refused(self.home, "policy", *arguments, *self.common, code=code)


@pytest_asyncio.fixture
async def lab(tmp_path: Path, nats_server: NatsServer) -> AsyncIterator[Lab]:
    """A cluster without a master: settings are in the log."""
    name = f"policy-{tmp_path.name[-30:]}"
    connection = await Connection.open(nats_server.url, name, create=True)
    client = Client(connection.log, connection.bus, name, user="tester", connection=connection)
    async with client:
        yield Lab(tmp_path / "home", ["--url", nats_server.url, "--cluster", name], client, connection)


@pytest.mark.nats
@pytest.mark.slow
async def test_show_set_and_show_again(lab: Lab) -> None:
    before = json.loads(await lab.policy("show", "-o", "json"))
    assert (before["policy"], before["version"]) == ("dorm", policy("dorm").version)
    assert all(one["value"] == one["default"] and one["meaning"] for one in before["parameters"] + before["times"])
    said = await lab.policy("set", "theta2=0.2", "quiet=500ms")
    assert said == "theta2: 0.1 -> 0.2\nquiet: 200ms -> 500ms\n"
    assert await lab.policy("set", "floor=0.25") == "floor: 0.5 -> 0.25\n", "what is not named stays"
    after = json.loads(await lab.policy("show", "-o", "json"))
    values = {one["name"]: one["value"] for one in after["parameters"] + after["times"]}
    defaults = {one["name"]: one["default"] for one in after["parameters"] + after["times"]}
    assert values == {**defaults, "theta2": 0.2, "floor": 0.25, "quiet_ms": 500}
    table = await lab.policy("show")
    assert next(line.split()[:3] for line in table.splitlines() if line.startswith("theta2")) == [
        "theta2",
        "0.2",
        "0.1",
    ]
    assert "how long the log must be quiet" in table
    assert await lab.policy("get", "theta2") == "0.2\n"
    assert await lab.policy("get", "quiet") == await lab.policy("get", "quiet_ms") == "500ms\n"
    assert json.loads(await lab.policy("get", "quiet", "-o", "json"))["value"] == 500
    assert await lab.policy("get", "policy") == "dorm\n"
    end = await lab.connection.log.end()
    assert "nothing to change" in await lab.policy("set", "theta2=0.2")
    assert "[settings.unknown]" in await lab.refuses("set", "theta9=1")
    assert "[policy.parameter.out_of_range]" in await lab.refuses("set", "theta2=0.3", "floor=9")
    assert "[usage.not_a_pair]" in await lab.refuses("set", "theta2")
    assert "[usage.missing_parameter]" in await lab.refuses("set")
    assert "[settings.unknown]" in await lab.refuses("get", "theta9")
    assert await lab.connection.log.end() == end, "nothing of what was refused, or is so already, is on the log"
    said = await lab.policy("set", "policy=static", "count=3")
    assert said.splitlines()[0] == "policy: dorm -> static"
    assert "count: 3" in said
    assert (await lab.client.state()).settings.params == {"count": 3}


@pytest.mark.nats
@pytest.mark.slow
async def test_a_policy_that_is_not_installed_here_is_set_with_a_warning(lab: Lab) -> None:
    """The masters may have it."""
    program = "from dorm import plugins; plugins.laboratory_names = list; from dorm.cli.main import main; main()"

    async def without_the_laboratory(*arguments: str) -> tuple[int | None, str, str]:
        command = [sys.executable, "-c", program, "policy", *arguments, *lab.common]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, env=environment(lab.home), stdout=pipe, stderr=pipe)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    code, out, err = await without_the_laboratory("set", "policy=tiresias", "count=3", "--dry-run")
    assert (code, out.splitlines()[0]) == (0, "accepted; nothing has been changed")
    assert err.startswith("warning: tiresias is part of the laboratory, which is not installed here, so which apps")
    code, out, err = await without_the_laboratory("set", "policy=tiresias", "count=3")
    assert (code, out.splitlines()[0]) == (0, "policy: dorm -> tiresias")
    assert err.startswith(
        "warning: tiresias is part of the laboratory, which is not installed here, so the masters decide"
    )
    assert (await lab.client.state()).settings.params == {"count": 3}
    code, out, err = await without_the_laboratory("show")
    assert (code, err) == (0, "")
    assert out.startswith("policy tiresias: not installed here\n")


@pytest.mark.nats
@pytest.mark.slow
async def test_a_shorter_lease_states_when_it_takes_effect(lab: Lab) -> None:
    first, second = (await lab.policy("set", "node_lease=30s")).splitlines()
    assert first == "node_lease: 5m -> 30s"
    assert second.startswith("the shorter lease applies on a node as soon as its agent has read it, and for the master")
    assert await lab.policy("set", "node_lease=40s") == "node_lease: 30s -> 40s\n"


@pytest.mark.nats
@pytest.mark.slow
async def test_two_operators_at_once_lose_nothing(lab: Lab) -> None:
    """Each decided on what it saw; the fold merges."""
    await asyncio.gather(
        lab.client.change_policy(PolicyChanged(set_params={"theta2": 0.2})),
        lab.client.change_policy(PolicyChanged(set_params={"theta1": 0.3})),
        lab.policy("set", "floor=0.1"),
        lab.policy("set", "horizon_s=3000"),
    )
    params = (await lab.client.state()).settings.params
    assert params == {"theta2": 0.2, "theta1": 0.3, "floor": 0.1, "horizon_s": 3000}
    with raises(Refused, "policy.parameter.unknown", "count"):
        await lab.client.change_policy(PolicyChanged(set_params={"count": 3}))


@pytest.mark.nats
@pytest.mark.slow
async def test_a_change_holds_from_the_next_decision_on(lab: Lab) -> None:
    master = Master(lab.connection.log, lab.connection.bus, lab.client.cluster, name="m", clock=time.time_ns)
    leading = asyncio.create_task(master.run())
    try:
        async with asyncio.timeout(60):
            await master.elected.wait()
            await lab.client.submit(document("first"))
            assert (await _decision(lab, 1)).params["theta2"] == 0.1
            await lab.policy("set", "theta2=0.25", "quiet=0s")
            await lab.client.submit(document("second"))
            assert (await _decision(lab, 2)).params["theta2"] == 0.25
    finally:
        leading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leading


async def _decision(lab: Lab, number: int) -> Resized:
    """The first that gives reasons for so many apps."""
    async for record in lab.client.records(follow=True):
        event = decode(record)
        for fact in event.events if isinstance(event, Round) else []:
            if isinstance(fact, Resized) and len(fact.reasons) == number:
                return fact
    raise AssertionError("a log that is followed does not end")


@pytest.mark.nats
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "incomplete", "wanted"),
    [
        ("set", "th", ["theta1=", "theta2="]),
        ("set", "policy", ["policy=", *(f"policy={name}" for name in names())]),
        ("get", "quiet", ["quiet", "quiet_limit"]),
    ],
)
async def test_keys_are_completed(lab: Lab, command: str, incomplete: str, wanted: list[str]) -> None:
    line = " ".join(["dorm", "policy", command, incomplete])
    env = {
        "_DORM_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "3",
        "DORM_URL": lab.common[1], "DORM_CLUSTER": lab.common[3],
    }  # fmt: skip
    _, out, _ = await dorm(lab.home, env=env)
    assert out.split() == wanted


@pytest.mark.slow
@pytest.mark.usefixtures("only_policies_of_ours")
async def test_the_list_of_policies_needs_no_cluster(tmp_path: Path) -> None:
    rows = json.loads(await done(tmp_path, "policy", "list", "-o", "json"))
    assert [row["policy"] for row in rows] == names()
    assert [row["policy"] for row in rows if row["default"]] == ["dorm"]
    assert all(row["meaning"] for row in rows)
    assert [row["policy"] for row in rows if not row["parameters"]] == ["drf", "market"]
    assert "never resized" in await done(tmp_path, "policy", "list")


@pytest.mark.nats
@pytest.mark.slow
async def test_settings_that_would_destroy_are_refused_at_every_entry(lab: Lab) -> None:
    assert "[settings.node_lease.below_grace]" in await lab.refuses("set", "node_lease=1s")
    with raises(Refused, "settings.node_lease.below_grace", "node_grace"):
        await lab.client.change_policy(PolicyChanged(node_grace_s=600))
    end = await lab.connection.log.end()
    assert end == 0, "nothing of it is on the log"
    body = b'{"kind": "PolicyChanged", "by": "eve", "node_lease_s": 1, "policy": "static"}'
    await lab.connection.log.append(f"dorm.{lab.client.cluster}.PolicyChanged.eve", body)
    state = await lab.client.state()
    assert (state.settings.node_lease_s, state.settings.policy) == (300.0, "dorm")
    assert "refused: a change by eve (record 1): node_lease (1s)" in await lab.policy("show")
    assert json.loads(await lab.policy("show", "-o", "json"))["refused"][0]["seq"] == 1


@pytest.mark.nats
@pytest.mark.slow
async def test_a_dry_run_shows_the_failed_constraint_and_the_affected_apps(lab: Lab) -> None:
    for node in ("a", "b"):
        body = encode(joined(node))
        await lab.connection.log.append(f"dorm.{lab.client.cluster}.NodeJoined.{node}", body)
    end = await lab.connection.log.end()
    code, out, _ = await dorm(lab.home, "policy", "set", "node_lease=1s", "--dry-run", "-o", "json", *lab.common)
    bad = json.loads(out)
    assert code == 1
    assert bad["accepted"] is False
    assert bad["changes"] == ["node_lease: 5m -> 1s"]
    assert [one["holds"] for one in bad["constraints"]] == [True, False, False, True, True]
    good = await lab.policy("set", "node_lease=1m", "--dry-run")
    assert "node_lease: 5m -> 1m" in good
    assert "2 nodes (a, b): another lease from the next heartbeat on" in good
    assert await lab.connection.log.end() == end, "a dry run changes nothing"

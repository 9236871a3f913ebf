"""A real cluster is scraped; alert rules, dashboard and documentation name only existing metrics."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
import yaml

from dorm.deploy.backups import Kept, report
from dorm.local.cluster import LocalCluster, LocalOptions
from dorm.metrics.address import Address, MetricsError, parse_address
from dorm.metrics.families import ALL
from dorm.metrics.server import MetricsServer
from events.nats.connection import Connection
from tests.e2e.ports import own_ports
from tests.e2e.story import until
from tests.errors import raises
from tests.metrics.scrapes import references, series, values

if TYPE_CHECKING:
    from collections.abc import ItemsView, Iterable

    from prometheus_client import Metric

    from tests.metrics.scrapes import Series

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "compose" / "monitoring"
_LEGEND = re.compile(r"\{\{\s*\$?(?:labels\.)?(\w+)")
_SCRAPED = {"cluster", "instance", "job"}
"""Labels that Prometheus adds to what it scrapes: `cluster` by the configuration of `compose/monitoring`."""


async def get(url: str) -> bytes:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/plain"
        return await answer.read()


def options(data: Path) -> LocalOptions:
    return LocalOptions(
        data=data,
        cluster="metrics",
        agents=2,
        capacity={"cpu": 1000, "memory": 2**30, "licence": 1},
        ports=own_ports(),
        runtime="process",
        report_interval_s=0.5,
        progress_interval_s=0.2,
        metrics=Address("127.0.0.1", 0),
        webhooks=(),
    )


async def counted(cluster: LocalCluster) -> bytes:
    """A scrape that has everything which the log holds now."""
    end = await cluster.client.log.end()
    async with asyncio.timeout(30):
        while True:
            body = await get(cluster.metrics_url)
            if values(body).get(("dorm_folded_sequence", ()), 0) >= end:
                return body
            await asyncio.sleep(0.1)


@pytest.mark.nats
@pytest.mark.slow
async def test_a_cluster_is_scraped_and_its_counters_survive_a_restart(tmp_path: Path) -> None:
    async with LocalCluster(options(tmp_path)) as cluster:
        app = await cluster.client.submit(
            {"name": "hello", "command": ["sleep", "0.2"], "demand": {"cpu": "500m"}, "n_max": 2}
        )
        await until(cluster.client, lambda state: bool(state.apps[app.id].ended), "it ends")
        connection = await Connection.open(cluster.server.url, cluster.options.cluster)
        await connection.stream.set_limit(10**9)
        await connection.close()
        body = await counted(cluster)
        await cluster.stop()
    found, have = values(body), series(body)
    assert found["dorm_apps_ended_total", (("outcome", "completed"),)] == 1
    assert found["dorm_adjustments_total", (("kind", "start"),)] == 1
    assert found["dorm_nodes", (("condition", "up"),)] == 2
    assert found["dorm_capacity", (("resource", "cpu"),)] == 2.0
    assert found["dorm_capacity", (("resource", "memory"),)] == 2 * 2**30
    assert found["dorm_capacity_cores", ()] == 2.0
    assert found["dorm_capacity_memory_bytes", ()] == 2 * 2**30
    assert found["dorm_master_leading", ()] == 1
    assert found["dorm_master_solve_seconds_count", ()] >= 1
    assert found["dorm_log_size_bytes", ()] > 1000
    assert found["dorm_log_limit_bytes", ()] == 10**9
    assert found["dorm_log_up", ()] == 1
    assert {labels["node"] for labels in have["dorm_agent_joined"]} == {"node-1", "node-2"}
    assert found["process_resident_memory_bytes", ()] > 10e6
    assert {name for name in have if name.startswith("dorm_")} == set(_samples(have))
    report(Kept("lab.dorm", 7, 512, "", []), "metrics", 10**18, tmp_path / "backup.prom")
    check_rules(have | series((tmp_path / "backup.prom").read_bytes()))
    check_dashboard(have)
    check_documentation()

    async with LocalCluster(options(tmp_path)) as cluster:
        after = values(await counted(cluster))
        await cluster.stop_now()
    assert after["dorm_counted_from_sequence", ()] == 0
    assert after["dorm_apps_ended_total", (("outcome", "completed"),)] == 1
    assert after["dorm_elections_total", ()] == found["dorm_elections_total", ()] + 1
    total = sum(value for (name, _), value in after.items() if name == "dorm_records_total")
    assert total == after["dorm_folded_sequence", ()]


def _samples(have: Series) -> Iterable[str]:
    """The names under which the samples of all families appear; every family has to be there."""
    for family in ALL.values():
        suffixes = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        for suffix in suffixes:
            assert f"{family.name}{suffix}" in have, f"{family.name} is declared and was not scraped"
            yield f"{family.name}{suffix}"


def check_expression(have: Series, expression: str) -> set[str]:
    """Every series and label that it names is there.  Returns the labels that its results may have."""
    labels: set[str] = set()
    found = references(expression)
    assert found, expression
    for one in found:
        assert one.name in have, f"{one.name}, in {expression}"
        there = {name for series in have[one.name] for name in series} | _SCRAPED
        assert one.labels <= there, f"{one.labels - there}, in {expression}"
        chosen = [series for series in have[one.name] if _own(one.equal) <= series.items()]
        assert chosen, f"{one.name}{one.equal}, in {expression}"
        labels |= there
    return labels


def _own(equal: dict[str, str]) -> ItemsView[str, str]:
    return {name: value for name, value in equal.items() if name not in _SCRAPED}.items()


def check_rules(have: Series) -> None:
    document: dict[str, Any] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 10
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        labels = check_expression(have, rule["expr"])
        for text in rule["annotations"].values():
            used = set(re.findall(r"\$labels\.(\w+)", text))
            assert used <= labels, f"{rule['alert']} shows {used - labels}"


def check_dashboard(have: Series) -> None:
    board: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(targets) > 20
    for target in targets:
        labels = check_expression(have, target["expr"])
        used = set(_LEGEND.findall(target["legendFormat"]))
        assert used <= labels, f"{target['expr']} shows {used - labels}"


def check_documentation() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = dict(re.findall(r"^\| `(dorm_\w+)` \| (\w+) \|", text, re.MULTILINE))
    assert rows == {family.name: family.type for family in ALL.values()}
    for family in ALL.values():
        row = next(line for line in text.splitlines() if line.startswith(f"| `{family.name}` |"))
        assert all(f"`{label}`" in row for label in family.labels), family.name
        assert family.help in row, family.name


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9000", Address("127.0.0.1", 9000)),
        (":9000", Address("127.0.0.1", 9000)),
        ("0.0.0.0:9000", Address("0.0.0.0", 9000)),
        ("[::1]:9000", Address("::1", 9000)),
        ("off", None),
    ],
)
def test_addresses(text: str, address: Address | None) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "1:2:3", "host:99999", "::1:9000"])
def test_invalid_addresses_are_refused(text: str) -> None:
    with raises(MetricsError, "metrics.address.malformed"):
        parse_address(text)


async def test_an_address_in_use_is_refused_or_left_for_another() -> None:
    async with MetricsServer(Address("127.0.0.1", 0), []) as first:
        with pytest.raises(MetricsError, match="choose another"):
            async with MetricsServer(first.address, []):
                pass
        async with MetricsServer(first.address, [], else_any_port=True) as second:
            assert second.address.port not in (0, first.address.port)


async def test_a_part_that_fails_leaves_the_others() -> None:
    async def broken() -> list[Metric]:
        raise RuntimeError("no")

    async with MetricsServer(Address("127.0.0.1", 0), [broken]) as server:
        body = await get(f"http://{server.address}/metrics")
        assert ("process_open_fds", ()) in values(body)
        async with aiohttp.ClientSession() as session:
            for method, path, status in (("GET", "/", 404), ("POST", "/metrics", 405)):
                async with session.request(method, f"http://{server.address}{path}") as answer:
                    assert answer.status == status

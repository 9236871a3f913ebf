"""Prometheus's own tool accepts the rules and the configuration, and the gravest alerts fire on time."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "compose" / "monitoring"
PROMTOOL = shutil.which("promtool")

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool (Debian's package prometheus)")
FIRES: list[tuple[str, dict[str, str], str, dict[str, str]]] = [
    # Alert, series as promtool has them (value, step, repetitions, one a minute), when, labels
    ("DormNoLeader", {'dorm_master_leading{instance="a"}': "0x10"}, "2m", {"severity": "critical"}),
    ("DormNoLeader", {}, "2m", {"severity": "critical"}),  # No process answers.
    ("DormLogDown", {"dorm_log_up": "0x10"}, "2m", {"severity": "critical"}),
    (
        "DormLogNearlyFull",
        {"dorm_log_size_bytes": "90x20", "dorm_log_limit_bytes": "100x20"},
        "10m",
        {"severity": "critical"},
    ),
    ("DormNodeSuspect", {'dorm_nodes{condition="suspect"}': "0x5 1x20"}, "15m", {"severity": "warning"}),
    ("DormRotationFails", {'dorm_rotations_total{outcome="failed"}': "0 0 1x100"}, "60m", {"severity": "warning"}),
]
QUIET: dict[str, str] = {
    'dorm_master_leading{instance="a"}': "1x432",
    'dorm_master_leading{instance="b"}': "0x432",
    'dorm_nodes{condition="suspect"}': "0x432",
    "dorm_log_up": "1x432",
    "dorm_log_size_bytes": "70x432",
    "dorm_log_limit_bytes": "100x432",
    'dorm_rotations_total{outcome="failed"}': "3x432",
    'dorm_rotations_total{outcome="done"}': "0+1x432",
    'dorm_backup_time_seconds{cluster="lab"}': "0+600x432",
}
"""A cluster that is well for three days, with a value each ten minutes."""


TWO: list[tuple[str, dict[str, str]]] = [
    # Alert, series of cluster a, which is well, and of cluster b, for which it fires.
    ("DormNoLeader", {'dorm_master_leading{cluster="a"}': "1x30", 'dorm_master_leading{cluster="b"}': "0x30"}),
    ("DormNoLeader", {'dorm_master_leading{cluster="a"}': "1x30", 'dorm_master_leading{cluster="b"}': "1x5 stale"}),
    (
        "DormSeveralLeaders",
        {
            'dorm_master_leading{cluster="a"}': "1x30",
            'dorm_master_leading{cluster="b",instance="1"}': "1x30",
            'dorm_master_leading{cluster="b",instance="2"}': "1x30",
        },
    ),
    (
        "DormLogNearlyFull",
        {
            'dorm_log_size_bytes{cluster="a"}': "40e9x30",
            'dorm_log_limit_bytes{cluster="a"}': "100e9x30",
            'dorm_log_size_bytes{cluster="b"}': "9e9x30",
            'dorm_log_limit_bytes{cluster="b"}': "10e9x30",
        },
    ),
]


def said(*words: str) -> str:
    """What promtool prints; it has to be content."""
    done = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, cwd=MONITORING, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_accepts_rules_and_configuration() -> None:
    rules: dict[str, Any] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    count = sum(len(group["rules"]) for group in rules["groups"])
    assert f"SUCCESS: {count} rules found" in said("check", "rules", "alerts.yaml")
    assert "SUCCESS" in said("check", "config", "prometheus.yaml")


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    rules: dict[str, Any] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    # What the labels and not the texts are; texts are templates of Prometheus.
    kept = {"groups": [{**group, "rules": [_bare(rule) for rule in group["rules"]]} for group in rules["groups"]]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(kept))
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [{"alertname": alert, "eval_time": when, "exp_alerts": [{"exp_labels": labels}]}],
        }
        for alert, series, when, labels in FIRES
    ]
    tests += [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [
                {
                    "alertname": alert,
                    "eval_time": "20m",
                    "exp_alerts": [{"exp_labels": {"cluster": "b", "severity": _severity(kept, alert)}}],
                }
            ],
        }
        for alert, series in TWO
    ]
    check(tmp_path, tests, "1m")
    days: list[dict[str, Any]] = [
        {
            "interval": "10m",
            "input_series": [{"series": name, "values": values} for name, values in QUIET.items()],
            "alert_rule_test": [
                {"alertname": alert, "eval_time": "3d", "exp_alerts": []} for alert in sorted({one[0] for one in FIRES})
            ],
        },
        {
            "interval": "10m",
            "input_series": [{"series": 'dorm_backup_time_seconds{cluster="lab"}', "values": "0x432"}],
            "alert_rule_test": [
                {
                    "alertname": "DormBackupOld",
                    "eval_time": "3d",
                    "exp_alerts": [{"exp_labels": {"severity": "warning", "cluster": "lab"}}],
                }
            ],
        },
    ]
    check(tmp_path, days, "10m")


def check(folder: Path, tests: list[dict[str, Any]], interval: str) -> None:
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": interval, "tests": tests}
    (folder / "tests.yaml").write_text(yaml.safe_dump(document))
    assert "SUCCESS" in said("test", "rules", str(folder / "tests.yaml"))


def test_rules_and_panels_look_at_each_cluster_by_itself() -> None:
    """An aggregation without `cluster` adds or compares figures of different clusters."""
    rules: dict[str, Any] = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    for expression in (rule["expr"] for group in rules["groups"] for rule in group["rules"]):
        aggregations = re.findall(r"\b(?:sum|max|min|count|avg)\b([^(]*)\(([^)]*)", expression)
        assert all(by.strip() == "by" and "cluster" in labels for by, labels in aggregations), expression
    board: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            metrics = re.findall(r"\b(?:dorm|process)_\w+(.{18})", target["expr"])
            assert metrics, target["expr"]
            assert set(metrics) == {'{cluster="$cluster'}, target["expr"]


def _severity(rules: dict[str, Any], alert: str) -> str:
    (rule,) = [rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == alert]
    return str(rule["labels"]["severity"])


def _bare(rule: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rule.items() if name != "annotations"}

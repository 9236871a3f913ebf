"""Prometheus's own tool accepts the rules and the configuration, and the gravest alerts fire on time."""

from __future__ import annotations

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
    (
        "DormBackupOld",
        {
            'dorm_backup_time_seconds{cluster="lab"}': "-172000x40"
        },  # two days before promtool's clock, which begins with 0
        "30m",
        {"severity": "warning", "cluster": "lab"},
    ),
]
QUIET: dict[str, str] = {
    'dorm_master_leading{instance="a"}': "1x480",
    'dorm_master_leading{instance="b"}': "0x480",
    'dorm_nodes{condition="suspect"}': "0x480",
    "dorm_log_up": "1x480",
    "dorm_log_size_bytes": "70x480",
    "dorm_log_limit_bytes": "100x480",
    'dorm_rotations_total{outcome="failed"}': "3x480",
    'dorm_rotations_total{outcome="done"}': "0+1x480",
    'dorm_backup_time_seconds{cluster="lab"}': "0+60x480",
}
"""A cluster that is well for longer than the longest range of a rule."""


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
    tests.append(
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in QUIET.items()],
            "alert_rule_test": [
                {"alertname": alert, "eval_time": "8h", "exp_alerts": []} for alert in sorted({one[0] for one in FIRES})
            ],
        }
    )
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(document))
    assert "SUCCESS" in said("test", "rules", str(tmp_path / "tests.yaml"))


def _bare(rule: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rule.items() if name != "annotations"}

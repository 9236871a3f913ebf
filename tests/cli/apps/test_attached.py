"""What a terminal that follows an app says about its place."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dorm.cli.attached import Attached
from events import kinds as k
from tests.core.records import Bench

if TYPE_CHECKING:
    import pytest


def test_a_delay_is_said_once_and_again_when_its_reason_changes(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(a=4)
    bench.submit(n_max=1)
    bench.settle()
    attached = Attached(cast("Any", None), bench.app(), Path())

    def told(**fields: Any) -> list[str]:
        app = bench.app()
        said = {"app": app.id, "generation": 1, "slot": 0, "node": "a", "doing": "create", "reason": "a full disk"}
        bench.add(k.ContainerDelayed(**{**said, "for_s": 12.0, **fields}), "a")
        attached.app = bench.app()
        attached._print_phase()
        return capsys.readouterr().err.splitlines()

    (line,) = told()
    assert line.startswith("app: starting: a can't create it: a full disk (")
    assert told() == []
    (line,) = told(reason="no processes")
    assert "no processes" in line
    bench.started()
    attached._print_phase()
    assert capsys.readouterr().err.splitlines() == ["app: running, 1 container"]

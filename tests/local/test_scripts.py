"""Scripts in commands as people type them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.local.commands import CommandRefused
from dorm.local.scripts import check_script, script_of, unshipped
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py --lr 0.1", "train.py"),
        ("/usr/bin/python3.11 -u src/train.py", "src/train.py"),
        ("python -m pkg.train data.py", ""),
        ("python -c print(1) train.py", ""),
        ("python /srv/train.py", ""),
        ("./go.sh now.py", "./go.sh"),
        ("bash -eu go.sh", "go.sh"),
        ("python", ""),
        ("sleep 5", ""),
        ("", ""),
    ],
)
def test_the_script_of_a_command(command: str, script: str) -> None:
    assert script_of(command.split()) == script


def test_a_missing_script_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    check_script(["python", "src/train.py"], tmp_path)
    with raises(CommandRefused, "run.script.not_found") as refused:
        check_script(["python", "src/trian.py"], tmp_path)
    assert str(refused.value).endswith("did you mean src/train.py?")
    with raises(CommandRefused, "run.script.not_found") as refused:
        check_script(["python", "other/model.py"], tmp_path)
    assert "did you mean" not in str(refused.value)
    assert unshipped(["python", "src/train.py"], tmp_path) == "src/train.py"
    assert unshipped(["python", "src/trian.py"], tmp_path) == ""

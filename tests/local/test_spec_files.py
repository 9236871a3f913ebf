"""Spec files: their lines in errors, and files of other systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.local.spec_files import load_spec, parse_spec, read_spec, with_settings
from events.spec import SpecError, check_spec
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: mnist}\nspec: {completions: 4}\n"


@pytest.mark.parametrize(
    ("name", "text", "page"),
    [
        ("job.yaml", MANIFEST, "kubernetes"),
        ("job.yaml", f"{MANIFEST}---\n{MANIFEST}", "kubernetes"),
        ("job.json", '{"apiVersion": "batch/v1", "kind": "Job"}', "kubernetes"),
        ("sky.yaml", "num_nodes: 2\nsetup: pip install torch\nrun: |\n  torchrun train.py\n", "skypilot"),
        ("sky.yaml", "name: gpt\nresources:\n  accelerators: A100:8\nrun: python train.py\n", "skypilot"),
        ("sky.yaml", "resources:\n  accelerators: A100:8\nsetup: |\n  pip install torch\n", "skypilot"),
        ("train.yml", "type: task\nname: train\ncommands:\n  - python train.py\nresources: {gpu: 24GB}\n", "dstack"),
        (".dstack.yml", "type: dev-environment\nide: vscode\n", "dstack"),
        ("train.dstack.yml", "name: a\n", "dstack"),
        ("compose.yaml", "services:\n  train:\n    image: pytorch\n", "docker-compose"),
        ("ray.yaml", "cluster_name: a\nprovider: {type: aws}\n", "ray"),
        ("job.sh", "#!/bin/bash\n#SBATCH --ntasks=4\nsrun python train.py\n", "slurm"),
        ("job.toml", "#!/bin/bash\n#SBATCH --ntasks=4\nsrun python train.py\n", "slurm"),
    ],
)
def test_files_of_other_systems_point_to_their_page(tmp_path: Path, name: str, text: str, page: str) -> None:
    (tmp_path / name).write_text(text)
    with raises(SpecError, f"spec.foreign.{page.replace('-', '_')}", name, f"docs/coming-from/{page}.md"):
        load_spec(tmp_path / name)
    if not name.startswith((".", "train.d", "job.t")):
        with raises(SpecError, f"spec.foreign.{page.replace('-', '_')}"):
            parse_spec(text)


def test_an_own_spec_is_never_foreign(tmp_path: Path) -> None:
    text = (
        "name: a\ncommand: [sh, -c, '#SBATCH']\ndemand: {cpu: 1}\nsetup: [echo run]\nlabels: {kind: a, services: b}\n"
    )
    (tmp_path / "app.yaml").write_text(text)
    assert load_spec(tmp_path / "app.yaml").setup == ["echo run"]


def test_files_that_are_missing_are_reported_with_everything_else(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(
        "name: a\ncommand: [run]\nn_min: x\nenv_file: none.env\ndemand: {cpu: 1}\ncolour: 1\n"
    )
    with raises(SpecError, "spec.n_min.wrong_type", "line 3") as caught:
        load_spec(tmp_path / "app.yaml")
    assert [one.code for one in caught.value.others] == ["system.enoent", "spec.unknown_field"]


def test_an_error_that_follows_from_another_is_not_reported() -> None:
    spec = {
        "name": "a",
        "command": ["run"],
        "demand": {"cpu": "x"},
        "engine": "spark",
        "engine_options": {"restarts": 2},
        "n_min": 0,
    }
    with pytest.raises(SpecError) as caught:
        check_spec(spec, every=True)
    codes = [one.code for one in (caught.value, *caught.value.others)]
    assert codes == ["spec.engine.not_a_choice", "spec.n_min.out_of_range", "spec.demand.malformed"]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"batch": {"initial": "a", "least": [], "most": {}, "per_container": None}},
        {"name": 3, "command": [1, 2, 3], "demand": {}, "env": {"A": 1}, "speed": [[1, "a"]], "after": [{"app": 1}, 2]},
        {"retries": 3, "group": {"parameters": {"p": []}, "index": -1}, "volumes": {"a": 1}, "notify": {"on": []}},
        {
            "name": "x" * 99,
            "command": [],
            "demand": {"": 1, "cpu": []},
            "labels": {"a": 1},
            "workdir": 3,
            "python": 3.1,
        },
        {"env": {f"V{n}": n for n in range(50)}},
    ],
)
def test_the_first_of_all_errors_is_the_one_that_is_raised_alone(spec: dict[str, object]) -> None:
    with pytest.raises(SpecError) as every:
        check_spec(spec, every=True)
    with pytest.raises(SpecError) as one:
        check_spec(spec)
    assert (str(one.value), one.value.code, one.value.others) == (str(every.value), every.value.code, ())
    texts = [str(error) for error in (every.value, *every.value.others)]
    assert 1 < len(texts) == len(set(texts)) <= 20


def test_a_typed_setting_is_read_by_its_place() -> None:
    changed = with_settings(
        {}, ["python=3.10", "env.A=010", "labels.b=no", "n_max=4", "command=[run, 010]", "weight=1e-1", "hold=yes"]
    )
    assert changed == {
        "python": "3.10", "env": {"A": "010"}, "labels": {"b": "no"}, "n_max": 4, "command": ["run", "010"], "weight": 0.1,
        "hold": True,
    }  # fmt: skip


def test_toml_files_have_their_texts(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('name = "a"\ncommand = ["run", 1e-4, 0x10, true]\nn_max = 0x10\n[env]\nR = 1.50\n')
    found = read_spec(tmp_path / "a.toml").value
    assert found == {"name": "a", "command": ["run", "1e-4", "0x10", "true"], "n_max": 16, "env": {"R": "1.50"}}

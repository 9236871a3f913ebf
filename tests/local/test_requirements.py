"""What a requirements.txt and a uv.lock become in a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dorm.local.spec_files import load_spec
from events.spec import SpecError, check_spec
from tests.core.records import document
from tests.errors import raises

if TYPE_CHECKING:
    from pathlib import Path

SPEC = "{name: app, command: [work], demand: {cpu: 1}, "


def loaded(folder: Path, more: str, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    (folder / "app.yaml").write_text(SPEC + more + "}")
    return load_spec(folder / "app.yaml").requirements


def test_lines_are_sent_without_comments_and_with_their_includes(tmp_path: Path) -> None:
    text = "# ours\nnumpy>=2 # why\n\n-r other.txt\ntorch==2.5 \\\n    --hash=sha256:ab \\\n    --hash=sha256:cd\n--no-index\n"
    found = loaded(tmp_path, "requirements_file: first.txt", first=text, other="einops # x\n")
    assert found == ["numpy>=2", "einops", "torch==2.5  --hash=sha256:ab  --hash=sha256:cd", "--no-index"]


@pytest.mark.parametrize(
    ("more", "files", "code"),
    [
        ("requirements_file: none.txt", {}, "system.enoent"),
        ("requirements_file: [a]", {}, "spec.requirements_file.wrong_type"),
        ("requirements_file: a.txt, requirements: [b]", {"a": "c"}, "spec.requirements_file.twice"),
        ("requirements_file: a.txt", {"a": "-r a.txt"}, "spec.requirements_file.too_deep"),
        ("requirements_file: a.txt", {"a": "-e ."}, "spec.requirements.local"),
        ("requirements_file: a.txt", {"a": "./wheel.whl"}, "spec.requirements.local"),
        ("requirements_file: a.txt", {"a": "-c other.txt"}, "spec.requirements.local"),
        ("requirements_file: a.txt", {"a": "--index-url https://me:secret1234@pypi.lab/simple"}, "spec.requirements.secret"),
        ("requirements_file: uv.lock", {}, "spec.requirements_file.uv_failed"),
        ("requirements: numpy", {}, "spec.requirements.wrong_type"),
        ("setup: make", {}, "spec.setup.wrong_type"),
        ("python: 3", {}, "spec.python.malformed"),
        ("python: three", {}, "spec.python.malformed"),
    ],
)  # fmt: skip
def test_refused_in_one_line(tmp_path: Path, more: str, files: dict[str, str], code: str) -> None:
    with raises(SpecError, code, "app.yaml"):
        loaded(tmp_path, more, **files)


def test_a_version_without_quotes_is_read_where_it_can_mean_only_one(tmp_path: Path) -> None:
    (tmp_path / "app.yaml").write_text(SPEC + "python: 3.12}")
    assert load_spec(tmp_path / "app.yaml").python == "3.12"
    with raises(SpecError, "spec.python.not_quoted"):
        check_spec(document(python=3.12))


def test_a_lock_file_is_exported_by_uv_with_its_hashes(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[project]\nname = 'mine'\nversion = '1'\nrequires-python = '>=3.11'\ndependencies = ['einops']\n"
    )
    (tmp_path / "uv.lock").write_text(
        'version = 1\nrequires-python = ">=3.11"\n\n[[package]]\nname = "einops"\nversion = "0.8.0"\n'
        'source = { registry = "https://pypi.org/simple" }\n'
        'wheels = [{ url = "https://files.example/einops-0.8.0-py3-none-any.whl", '
        f'hash = "sha256:{"0" * 64}", size = 1 }}]\n\n'
        '[[package]]\nname = "mine"\nversion = "1"\nsource = { virtual = "." }\n'
        'dependencies = [{ name = "einops" }]\n\n[package.metadata]\nrequires-dist = [{ name = "einops" }]\n'
    )
    assert loaded(tmp_path, "requirements_file: uv.lock") == [f"einops==0.8.0  --hash=sha256:{'0' * 64}"]

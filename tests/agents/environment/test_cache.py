"""The environments that a node keeps: files that apps write there harm neither other apps nor the agent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agents import environment
from agents.environment import Environment, Environments

if TYPE_CHECKING:
    from pathlib import Path


def built(root: Path, key: str, used_at: float, size: int = 4096) -> Path:
    """Make an environment as a container leaves it."""
    folder = root / key
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "data").write_bytes(bytes(size))
    (folder / "ready").touch()
    os.utime(folder / "ready", (used_at, used_at))
    return folder


async def have(environments: Environments, key: str) -> None:
    folder = str(environments.root / key)
    await environments.have(Environment(key, folder, folder, site_packages=False), "alice", None)


async def test_folders_nested_without_end_keep_no_other_app_from_its_environment(tmp_path: Path) -> None:
    folder = built(tmp_path, "hostile", 1000.0)
    inside = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=inside)
        deeper = os.open("d", os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = deeper
    os.close(inside)
    await have(Environments(tmp_path, mounted=True), "other")
    assert (tmp_path / "other").is_dir()
    assert not folder.exists()


@pytest.mark.parametrize("lock", ["link", "pipe", "folder"])
def test_an_app_that_replaces_the_lock_keeps_nothing(tmp_path: Path, lock: str) -> None:
    place = built(tmp_path, "hostile", 1000.0) / "lock"
    place.unlink()
    if lock == "link":
        place.symlink_to("/proc/self/mem")
    elif lock == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    assert Environments(tmp_path, mounted=True, most=0).collect() == ["hostile"]


def test_a_time_in_the_future_does_not_count_as_use(tmp_path: Path) -> None:
    built(tmp_path, "other", 1000.0)
    built(tmp_path, "hostile", 4e9)
    link = built(tmp_path, "link", 2000.0) / "ready"
    link.unlink()
    link.symlink_to("/proc/self")
    os.utime(link.parent, (500.0, 500.0))
    os.utime(link, (500.0, 500.0), follow_symlinks=False)
    assert Environments(tmp_path, mounted=True, most=1).collect() == ["hostile", "link"]


async def test_an_environment_that_grows_after_its_build_is_measured_again(tmp_path: Path) -> None:
    folder = built(tmp_path, "grows", 2000.0)
    environments = Environments(tmp_path, mounted=True, most_bytes=1 << 20)
    assert environments.collect() == []
    await have(environments, "grows")
    (folder / "data").write_bytes(os.urandom(2 << 20))
    assert environments.collect() == ["grows"]


async def test_an_environment_measured_before_its_build_is_measured_again(tmp_path: Path) -> None:
    environments = Environments(tmp_path, mounted=True, most_bytes=1 << 20)
    await have(environments, "first")
    await have(environments, "second")
    (tmp_path / "first" / "data").write_bytes(os.urandom(2 << 20))
    (tmp_path / "first" / "lock").touch()
    (tmp_path / "first" / "ready").touch()
    assert "first" in environments.collect()


@pytest.mark.parametrize("bound", [{"most": 4}, {"most_bytes": 4 * (1 << 19) + 100_000}])
def test_the_largest_user_loses_environments_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: dict[str, int]
) -> None:
    for number in range(6):
        built(tmp_path, f"greedy-{number}", 3000.0 + number, 1 << 19)
    for number in range(2):
        built(tmp_path, f"modest-{number}", 1000.0 + number, 1 << 19)
    monkeypatch.setattr(environment, "_owner_of", lambda folder: int(folder.name.startswith("greedy")))
    removed = Environments(tmp_path, mounted=True, **bound).collect()
    assert removed == [f"greedy-{number}" for number in range(4)]

"""Reading cgroup files of both versions, as real machines lay them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agents.runtime import cgroups
from agents.runtime.interface import Use

V1_MOUNTS = """\
25 20 0:22 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
28 25 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V1_MEMBER = "12:memory:/docker/ID\n4:cpu,cpuacct:/docker/ID\n1:name=systemd:/docker/ID\n0::/docker/ID\n"
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
V2_MEMBER = "0::/system.slice/docker-ID.scope\n"


def test_version_1() -> None:
    place = cgroups.locate(V1_MEMBER, cgroups.parse_mounts(V1_MOUNTS))
    assert place == cgroups.Place(Path("/sys/fs/cgroup/cpu,cpuacct/docker/ID"), Path("/sys/fs/cgroup/memory/docker/ID"))


def test_version_2() -> None:
    folder = Path("/sys/fs/cgroup/system.slice/docker-ID.scope")
    assert cgroups.locate(V2_MEMBER, cgroups.parse_mounts(V2_MOUNTS)) == cgroups.Place(folder, folder)


def test_a_partly_mounted_hierarchy() -> None:
    mounts = cgroups.parse_mounts("30 23 0:26 /outer /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    folder = Path("/sys/fs/cgroup/docker/ID")
    assert cgroups.locate("0::/outer/docker/ID\n", mounts) == cgroups.Place(folder, folder)


@pytest.mark.parametrize("member", ["", "0::/../../other\n", "5:memory:/x\n"])
def test_cgroups_that_are_not_visible(member: str) -> None:
    assert cgroups.locate(member, cgroups.parse_mounts(V1_MOUNTS)) is None


def test_no_mounts() -> None:
    assert cgroups.locate(V2_MEMBER, ()) is None


def test_reading_version_1(tmp_path: Path) -> None:
    (tmp_path / "cpuacct.usage").write_text("2500000000\n")
    (tmp_path / "memory.usage_in_bytes").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("cache 4000\ninactive_file 1\ntotal_inactive_file 1500\n")
    assert cgroups.read(cgroups.Place(tmp_path, tmp_path)) == Use(cpu_s=2.5, memory=3500)


def test_reading_version_2(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nsystem_usec 2\n")
    (tmp_path / "memory.current").write_text("5000\n")
    (tmp_path / "memory.stat").write_text("anon 3\ninactive_file 1500\n")
    assert cgroups.read(cgroups.Place(tmp_path, tmp_path)) == Use(cpu_s=2.5, memory=3500)


def test_an_ended_container(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cpu\.stat"):
        cgroups.read(cgroups.Place(tmp_path, tmp_path))
    assert cgroups.find(os.getpid(), proc=tmp_path) is None
    assert cgroups.find(2**22 + 1) is None

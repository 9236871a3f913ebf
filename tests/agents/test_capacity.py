"""What a node may give to apps, on machines as their kernels describe them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agents.machine import detect, detect_for_engine

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GIB = 2**30
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = """\
26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
27 25 0:24 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
28 25 0:25 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
29 25 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
SERVICE = "/system.slice/dorm-agent.service"
V1_MEMBER = f"12:memory:{SERVICE}\n5:cpuset:/\n4:cpu,cpuacct:{SERVICE}\n1:name=systemd:{SERVICE}\n0::{SERVICE}\n"
UNLIMITED = "9223372036854771712\n"


def machine(root: Path, files: Mapping[str, str], *, mounts: str = V2, member: str = f"0::{SERVICE}\n") -> Path:
    """A machine with 64 cores and 256 GiB, and these files."""
    usual = {
        "sys/devices/system/cpu/online": "0-63\n",
        "proc/meminfo": f"MemTotal:       {256 * 2**20} kB\nMemFree:  5 kB\n",
        "proc/self/status": "Name:\tdorm\nCpus_allowed:\tff\nCpus_allowed_list:\t0-63\n",
        "proc/self/cgroup": member,
        "proc/self/mountinfo": mounts,
    }
    for name, text in {**usual, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


G = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "more", "cpu", "memory", "why"),
    [
        ({}, {}, 64000, 256, ()),
        # Version 2: the service, a slice around it, and the smallest of both.
        ({f"{G}{SERVICE}/cpu.max": "200000 100000\n"}, {}, 2000, 256, (f"2 of 64 cores: cgroup quota {SERVICE}",)),
        ({f"{G}{SERVICE}/cpu.max": "max 100000\n", f"{G}/system.slice/cpu.max": "50000 100000\n"}, {}, 500, 256,
         ("0.5 of 64 cores: cgroup quota /system.slice",)),
        ({f"{G}{SERVICE}/cpu.max": "100000 10000\n", f"{G}/system.slice/cpu.max": "40000 10000\n"}, {}, 4000, 256,
         ("cgroup quota /system.slice",)),
        ({f"{G}{SERVICE}/memory.max": f"{16 * GIB}\n", f"{G}/system.slice/memory.max": "max\n"}, {}, 64000, 16,
         ("14.4 GiB of 256 GiB memory", f"16 GiB, cgroup limit {SERVICE}")),
        ({f"{G}{SERVICE}/memory.max": f"{16 * GIB}\n", f"{G}{SERVICE}/memory.high": f"{8 * GIB}\n"}, {}, 64000, 8, ()),
        # AllowedCPUs= of a slice is seen by the service as well; the slice is named.
        ({f"{G}{SERVICE}/cpuset.cpus.effective": "0-3,8\n", f"{G}/system.slice/cpuset.cpus.effective": "0-3,8\n",
          "proc/self/status": "Cpus_allowed_list:\t0-3,8\n"}, {}, 5000, 256, ("cpuset /system.slice",)),
        ({"proc/self/status": "Cpus_allowed_list:\t5\n"}, {}, 1000, 256, ("1 of 64 cores: CPU affinity",)),
        ({"proc/self/status": "Cpus_allowed_list:\t0-7\n", f"{G}{SERVICE}/cpu.max": "150000 100000"}, {}, 1500, 256, ()),
        # Version 1 and hybrid.
        ({f"{G}/cpu,cpuacct{SERVICE}/cpu.cfs_quota_us": "-1\n", f"{G}/cpu,cpuacct{SERVICE}/cpu.cfs_period_us": "100000\n",
          f"{G}/cpu,cpuacct/system.slice/cpu.cfs_quota_us": "300000\n",
          f"{G}/cpu,cpuacct/system.slice/cpu.cfs_period_us": "100000\n",
          f"{G}/memory{SERVICE}/memory.limit_in_bytes": f"{4 * GIB}\n",
          f"{G}/memory/memory.limit_in_bytes": UNLIMITED,
          f"{G}/cpuset/cpuset.cpus": "0-63\n"},
         {"mounts": V1, "member": V1_MEMBER}, 3000, 4, ("cgroup quota /system.slice", f"cgroup limit {SERVICE}")),
        # In a container, whose group is the top of what it sees; and one that sees the machine's names.
        ({f"{G}/cpu.max": "400000 100000\n", f"{G}/memory.max": f"{GIB}\n"}, {"member": "0::/\n"}, 4000, 1, ()),
        ({f"{G}/cpu.max": "400000 100000\n"},
         {"member": "0::/docker/ID\n", "mounts": "30 23 0:26 /docker/ID /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"},
         4000, 256, ("cgroup quota /docker/ID",)),
        # Of a group in another namespace, at least what is around everything is known.
        ({f"{G}/cpu.max": "400000 100000\n"}, {"member": "0::/../../other\n"}, 4000, 256, ()),
        # Nothing readable limits nothing.
        ({f"{G}{SERVICE}/cpu.max": "much\n", f"{G}{SERVICE}/memory.max": "\n", f"{G}{SERVICE}/cpuset.cpus": "x-\n"}, {},
         64000, 256, ()),
        ({}, {"member": "", "mounts": ""}, 64000, 256, ()),
    ],
)  # fmt: skip
def test_the_smallest_limit_counts(
    tmp_path: Path, files: dict[str, str], more: dict[str, str], cpu: int, memory: int, why: tuple[str, ...]
) -> None:
    found = detect(machine(tmp_path, files, **more))
    assert found.capacity == {"cpu": cpu, "memory": int(memory * GIB * 0.9)}
    for text in why or ("64 cores" if cpu == 64000 else "of 64 cores: ",):
        assert text in found.text


INFO = {"CgroupDriver": "systemd", "CgroupVersion": "2", "NCPU": 64, "MemTotal": 256 * GIB}
OWN = {f"{G}{SERVICE}/cpu.max": "100000 100000\n", "proc/self/status": "Cpus_allowed_list:\t0-1\n"}


@pytest.mark.parametrize(
    ("info", "files", "cpu"),
    [
        # The engine's containers are not in the agent's group.
        ({}, {}, 64000),
        ({}, {f"{G}/system.slice/cpu.max": "800000 100000\n"}, 8000),
        ({}, {"etc/docker/daemon.json": '{"cgroup-parent": "lab-gpu.slice"}',
              f"{G}/lab.slice/cpu.max": "800000 100000\n", f"{G}/lab.slice/lab-gpu.slice/cpu.max": "max 100000\n"}, 8000),
        ({"CgroupDriver": "cgroupfs"}, {f"{G}/docker/cpu.max": "500000 100000\n"}, 5000),
        ({"CgroupDriver": "cgroupfs"}, {"etc/docker/daemon.json": '{"cgroup-parent": "/lab"}',
                                        f"{G}/lab/cpuset.cpus.effective": "0-2\n"}, 3000),
        # What is not known is at least as small as the agent's own.
        ({"SecurityOptions": ["name=rootless"]}, {}, 1000),
        ({"CgroupDriver": "none"}, {}, 1000),
        ({}, {"etc/docker/daemon.json": '{"cgroup-parent": "/no-slice"}'}, 1000),
        ({}, {"etc/docker/daemon.json": "{"}, 64000),
    ],
)  # fmt: skip
def test_an_engine_has_a_group_of_its_own(
    tmp_path: Path, info: dict[str, Any], files: dict[str, str], cpu: int
) -> None:
    found = detect_for_engine({**INFO, **info}, "unix:///var/run/docker.sock", machine(tmp_path, {**OWN, **files}))
    assert found.capacity["cpu"] == cpu


def test_an_engine_elsewhere_describes_its_machine(tmp_path: Path) -> None:
    found = detect_for_engine({**INFO, "NCPU": 8, "MemTotal": 10 * GIB}, "tcp://10.0.0.7:2376", machine(tmp_path, OWN))
    assert found.capacity == {"cpu": 8000, "memory": 9 * GIB}
    assert "10.0.0.7" in found.text


_SHOW = "from agents.machine import detect; found = detect(); print(found.capacity['cpu'], found.text)"


def _detected_by(*words: str) -> str:
    done = subprocess.run([*words, sys.executable, "-c", _SHOW], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_real_affinity() -> None:
    cpu = min(os.sched_getaffinity(0))
    limited = f"import os; os.sched_setaffinity(0, [{cpu}]); {_SHOW}"
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) <= 1000


@pytest.fixture
def quota() -> Iterator[Path]:
    """A control group of the CPU controller below our own; the test moves a process into it."""
    for top, name, value in (
        (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "50000"),
        (Path("/sys/fs/cgroup/cpu,cpuacct"), "cpu.cfs_quota_us", "50000"),
        (Path("/sys/fs/cgroup"), "cpu.max", "50000 100000"),
    ):
        group = top / f"dorm-test-{os.getpid()}"
        try:
            if not (top / "cgroup.procs").exists():
                continue
            group.mkdir()
            try:
                (group / name).write_text(value)
                yield group
                return
            finally:
                group.rmdir()
        except OSError:
            continue
    pytest.skip("no control group can be made here")


def test_a_real_control_group(quota: Path) -> None:
    shown = _detected_by("sh", "-c", f'echo $$ > {quota}/cgroup.procs && exec "$@"', "sh")
    assert shown.startswith("500 ")
    assert f"cgroup quota /{quota.name}" in shown

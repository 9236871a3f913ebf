"""Runs inside a container, with only the standard library, and prints its surroundings as JSON."""

import getpass
import json
import os
import pwd
import resource
import shutil
import sys
import tempfile


def text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def status(field: str) -> str:
    lines = [line.split(":", 1) for line in text("/proc/self/status").splitlines()]
    return dict(lines).get(field, "").strip()


def named() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True


def writable(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "dorm-probe"), "w"):
            pass
        os.unlink(os.path.join(folder, "dorm-probe"))
    except OSError:
        return False
    return True


def cgroup(*paths: str) -> str:
    return next((found for path in paths if (found := text("/sys/fs/cgroup/" + path))), "")


print(
    json.dumps(
        {
            "uid": os.getuid(),
            "umask": os.umask(0o077),
            "nice": os.nice(0),
            "oom_score_adj": text("/proc/self/oom_score_adj"),
            "named": named(),
            "user": getpass.getuser(),
            "cwd": os.getcwd(),
            "home": os.environ["HOME"],
            "home_resolved": os.path.realpath(os.environ["HOME"]),
            "above": [os.listdir(".."), os.listdir("../..")],
            "beside_progress": os.path.dirname(os.environ["DORM_PROGRESS"]),
            "home_writable": writable(os.environ["HOME"]),
            "etc_writable": writable("/etc"),
            "tmp": os.stat("/tmp").st_dev,
            "tmp_size": shutil.disk_usage("/tmp").total,
            "tmpdir": os.environ.get("TMPDIR", ""),
            "temporary": tempfile.gettempdir(),
            "shm": os.stat("/dev/shm").st_dev,
            "shm_size": shutil.disk_usage("/dev/shm").total,
            "variables": sorted(name for name in os.environ if not name.startswith(("DORM_", "_", "LC_"))),
            "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "nvidia": os.environ.get("NVIDIA_VISIBLE_DEVICES"),
            "python": sys.executable,
            "network": os.readlink("/proc/self/ns/net"),
            "pids": os.readlink("/proc/self/ns/pid"),
            "first": text("/proc/1/comm"),
            "leads_session": os.getsid(0) == os.getpid(),
            "capabilities": int(status("CapEff"), 16),
            "no_new_privs": status("NoNewPrivs"),
            "seccomp": status("Seccomp"),
            "cpu": cgroup("cpu/cpu.cfs_quota_us", "cpu.max"),
            "memory": cgroup("memory/memory.limit_in_bytes", "memory.max"),
            "processes": cgroup("pids/pids.max", "pids.max"),
            "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "core": resource.getrlimit(resource.RLIMIT_CORE),
        }
    )
)

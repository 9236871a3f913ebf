"""A private Docker engine: it changes no network of the machine, and shares nothing with other engines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from tests.lab.machines.leases import gone, kill_all, unmount_below

_READY_S = 30.0
_POLL_S = 0.02
_CAP_SYS_ADMIN = 21
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # dockerd's folder, which is not on the PATH of a root shell from su
_BRIDGE = Path("/sys/class/net/docker0")


class EngineFailed(Exception):
    """A dockerd ended, or did not answer in time; the message has the end of its log."""


def why_not() -> str | None:
    """Why no engine can be started here, None if one can."""
    if os.environ.get("DORM_TEST_ENGINE") == "none":
        return "DORM_TEST_ENGINE=none"
    if os.geteuid() != 0:
        return "not root"
    capabilities = Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0]
    if not int(capabilities, 16) >> _CAP_SYS_ADMIN & 1:
        return "root without the right to mount"
    missing = [
        name for name in ("dockerd", "containerd", "ip", "nsenter", "mount") if shutil.which(name, path=_PATH) is None
    ]
    return f"not installed: {', '.join(missing)}" if missing else None


class Dockerd:
    """One engine; its files are below `home`, its containers in the control group `cgroup`.

    With `namespace`, it runs in that network namespace, and `crash` also ends everything else there.  Containers
    have the network of the host or none, so no bridge and no iptables are needed.
    """

    def __init__(self, home: Path, cgroup: str, namespace: str | None = None, *, live_restore: bool = False) -> None:
        self.home = home
        self.url = f"unix://{home}/docker.sock"
        self._cgroup = cgroup
        self._namespace = namespace
        self._live_restore = live_restore
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it, and return when it answers.  Raises `EngineFailed`."""
        self._spawn()
        await self.answers()

    def _spawn(self) -> None:
        self.home.mkdir(exist_ok=True)
        # Left by a killed engine.  dockerd takes even a zombie for a running containerd, and waits for it in vain.
        for stale in ("docker.pid", "docker.sock", "exec/containerd/containerd.pid"):
            (self.home / stale).unlink(missing_ok=True)
        config = self.home / "daemon.json"
        config.write_text("{}")  # and not the machine's own
        command = [
            # Not `ip netns exec`, which mounts a new /sys that hides the control groups of cgroup v1.
            *(["nsenter", f"--net=/run/netns/{self._namespace}", "--"] if self._namespace else []),
            *("dockerd", "--config-file", str(config), "--host", self.url, "--pidfile", str(self.home / "docker.pid")),
            *("--data-root", str(self.home / "data"), "--exec-root", str(self.home / "exec")),
            *([] if self._shares_bridge() else ["--bridge", "none"]),
            *("--iptables=false", "--ip6tables=false"),
            # cgroupfs even under systemd, which would require a slice as cgroup parent.
            *("--exec-opt", "native.cgroupdriver=cgroupfs", "--cgroup-parent", f"/{self._cgroup}"),
            *(["--live-restore"] if self._live_restore else []),
        ]
        with (self.home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": _PATH},
                start_new_session=True,
            )

    def _shares_bridge(self) -> bool:
        """Return whether the machine's own engine has a bridge here: an engine without a bridge would remove it."""
        return self._namespace is None and _BRIDGE.exists()

    async def answers(self) -> None:
        """Return when it answers.  Raises `EngineFailed` if it ends, or after half a minute."""
        try:
            async with asyncio.timeout(_READY_S):
                while not await answers(self.url):
                    if self._process is not None and self._process.poll() is not None:
                        raise EngineFailed(f"dockerd ended with {self._process.returncode}: {self._last_words()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise EngineFailed(f"dockerd does not answer after {_READY_S:.0f} s: {self._last_words()}") from None

    async def kill(self) -> None:
        """Send SIGKILL to dockerd alone: its containers keep running."""
        if self._process is None:
            return
        containerd = self._containerd()
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        self._process = None
        # containerd ends a little later; a dockerd that started before that would take it for a running one.
        async with asyncio.timeout(_READY_S):
            while containerd is not None and not gone(containerd):  # noqa: ASYNC110  (no event reports it)
                await asyncio.sleep(_POLL_S)

    async def crash(self) -> None:
        """Simulate power loss: everything dies at once, and only the disk survives."""
        namespaces = [self._namespace] if self._namespace else []
        await asyncio.to_thread(kill_all, self.home, self._cgroup, namespaces)
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)
            self._process = None
        await asyncio.to_thread(unmount_below, self.home)
        await asyncio.to_thread(shutil.rmtree, self.home / "exec", ignore_errors=True)  # as /run is empty after boot

    def _containerd(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.home / "exec" / "containerd" / "containerd.pid").read_text())
        return None

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return " | ".join((self.home / "log").read_text(errors="replace").splitlines()[-3:])
        return "no log"


async def answers(url: str, timeout_s: float = 5.0) -> bool:
    """Return whether an engine answers `/_ping` on its Unix socket."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(url.removeprefix("unix://"))
            try:
                writer.write(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False

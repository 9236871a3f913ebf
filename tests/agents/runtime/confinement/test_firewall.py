"""The firewall rules of a node, in a network namespace: what containers' users can reach with and without them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from agents.runtime.docker.container_config import UIDS
from agents.runtime.docker.firewall import FirewallError, chain, chain_of, ports_of, set_rules
from tests.e2e.commands import REPOSITORY
from tests.errors import raises

_IN_THE_NAMESPACE = """\
import asyncio, encodings.idna, os, socket, subprocess, sys
from agents.runtime.docker.firewall import remove_rules, set_rules

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "169.254.169.254/32", "dev", "lo"], check=True)
places = [("127.0.0.1", port) for port in (4222, 4333, 2375)]
places += [("::1", 4222), ("169.254.169.254", 80), ("127.0.0.1", 20000)]
families = [socket.AF_INET6 if ":" in host else socket.AF_INET for host, port in places]
servers = [socket.create_server(place, family=family) for place, family in zip(places, families)]

def reached(uid):
    read, write = os.pipe()
    if not os.fork():
        os.setgid(uid), os.setuid(uid)
        for place in places:
            try:
                socket.create_connection(place, timeout=2).close()
                os.write(write, b"1")
            except OSError:
                os.write(write, b"0")
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as found:
        text = found.read()
    os.wait()
    return text

def rules():
    return "".join(subprocess.check_output([program, "-S"], text=True) for program in ("iptables", "ip6tables"))

first, last = map(int, sys.argv[1:])
before = rules()
print("without", reached(first))
asyncio.run(set_rules("n1", [2375, 2376, 4222]))
once = rules()
asyncio.run(set_rules("n1", [2375, 2376, 4222]))
print("again", rules() == once)
print("first", reached(first), "last", reached(last), "other", reached(1000), "root", reached(0))
asyncio.run(set_rules("n2", [2375, 2376, 4333]))
print("both", reached(first))
asyncio.run(remove_rules("n1"))
print("one", reached(first))
asyncio.run(remove_rules("n2"))
asyncio.run(remove_rules("n2"))
print("gone", rules() == before, reached(first))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("iptables"), reason="needs root and iptables")
def test_containers_users_reach_no_server_of_the_log_no_engine_and_no_metadata() -> None:
    words = ["unshare", "--net", sys.executable, "-c", _IN_THE_NAMESPACE, *map(str, UIDS)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    found = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "without 111111",
        "again True",
        "first 010001 last 010001 other 111111 root 111111",
        "both 000001",
        "one 100101",
        "gone True 111111",
    ]


def test_the_rules_match_the_documentation() -> None:
    shown = (REPOSITORY / "docs" / "trust.md").read_text()
    name = chain_of("gpu-7")
    for line in chain("iptables", "gpu-7", ports_of("nats://10.0.0.1:4222")).splitlines()[2:-1]:
        assert f"iptables {line.replace(name, 'DORM')}\n" in shown
    assert f"--uid-owner {UIDS[0]}-{UIDS[1]} -j DORM" in shown
    assert len(name) <= 28, "iptables takes no longer names"
    assert ports_of("tls://a:4443,b,nats://[::1]:5222") == [2375, 2376, 4222, 4443, 5222]
    with raises(FirewallError, "firewall.ports.too_many"):
        ports_of(",".join(f"nats://a:{port}" for port in range(5000, 5020)))


async def test_only_root_changes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with raises(FirewallError, "firewall.not_root"):
        await set_rules("n1", [4222])

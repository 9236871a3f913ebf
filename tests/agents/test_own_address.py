"""The address that a node announces."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from agents import machine
from agents.config import ConfigError
from agents.machine import detect_address
from events.addresses import is_loopback
from tests.errors import raises

if TYPE_CHECKING:
    from collections.abc import Callable

Routes = dict[str, str]


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Routes], None]:
    """Return a function that sets from which own address packets to a host come; there is no way to others."""

    def use(table: Routes) -> None:
        monkeypatch.setattr(machine, "_ways_to", lambda host, port: [table[host]] if host in table else [])

    return use


V4, V6 = machine._ANYWHERE


@pytest.mark.parametrize(
    ("table", "servers", "expected"),
    [
        ({"10.0.0.1": "10.0.0.7", V4: "192.168.1.7"}, "nats://10.0.0.1:4222", "10.0.0.7"),  # Not the default route's.
        ({"10.0.0.1": "10.0.0.7"}, "tls://u:p@10.0.0.1:4222", "10.0.0.7"),  # Nor is one needed.
        ({"fd00::1": "fd00::7"}, "nats://[fd00::1]:4222", "fd00::7"),
        ({"b": "10.0.0.7"}, "nats://a:1,nats://b:2", "10.0.0.7"),
        # A server on this machine, by a name that Debian gives 127.0.1.1: others need another address.
        ({"here": "127.0.1.1", V4: "10.0.0.7"}, "nats://here:4222", "10.0.0.7"),
        ({"::1": "::1", V6: "fd00::7"}, "[::1]", "fd00::7"),
        # No network at all: the cluster is this machine's.
        ({"::1": "::1"}, "nats://[::1]:4222", "::1"),
    ],
)  # fmt: skip
def test_the_way_to_the_servers(routes: Callable[[Routes], None], table: Routes, servers: str, expected: str) -> None:
    routes(table)
    assert detect_address(servers).address == expected


def test_no_way_is_an_error(routes: Callable[[Routes], None]) -> None:
    routes({})
    with raises(ConfigError, "config.address.unknown", "--address"):
        detect_address("nats://10.0.0.1:4222")


def test_the_kernel_s_routes() -> None:
    assert machine._ways_to("127.0.0.1", 9) == ["127.0.0.1"]
    assert machine._ways_to("no-such-host.invalid", 9) == []
    if socket.has_ipv6:
        assert all(map(is_loopback, machine._ways_to("::1", 9)))

"""Firewall rules of a node: containers' users reach neither the log's servers, nor a Docker engine on TCP, nor the metadata
address of a cloud.

Containers use their node's network, so what the node may reach, they may reach.  Each tenant's containers run as a user of
their own (`agents.runtime.docker.config`), and the rules apply to the whole range of these users.  All rules are in a chain
of the node's own, which is replaced as a whole:

    -d 169.254.0.0/16 -j REJECT                            metadata; of IPv6 fd00:ec2::254
    -p tcp -m multiport --dports 2375,2376,4222 -j REJECT  engines, and the log's servers

Containers outlive their agent, and so do the rules: they stay until an agent starts with the firewall off.

    FirewallError    the rules can't be set or removed; the message says what to do
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from agents.runtime.docker.config import UIDS
from events.errors import DormError

if TYPE_CHECKING:
    from collections.abc import Sequence

ENGINES: Final = (2375, 2376)
NATS: Final = 4222
MOST_PORTS: Final = 15
"""Number of ports that one rule takes."""
_METADATA: Final = {"iptables": "169.254.0.0/16", "ip6tables": "fd00:ec2::254/128"}
_IPV6: Final = "/proc/net/if_inet6"
_TIMEOUT_S: Final = 20.0


class FirewallError(DormError):
    """The rules can't be set or removed."""

    code = "firewall.failed"


def ports_of(urls: str) -> list[int]:
    """Return the ports to keep containers from: those of the NATS servers in a list of addresses, and of engines.  Raises
    FirewallError."""
    servers = {urlsplit(url if "://" in url else f"nats://{url}").port or NATS for url in urls.split(",")}
    ports = sorted({*servers, *ENGINES})
    if len(ports) > MOST_PORTS:
        raise FirewallError(
            f"the NATS servers have {len(servers)} ports, and one rule takes {MOST_PORTS - len(ENGINES)}; write the rules "
            "by hand (docs/trust.md)",
            code="firewall.ports.too_many",
        )
    return ports


def chain_of(node: str) -> str:
    """Return the name of a node's chain: several agents may run on one machine, and a chain's name is short."""
    return f"DORM-{hashlib.blake2b(node.encode(), digest_size=4).hexdigest()}"


def chain(program: str, node: str, ports: Sequence[int]) -> str:
    """Return a node's chain as `iptables-restore` and `ip6tables-restore` read it; an earlier one of this name is replaced."""
    name = chain_of(node)
    return "\n".join(
        (
            "*filter",
            f":{name} - [0:0]",
            f"-A {name} -d {_METADATA[program]} -j REJECT",
            f"-A {name} -p tcp -m multiport --dports {','.join(map(str, ports))} -j REJECT",
            "COMMIT\n",
        )
    )


def _jump(node: str) -> list[str]:
    first, last = UIDS
    return ["OUTPUT", "-m", "owner", "--uid-owner", f"{first}-{last}", "-j", chain_of(node)]


async def set_rules(node: str, ports: Sequence[int]) -> None:
    """Set the rules, in place of earlier ones of this node.  Raises FirewallError."""
    _check_root()
    for program in _programs():
        await _run([f"{program}-restore", "--noflush", "--wait"], chain(program, node, ports))
        if not await _holds([program, "--wait", "--check", *_jump(node)]):
            await _run([program, "--wait", "--insert", *_jump(node)])


async def remove_rules(node: str) -> None:
    """Remove what `set_rules` has set; without any, do nothing.  Raises FirewallError."""
    _check_root()
    for program in _programs():
        while await _holds([program, "--wait", "--check", *_jump(node)]):
            await _run([program, "--wait", "--delete", *_jump(node)])
        if await _holds([program, "--wait", "--list-rules", chain_of(node)]):
            await _run([program, "--wait", "--flush", chain_of(node)])
            await _run([program, "--wait", "--delete-chain", chain_of(node)])


def _programs() -> list[str]:
    """Return iptables, and ip6tables unless the machine has no IPv6."""
    return [program for program in _METADATA if program == "iptables" or os.path.exists(_IPV6)]


def _check_root() -> None:
    if os.geteuid() != 0:
        raise FirewallError(
            "only root changes firewall rules; start the agent as root, or set the rules by hand (docs/trust.md)",
            code="firewall.not_root",
        )


async def _run(command: list[str], given: str = "") -> None:
    code, text = await _ended(command, given)
    if code != 0:
        raise FirewallError(
            f"`{' '.join(command)}` ended with {code}: {' '.join(text.split())[:300] or 'it said nothing'}; set the rules by "
            "hand (docs/trust.md), or start without --firewall on"
        )


async def _holds(command: list[str]) -> bool:
    return (await _ended(command, ""))[0] == 0


async def _ended(command: list[str], given: str) -> tuple[int, str]:
    """Run a program; return its exit code and its error output. Raises FirewallError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise FirewallError(
            f"{command[0]} can't be started: {error.strerror}; install iptables, or start without --firewall on",
            code="firewall.no_program",
        ) from None
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            _, output = await process.communicate(given.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise FirewallError(
            f"{command[0]} did not end within {_TIMEOUT_S:.0f} s; another program may hold its lock"
        ) from None
    return process.returncode or 0, output.decode(errors="replace")

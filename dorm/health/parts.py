"""The checks of a master, and of agents."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from dorm.health.checks import Check
from events.log.records import LogError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agents.agent import Agent
    from agents.status import Vitals
    from dorm.health.checks import Source
    from dorm.master.master import Master
    from events.log.interface import ReadableLog

_LOG_S = 2.0
MOST_BEHIND = 10_000
"""Records that a master which is ready may have to fold before it could lead."""
LONGEST_SILENCE_S = 30.0
"""Agents list their engine's containers every few seconds; an engine that is silent for this long is broken."""


def master_checks(master: Master, log: ReadableLog) -> Source:
    """Return the checks of a master that reads `log`."""

    async def checks() -> Sequence[Check]:
        end, why = await _end(log)
        results = [Check("log", end is not None, why)]
        if end is not None:
            behind = max(0, end - master.state.seq)
            text = f"{behind} records of the log are still to be folded"
            results.append(Check("folded", behind <= MOST_BEHIND, text))
        return [*results, _role(master)]

    return checks


def agents_checks(agents: Sequence[Agent]) -> Source:
    """Return the checks of all agents in this process; with more than one, each check is named by its node."""

    async def checks() -> Sequence[Check]:
        every = [agent.vitals() for agent in agents]
        return [check for each in every for check in agent_checks(each, f"{each.node}/" if len(every) > 1 else "")]

    return checks


def agent_checks(vitals: Vitals, prefix: str = "") -> list[Check]:
    """Return the checks of one agent."""
    silent, left = vitals.silence_s, vitals.lease_left_s
    engine = f"the engine listed its containers {silent:.0f} s ago"
    if silent > LONGEST_SILENCE_S:
        engine = f"the engine has not answered for {silent:.0f} s; look at it, e.g. `systemctl status docker`"
    lease = f"the node's lease lasts {left:.0f} s"
    if vitals.joined and left <= 0:
        lease = "the node's lease is over, and its containers are killed; see whether it reaches the NATS servers"
    joined = f"{vitals.node} has joined, with {vitals.containers.get('running', 0)} running containers"
    if not vitals.joined:
        joined = f"{vitals.node} has not joined the cluster; the agent's log says what it waits for"
    return [
        Check(f"{prefix}engine", silent <= LONGEST_SILENCE_S, engine),
        Check(f"{prefix}lease", not vitals.joined or left > 0, lease),
        Check(f"{prefix}joined", vitals.joined, joined),
    ]


async def _end(log: ReadableLog) -> tuple[int | None, str]:
    """Return the log's end, None if it is not known, and what is so in words."""
    try:
        async with asyncio.timeout(_LOG_S):
            end = await log.end()
    except (LogError, TimeoutError) as error:
        why = str(error) or f"no answer within {_LOG_S:g} s"
        return None, f"the log does not answer ({why}); `dorm doctor` looks at its servers"
    return end, f"the log answers; its last record is {end}"


def _role(master: Master) -> Check:
    if master.elected.is_set() and not master.leads:
        text = f"the lease of {master.name} has lapsed, and it decides nothing until the NATS servers renew it"
        return Check("role", False, text)
    if master.elected.is_set():
        return Check("role", True, f"{master.name} leads since epoch {master.state.epoch}")
    if master.settled.is_set():
        return Check("role", True, f"{master.name} follows {master.state.leader or 'no leader yet'}")
    return Check("role", False, f"{master.name} does not know yet which master leads; wait for its start to end")

"""The policies that the cluster can change to, with their parameters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from dorm.api.looking import Seen, seen
from dorm.api.routes import Call, Route
from dorm.core.query.offered import Offered, offered

if TYPE_CHECKING:
    from dorm.api.answers import Answer
    from dorm.core.state import State


class PoliciesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All policies that the cluster's masters have."""

    position: str
    policy: str
    """The one in force."""
    policies: list[Offered]
    """Dorm's own by name, then plug-ins."""


async def list_policies(call: Call[Seen, None]) -> Answer:
    """Those that Dorm has, and the plug-ins that the leading master announced, each with the JSON Schema of its parameters."""
    # The first call loads the policies, which is no work for the thread that folds.
    await asyncio.to_thread(offered, {})

    def build(state: State) -> PoliciesDocument:
        return PoliciesDocument(
            position=str(state.seq), policy=state.settings.policy, policies=offered(state.policy_plugins)
        )

    return await seen(call, build)


ROUTES = [
    Route(
        "GET", "/v1/policies", list_policies, "Policies and their parameters", query=Seen, answer=PoliciesDocument,
        tag="policy",
    ),
]  # fmt: skip

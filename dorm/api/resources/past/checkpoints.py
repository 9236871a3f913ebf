"""What an app has saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dorm.api.answers import answer
from dorm.api.errors import Forbidden
from dorm.api.handlers import MinSeq, requester, settled
from dorm.api.routes import Call, Parameters, Route
from dorm.client.files.asking import Files
from dorm.client.files.checkpoints import Checkpoints, checkpoints_of

if TYPE_CHECKING:
    from dorm.api.answers import Answer


class CheckpointsQuery(Parameters, frozen=True, kw_only=True):
    """Parameters of an app's checkpoints."""

    min_seq: MinSeq | None = None


async def app_checkpoints(call: Call[CheckpointsQuery, None]) -> Answer:
    """Path, step, size and age of each, which generation wrote it, and from which a restart would resume.  A node's agent
    lists the folder.  Times are UTC nanoseconds, as `dorm checkpoints -o json` has them."""
    if not call.services.door.reads_files(call.user):
        text = f"{call.user} is a reader, who asks for no files of apps; a user of their tenant or an operator may"
        raise Forbidden(text, code="identity.role.too_low")
    await settled(call)
    async with requester(call) as client:
        seq = call.services.follower.seq
        found = await checkpoints_of(client, Files(client), call.path("app"))
    return answer(found, seq, pack=call.packs)


ROUTES = [
    Route(
        "GET", "/v1/apps/{app}/checkpoints", app_checkpoints, "What an app has saved", query=CheckpointsQuery,
        answer=Checkpoints, tag="apps", long=True,
    ),
]  # fmt: skip

"""All that this node is asked: about itself, for container output, and to let people into its containers.

Logs are not events; they stay with the engine and are read from there.  If a server guards subjects, a question names
the tenant whose app it is about, and the server lets ask for a tenant's apps only its own users, readers, operators
and admins.  An agent therefore need not know users: it answers for an app of this tenant, and for an app of another
one as for an unknown app.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from agents.node_status import answer_if_allowed
from agents.outputs.file_requests import answer_files
from agents.runtime.interface import Key, RuntimeFault, Unavailable, Wanted
from agents.sessions import Sessions
from events import subjects
from events.log.interface import AskRefused
from events.requests import LogQuestion, plain

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from agents.desired import Desired
    from agents.node_status import StatusAnswerer
    from agents.outbox import Outbox
    from agents.outputs.folders import CheckpointFolder
    from agents.runtime.interface import Runtime
    from events.log.interface import Bus, EventLog


# --- container output -------------------------------------------------------------------------------------------------


async def answer_questions(
    bus: Bus, cluster: str, runtime: Runtime, desired: Desired, folder: CheckpointFolder
) -> None:
    """Answer questions to this node, for output and for files, until cancelled.  Raises LogUnavailable when the connection is
    closed."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer_files(bus, cluster, runtime, desired, folder))
        tasks.create_task(_answer_logs(bus, cluster, runtime, desired))


async def _answer_logs(bus: Bus, cluster: str, runtime: Runtime, desired: Desired) -> None:
    node = desired.node
    if not bus.guarded:
        await bus.answer(subjects.ask(cluster, node, "logs"), LogAnswerer(runtime, desired))
        return

    def of_tenant(subject: str) -> LogAnswerer:
        return LogAnswerer(runtime, desired, subject.rpartition(".")[2])

    await bus.answer_each(subjects.asked_of(cluster, node, "logs"), of_tenant)


class LogAnswerer:
    """The answerer of one node."""

    def __init__(self, runtime: Runtime, desired: Desired, tenant: str | None = None) -> None:
        """`tenant`: the subject's token of the tenant that is asked about; None for any app, on an open cluster."""
        self._runtime = runtime
        self._desired = desired
        self._tenant = tenant

    async def __call__(self, question: bytes) -> AsyncIterator[bytes]:
        try:
            request = msgspec.json.decode(question, type=LogQuestion)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise AskRefused(f"a question for logs is a JSON map: {error}", code="agent.question.malformed") from None
        key = Key(request.app, request.generation, request.slot)
        try:
            self._check_tenant(request.app)
            async with contextlib.aclosing(self._pieces(key, request)) as pieces:
                async for piece in pieces:
                    yield piece
        except KeyError:
            raise AskRefused(
                f"slot {key.slot} of generation {key.generation} is not (or no longer) on node {self._desired.node}",
                code="slot.not_found",
            ) from None
        except Unavailable as error:
            raise AskRefused(
                f"the engine on node {self._desired.node} does not answer: {error}", code=error.code
            ) from None
        except RuntimeFault as error:
            raise AskRefused(str(error), code=error.code) from None

    async def _pieces(self, key: Key, asked: LogQuestion) -> AsyncGenerator[bytes, None]:
        if not asked.timed and asked.since is None and not asked.after:
            async with contextlib.aclosing(self._runtime.logs(key, follow=asked.follow, tail=asked.tail)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        wanted = Wanted(asked.follow, asked.tail, asked.since, asked.after)
        async with contextlib.aclosing(self._runtime.timed_logs(key, wanted)) as pieces:
            async for piece in pieces:
                yield msgspec.msgpack.encode(piece) if asked.timed else plain(piece)

    def _check_tenant(self, app_id: str) -> None:
        """Raises KeyError for an app of another tenant, as for an absent one."""
        if self._tenant is not None:
            owner = self._desired.owner_of(app_id)
            if owner is None or subjects.token(owner) != self._tenant:
                raise KeyError(app_id)


# --- all questions ----------------------------------------------------------------------------------------------------


async def answer_all(
    bus: Bus,
    cluster: str,
    runtime: Runtime,
    desired: Desired,
    status: StatusAnswerer,
    folder: CheckpointFolder,
    log: EventLog,
    outbox: Outbox,
    clock: Callable[[], int],
    inside: Callable[[Key, tuple[str, ...]], tuple[str, ...]],
) -> None:
    """Answer until cancelled.  `inside` returns how a command runs in a container's environment.
    Raises LogUnavailable when the connection is closed."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer_questions(bus, cluster, runtime, desired, folder))
        tasks.create_task(answer_if_allowed(bus, subjects.ask_agents(cluster), status))
        tasks.create_task(Sessions(cluster, runtime, desired, log, outbox, clock, inside).serve(bus))

"""The calls of a Docker engine that make an image.  Running containers is the agents' task, not this module's.

aiodocker itself limits the time of no call, and reports an engine that does not answer as status 900.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final, Self

import aiodocker
import aiohttp
from aiodocker.jsonstream import json_stream_list, json_stream_stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

DEFAULT_URL: Final = "unix:///var/run/docker.sock"
_SCHEMES: Final = ("unix://", "tcp://", "http://", "https://")
_CHUNK: Final = 1 << 20
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_REPORTED: Final = 0  # aiodocker's status of a failure within a stream of progress
_AWAY: Final = 900  # aiodocker's status of an engine that does not answer
_COMMAND_FAILED: Final = "returned a non-zero code"  # how the builder reports that a step's own command failed


class EngineFault(Exception):
    """The engine does not answer, or refused; the message is one line for users."""

    code = "docker.failed"

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(" ".join(message.split()))
        self.status = status
        """The engine's status where that decides what to do next."""


class Engine:
    """One engine, as an asynchronous context manager.

    `url` is `unix:///path`, `tcp://host:port` or `http://…`; None uses DOCKER_HOST, else the usual socket.
    `call_s` and `work_s` are the timeouts, in seconds, of calls that answer at once and of calls that move an image.
    Every method raises `EngineFault`.
    """

    def __init__(self, url: str | None = None, *, call_s: float = 20.0, work_s: float = 300.0) -> None:
        self.url = url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        self._call_s = call_s
        self._work_s = work_s
        self._docker: aiodocker.Docker

    async def __aenter__(self) -> Self:
        if not self.url.startswith(_SCHEMES):
            raise EngineFault(f"cannot reach a Docker engine at {self.url!r}: use unix:// or tcp://")
        try:
            self._docker = aiodocker.Docker(self.url)
        except (OSError, ValueError) as error:  # certificates that DOCKER_TLS_VERIFY asks for
            raise EngineFault(f"cannot reach a Docker engine at {self.url}: {error}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._docker.close()

    async def architecture(self) -> str:
        """Return the engine's name for its processor, such as `amd64`; as a first call it shows whether the engine
        answers."""
        async with self._bounded(self._call_s):
            return str((await self._docker.version())["Arch"])

    async def image(self, ref: str) -> dict[str, Any] | None:
        """Return the engine's description of an image, None if it has none of that name."""
        try:
            async with self._bounded(self._call_s):
                return await self._docker.images.inspect(ref)
        except EngineFault as fault:
            if fault.status == 404:
                return None
            raise

    async def remove_image(self, image: str) -> None:
        """Remove an image by name or id; an image in use, or one that is gone, is left alone."""
        try:
            async with self._bounded(self._call_s):
                await self._docker.images.delete(image)
        except EngineFault as fault:
            if fault.status not in (404, 409):
                raise

    async def pull(self, ref: str, *, first_s: float, stall_s: float) -> None:
        """Pull an image.  Give up if the registry sends nothing for `first_s`, or later pauses for `stall_s`."""
        try:
            async with asyncio.timeout(first_s) as bound, self._bounded(self._work_s):
                async for _ in self._docker.images.pull(ref, stream=True):
                    bound.reschedule(asyncio.get_running_loop().time() + stall_s)
        except TimeoutError:
            raise EngineFault(f"no answer from the registry of {ref}") from None

    async def import_root(self, root: Path, ref: str, changes: Sequence[str]) -> None:
        """Create an image of one layer from the tar file of a root file system."""
        name, tag = ref.rpartition(":")[::2]
        params = {"fromSrc": "-", "repo": name, "tag": tag, "changes": "\n".join(changes)}
        async with self._posted("images/create", params, _chunks(root)) as answer:
            await json_stream_list(answer)

    async def build(
        self, context: bytes, ref: str, *, args: Mapping[str, str], labels: Mapping[str, str], network: str
    ) -> None:
        """Build a tar of a Dockerfile and its files, with the classic builder; never pull.

        Layers that the engine still has are reused.  If another process removes their image at the same moment, they vanish
        during the build; without them it works.  The builder reports this in as many ways as it has steps, so any failure
        while it builds is retried once, without the cache, unless a command of the Dockerfile failed.
        """
        params = {
            "t": ref,
            "buildargs": json.dumps(args),
            "labels": json.dumps(labels),
            "networkmode": network,  # which aiodocker's own `build` does not offer
            "forcerm": "1",
        }
        try:
            await self._build(context, params)
        except EngineFault as fault:
            if fault.status != _REPORTED:
                raise
            await self._build(context, {**params, "nocache": "1"})

    async def _build(self, context: bytes, params: Mapping[str, str]) -> None:
        last = ""
        try:
            async with self._posted("build", params, context) as answer:
                async for line in json_stream_stream(answer):
                    text = " ".join(_COLOUR.sub("", str(line.get("stream", ""))).split())
                    if text and not text.startswith(("Removing ", "--->")):
                        last = text
        except EngineFault as fault:
            if _COMMAND_FAILED not in str(fault):
                raise
            # The fault repeats the whole command that failed; the last line it printed says why.
            raise EngineFault(f"{str(fault)[:120]} … {last[-200:]}" if last else str(fault)) from None

    async def load(self, saved: Path) -> None:
        """Load an image that `save` wrote."""
        async with self._bounded(self._work_s):
            await self._docker.images.import_image(_chunks(saved))

    async def save(self, ref: str, target: Path) -> None:
        """Write an image with its layers to a tar file."""
        async with self._bounded(self._work_s), self._docker.images.export_image(ref) as content:
            with await asyncio.to_thread(target.open, "wb") as file:
                async for chunk in content.iter_chunked(_CHUNK):
                    await asyncio.to_thread(file.write, chunk)

    @contextlib.asynccontextmanager
    async def _posted(
        self, path: str, params: Mapping[str, str], tar: bytes | AsyncIterator[bytes]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the answer to a request that aiodocker has no method for, and close it, which aiodocker leaves to us."""
        headers = {"Content-Type": "application/x-tar"}
        async with (
            self._bounded(self._work_s),
            self._docker._query(path, "POST", params=params, data=tar, headers=headers) as answer,
        ):
            with contextlib.closing(answer):
                yield answer

    @contextlib.asynccontextmanager
    async def _bounded(self, timeout_s: float) -> AsyncIterator[None]:
        """Limit the time of a call, and turn any failure into an `EngineFault`."""
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except aiodocker.DockerError as error:
            if error.status == _AWAY:
                raise EngineFault(f"no Docker engine answers at {self.url}: {error.__context__}") from error
            raise EngineFault(error.message or "refused without a reason", error.status) from error
        except TimeoutError as error:
            raise EngineFault(f"the Docker engine at {self.url} took longer than {timeout_s:g} s") from error
        except aiohttp.ClientError as error:
            raise EngineFault(f"no Docker engine answers at {self.url}: {error}") from error
        except (ValueError, TypeError, LookupError) as error:
            # An answer that is not the JSON it should be, from a proxy or a dying engine.
            raise EngineFault(f"no Docker engine answers at {self.url}, but {error!r}") from error


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk

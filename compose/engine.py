"""The few calls of the Docker Engine API that build an image, and that find and remove others' containers, over plain HTTP.

The paths name no version, so old and new engines answer alike.  Running containers is the agents' task, not this module's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

DEFAULT_URL = "unix:///var/run/docker.sock"
_CHUNK = 1 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CALL_S = 20.0  # bound for calls that answer at once
_WORK_S = 300.0  # bound for calls that move an image
_COMMAND_FAILED = "returned a non-zero code"  # how the builder reports that a step's own command failed


class EngineFault(Exception):
    """The engine does not answer, or refused; the message is one line for people."""

    code = "docker.failed"


class Engine:
    """One engine, as an asynchronous context manager.

    `url` is `unix:///path`, `tcp://host:port` or `http://…`; None uses DOCKER_HOST, else the usual socket.
    Every method raises `EngineFault`.
    """

    def __init__(self, url: str | None = None) -> None:
        self.url = url or os.environ.get("DOCKER_HOST") or DEFAULT_URL
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        scheme, _, rest = self.url.partition("://")
        if scheme == "unix":
            self._session = aiohttp.ClientSession("http://docker", connector=aiohttp.UnixConnector(rest))
        elif scheme in ("tcp", "http", "https"):
            self._session = aiohttp.ClientSession(f"{'http' if scheme == 'tcp' else scheme}://{rest}")
        else:
            raise EngineFault(f"cannot reach a Docker engine at {self.url!r}: use unix:// or tcp://")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def architecture(self) -> str:
        """Return the engine's name for its processor, such as `amd64`; as a first call it shows whether the engine
        answers."""
        async with self._call("GET", "/version") as answer:
            return str((await answer.json())["Arch"])

    async def image(self, ref: str) -> dict[str, Any] | None:
        """Return the engine's description of an image, None if it has none of that name."""
        try:
            async with self._call("GET", f"/images/{quote(ref)}/json") as answer:
                found: dict[str, Any] = await answer.json()
                return found
        except _Refused as refused:
            if refused.status == 404:
                return None
            raise

    async def remove_image(self, image: str) -> None:
        """Remove an image by name or id; one that is in use, or gone, is left alone."""
        try:
            async with self._call("DELETE", f"/images/{quote(image)}"):
                pass
        except _Refused as refused:
            if refused.status not in (404, 409):
                raise

    async def running(self, label: str) -> list[str]:
        """Return the ids of running containers with this label, `name=value`; sorted."""
        filters = json.dumps({"label": [label], "status": ["running"]})
        async with self._call("GET", "/containers/json", {"filters": filters}) as answer:
            return sorted(container["Id"] for container in await answer.json())

    async def remove(self, container: str) -> None:
        """Do `docker rm -f`; a container that is gone is left alone."""
        try:
            async with self._call("DELETE", f"/containers/{quote(container)}", {"force": "1"}):
                pass
        except _Refused as refused:
            if refused.status not in (404, 409):
                raise

    async def pull(self, ref: str, *, first_s: float, stall_s: float) -> None:
        """Pull an image.  Give up if the registry sends nothing for `first_s`, or later pauses for `stall_s`."""
        name, tag = ref.rpartition(":")[::2] if ":" in ref.rpartition("/")[2] else (ref, "latest")
        params = {"fromImage": name, "tag": tag}
        try:
            async with asyncio.timeout(first_s) as bound:
                async with self._call("POST", "/images/create", params, timeout_s=_WORK_S) as answer:
                    async for _ in _report(answer):
                        bound.reschedule(asyncio.get_running_loop().time() + stall_s)
        except TimeoutError:
            raise EngineFault(f"no answer from the registry of {ref}") from None

    async def import_root(self, root: Path, ref: str, changes: Sequence[str]) -> None:
        """Create an image of one layer from the tar file of a root file system."""
        name, tag = ref.rpartition(":")[::2]
        params = [("fromSrc", "-"), ("repo", name), ("tag", tag), *(("changes", change) for change in changes)]
        async with self._call("POST", "/images/create", params, data=_chunks(root), timeout_s=_WORK_S) as answer:
            async for _ in _report(answer):
                pass

    async def build(
        self, context: bytes, ref: str, *, args: Mapping[str, str], labels: Mapping[str, str], network: str
    ) -> None:
        """Build a tar of a Dockerfile and its files, with the classic builder; never pull.

        Layers that the engine still has are reused.  If another process removes their image at the same moment, they vanish
        during the build; without them it works.  The builder reports this in as many ways as it has steps, so any refusal but
        a failed command is retried once, without the cache.
        """
        params = {
            "t": ref,
            "buildargs": json.dumps(args),
            "labels": json.dumps(labels),
            "networkmode": network,
            "forcerm": "1",
        }
        try:
            await self._build(context, params)
        except _Reported:
            await self._build(context, {**params, "nocache": "1"})

    async def _build(self, context: bytes, params: Mapping[str, str]) -> None:
        last = ""
        try:
            async with self._call("POST", "/build", params, data=context, timeout_s=_WORK_S) as answer:
                async for line in _report(answer):
                    said = " ".join(_COLOUR.sub("", str(line.get("stream", ""))).split())
                    if said and not said.startswith(("Removing ", "--->")):
                        last = said
        except _Reported as fault:
            if _COMMAND_FAILED not in str(fault):
                raise
            # The fault repeats the whole command that failed; the last line it printed says why.
            raise EngineFault(f"{str(fault)[:120]} … {last[-200:]}" if last else str(fault)) from None

    async def load(self, saved: Path) -> None:
        """Load an image that `save` wrote."""
        async with self._call("POST", "/images/load", data=_chunks(saved), timeout_s=_WORK_S) as answer:
            async for _ in _report(answer):
                pass

    async def save(self, ref: str, target: Path) -> None:
        """Write an image with its layers to a tar file."""
        async with self._call("GET", "/images/get", {"names": ref}, timeout_s=_WORK_S) as answer:
            with await asyncio.to_thread(target.open, "wb") as file:
                async for chunk in answer.content.iter_chunked(_CHUNK):
                    await asyncio.to_thread(file.write, chunk)

    @contextlib.asynccontextmanager
    async def _call(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        *,
        data: AsyncIterator[bytes] | bytes | None = None,
        timeout_s: float = _CALL_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Content-Type": "application/x-tar"} if data is not None else {}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(
                method, path, params=params, data=data, headers=headers, timeout=timeout
            ) as answer:
                if answer.status >= 400:
                    raise _Refused(answer.status, _message(await answer.text()))
                yield answer
        except aiohttp.ClientError as error:
            raise EngineFault(f"no Docker engine answers at {self.url}: {error}") from error
        except TimeoutError as error:
            raise EngineFault(f"the Docker engine at {self.url} took longer than {timeout_s:.0f} s") from error


class _Refused(EngineFault):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Reported(EngineFault):
    """The engine accepted the call and later reported its failure: another call may have changed the result."""


async def _report(answer: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON lines by which an engine reports progress; an error is one of them, under status 200."""
    async for text in _lines(answer):
        line: dict[str, Any] = json.loads(text)
        if "error" in line:
            raise _Reported(" ".join(str(line["error"]).split()))
        yield line


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    pending = b""
    async for chunk in answer.content.iter_any():
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
    if pending.strip():
        yield pending


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk


def _message(body: str) -> str:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        body = str(json.loads(body)["message"])
    return " ".join(body.split()) or "refused without a reason"

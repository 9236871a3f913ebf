"""What every runtime keeps of output with times, as tests; part of `conformance`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from agents.runtime.interface import RuntimeFault, Wanted
from events.requests import LogPiece, plain
from tests.agents.harness import PATIENCE_S, Harness, ended, output
from tests.errors import raises

if TYPE_CHECKING:
    from agents.runtime.interface import Key, Runtime

STEPS = (
    'cd "$(dirname "$DORM_PROGRESS")"; echo one; while ! [ -e go ]; do sleep 0.02; done; echo two; '
    r"printf '\377\000'; head -c {long} /dev/zero | tr '\0' x; echo; printf unfinished"
)


async def pieces(runtime: Runtime, key: Key, **wanted: object) -> list[LogPiece]:
    """A part of its output, with times."""
    async with asyncio.timeout(PATIENCE_S):
        return [piece async for piece in runtime.timed_logs(key, Wanted(**wanted))]  # type: ignore[arg-type]


def text(found: list[LogPiece]) -> bytes:
    return b"".join(map(plain, found))


def times(found: list[LogPiece]) -> list[int]:
    return [stretch.time for piece in found for stretch in piece.stretches]


class OutputConformance:
    """The tests of times."""

    long_line = 300_000
    """Bytes of the longest line."""

    async def noted(self, runtime: Runtime, key: Key) -> None:
        """Wait until the runtime knows the time of what is there."""

    async def test_lines_have_times(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell(STEPS.format(long=self.long_line))
        before = time.time_ns()
        await runtime.ensure(spec)
        followed = list[LogPiece]()
        async with (
            asyncio.timeout(PATIENCE_S),
            contextlib.aclosing(runtime.timed_logs(spec.key, Wanted(follow=True))) as answers,
        ):
            async for piece in answers:
                followed.append(piece)
                if text(followed) == b"one\n":
                    await self.noted(runtime, spec.key)
                    between = time.time_ns()
                    (runtime.run_dir(spec.key) / "go").touch()
        await ended(runtime, spec.key)
        whole = await output(runtime, spec.key)
        assert whole.startswith(b"one\n")
        assert whole.endswith(b"x\nunfinished")
        for found in (followed, await pieces(runtime, spec.key)):
            assert text(found) == whole
            first, *rest = times(found)
            # Times of files are those of the last tick of the kernel's clock.
            assert before - 10**8 < first <= between, "one"
            assert all(between - 10**8 < one < time.time_ns() for one in rest)
            done = b""
            for piece in found:
                done += plain(piece)
                assert done + text(await pieces(runtime, spec.key, after=piece.mark, tail=1)) == whole
            assert await pieces(runtime, spec.key, after=found[-1].mark) == []
        assert text(await pieces(runtime, spec.key, since=between)) == whole.removeprefix(b"one\n")
        assert text(await pieces(runtime, spec.key, since=before - 10**9)) == whole
        assert text(await pieces(runtime, spec.key, since=time.time_ns() + 10**9)) == b""
        assert text(await pieces(runtime, spec.key, tail=1, since=between)) == b"unfinished"
        assert text(await pieces(runtime, spec.key, tail=0)) == b""

    async def test_a_mark_of_another_runtime_is_refused(self, harness: Harness, runtime: Runtime) -> None:
        spec = harness.shell("echo one")
        await runtime.ensure(spec)
        with raises(RuntimeFault, "agent.question.malformed"):
            await pieces(runtime, spec.key, after="nonsense")

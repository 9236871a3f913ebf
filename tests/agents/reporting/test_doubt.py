"""What a node says of checkpoints that real programs were writing when they ended, and what the next generation finds."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from agents import reporter
from agents.outputs import checkpoints
from events import kinds as k
from events.kinds import Doubt
from tests.agents.one_node import NODE, Node, holds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from agents.runtime.docker.runtime import DockerRuntime

REPORT = """echo '{"checkpoint": 30}' >> "$DORM_PROGRESS";"""
WAIT = "while :; do sleep 0.05; done"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    await node.clean()


async def ended(node: Node, count: int = 1) -> k.ContainerExited:
    fact = await node.until(k.ContainerExited, count)
    assert isinstance(fact, k.ContainerExited)
    return fact


def script(on_term: str, first: str = "model.pt") -> str:
    """It saves completely, reports that, and does something else when it is asked to stop."""
    return f"cd \"$DORM_CHECKPOINT_DIR\"; trap '{on_term}' TERM; echo complete > {first}; {REPORT} {WAIT}"


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_container_that_is_killed_while_it_saves_leaves_a_doubtful_checkpoint(
    node: Node, *, restarted: bool
) -> None:
    async with node.agent():
        await node.release(script(f"printf torn > model.pt; {WAIT}"))
        await node.until(k.AppCheckpointed)
        if not restarted:
            await node.resize("app-1", 2, 1)
            found = await ended(node)
    if restarted:  # Its agent has died meanwhile: what it had noted is in the shared folder.
        async with node.agent():
            await node.resize("app-1", 2, 1)
            found = await ended(node)
    assert (found.asked, found.killed, found.doubt) == (True, True, Doubt(files=["model.pt"]))


@pytest.mark.docker
@pytest.mark.slow
async def test_a_container_of_docker_that_is_killed_while_it_saves(
    tmp_path: Path, docker_node: Callable[..., DockerRuntime], docker_image: str
) -> None:
    node = Node(tmp_path)
    node.make_runtime = lambda: docker_node(NODE)
    try:
        async with node.agent():
            await node.release(script(f"printf torn > model.pt; {WAIT}"), image=docker_image)
            await node.until(k.AppCheckpointed)
            await node.resize("app-1", 2, 1)
            found = await ended(node)
        assert (found.asked, found.killed, found.doubt) == (True, True, Doubt(files=["model.pt"]))
    finally:
        runtime = docker_node(NODE)
        await runtime.open()
        for seen in await runtime.list():
            await runtime.stop(seen.key, 0.0)
            await runtime.remove(seen.key)
        await runtime.close()


async def test_a_container_that_saves_and_reports_when_it_is_asked_leaves_no_doubt(node: Node) -> None:
    report = REPORT.replace("30", "40").replace("'", "'\\''")
    async with node.agent():
        await node.release(script(f"echo complete again > model.pt; {report} exit 0"))
        await node.until(k.AppCheckpointed)
        await node.resize("app-1", 2, 1)
        found = await ended(node)
        assert (found.exit_code, found.asked, found.killed, found.doubt) == (0, True, False, None)
        steps = [fact.step for fact in node.facts() if isinstance(fact, k.AppCheckpointed)]
        assert steps == [30, 40]


async def test_a_folder_that_does_not_answer_delays_no_report_for_long(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def hangs(*_: object) -> None:
        answers.wait()

    monkeypatch.setattr(reporter, "_LOOK_S", 0.1)
    monkeypatch.setattr(checkpoints, "look", hangs)
    try:
        async with node.agent():
            await node.release(script("printf torn > model.pt; exit 1"))
            await node.until(k.AppCheckpointed)
            await node.resize("app-1", 2, 1)
            found = await ended(node)
            assert (found.exit_code, found.doubt) == (1, None), "what is unknown is not in doubt"
    finally:
        answers.set()


async def test_a_program_that_is_done_may_leave_other_files(node: Node) -> None:
    async with node.agent():
        await node.release(f'cd "$DORM_CHECKPOINT_DIR"; echo complete > model.pt; {REPORT} sleep 0.5; echo > final.pt')
        found = await ended(node)
        assert (found.exit_code, found.asked, found.doubt) == (0, False, None)


@pytest.mark.parametrize("how", ["resume", "fall_back"])
async def test_the_next_generation_finds_or_sets_aside_what_a_crash_left(node: Node, tmp_path: Path, how: str) -> None:
    until_told = "while [ ! -e $DORM_OUTPUTS/go ]; do sleep 0.05; done"
    crash = f"echo complete > step-30.pt; {REPORT} {until_told}; printf torn > step-40.pt; exit 3"
    then = f'ls > "$DORM_OUTPUTS/$DORM_RANK.$$"; mv "$DORM_OUTPUTS/$DORM_RANK.$$" "$DORM_OUTPUTS/$DORM_RANK"; {WAIT}'
    choose = f"if [ $DORM_GENERATION = 2 ]; then {then}; elif [ $DORM_RANK = 0 ]; then {crash}; fi"
    work = f'cd "$DORM_CHECKPOINT_DIR"; {choose}; {WAIT}'
    shared = tmp_path / "checkpoints"
    async with node.agent():
        await node.release(work, slots=2, on_doubtful=how)
        await node.until(k.AppCheckpointed)
        (shared / ".dorm-apps/app-1/outputs/go").touch()
        crashed = await ended(node)
        assert (crashed.exit_code, crashed.asked) == (3, False)
        assert crashed.doubt == Doubt(files=["step-40.pt"], before=True)
        await node.resize("app-1", 2, 2)
        await ended(node, 2)
        await node.decide(k.GenerationReleased(app="app-1", generation=2, resume=True, checkpoint=30))
        outputs = shared / ".dorm-apps/app-1/outputs"
        await holds(lambda: (outputs / "0").exists() and (outputs / "1").exists())
        seen = [(outputs / rank).read_text().split() for rank in "01"]
        starts = [
            fact for fact in await node.said(lambda facts: _starts(facts) == 4) if isinstance(fact, k.ContainerStarted)
        ]
        found = {fact.slot: fact.doubt for fact in starts if fact.generation == 2}
        assert found[1] is None, "the node of the lowest slot says it"
        if how == "resume":
            assert seen == [["step-30.pt", "step-40.pt"]] * 2
            assert found[0] == crashed.doubt
        else:
            assert seen == [["step-30.pt"]] * 2
            assert found[0] == Doubt(files=["step-40.pt"], before=True, aside=".doubtful/generation-2")
            assert (shared / "app-1/.doubtful/generation-2/step-40.pt").read_text() == "torn"


def _starts(facts: list[k.Event]) -> int:
    return sum(isinstance(fact, k.ContainerStarted) for fact in facts)

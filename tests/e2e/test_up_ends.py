"""How `dorm up` ends, gracefully, at once, or by a kill; and how the next one starts."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.e2e.commands import done, dorm, processes_of, running, until_gone, until_printed
from tests.e2e.local_up import leaving_nothing, named, talker, trainer, up, write_spec
from tests.e2e.story import check_log, until
from tests.tries import LONG

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.local_up import Up

pytestmark = [pytest.mark.nats, pytest.mark.slow]


async def step_of(cluster: Up, name: str, least: int) -> int:
    """Wait until an app has come so far."""
    async with cluster.client() as client:
        return named(await until(client, lambda s: named(s, name).step >= least, f"step {least}"), name).step


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
async def test_the_next_one_resumes_at_the_checkpoint(tmp_path: Path, number: signal.Signals) -> None:
    async with leaving_nothing(tmp_path) as folder:
        async with up(folder) as cluster:
            await done(cluster.home, "submit", write_spec(folder, trainer("kept", 80)))
            reached = await step_of(cluster, "kept", 20)
            assert "policy: dorm-speed -> dorm" in await done(cluster.home, "policy", "set", "policy=dorm")
            cluster.process.send_signal(number)
            assert await asyncio.wait_for(cluster.process.wait(), 30.0) == 0
            text = cluster.log.read_text()
            assert "stopping: 1 app checkpoints first; Ctrl-C again stops at once" in text
            assert "stopped; the next `dorm up` resumes from here" in text
            assert not (cluster.home / "running.json").exists()
            assert processes_of(folder) == {}
        async with up(folder) as cluster, cluster.client() as client:
            state = await client.state()
            assert state.settings.policy == "dorm"  # only a new cluster starts with another one
            app = named(state, "kept")
            assert app.checkpoint is not None
            assert app.checkpoint >= reached
            state = await until(client, lambda s: bool(named(s, "kept").ended), "it completes")
            app = named(state, "kept")
            assert (app.ended, app.step, app.lost_steps, app.failures) == ("completed", 80, 0, 0)
            await check_log(client)
            assert await done(cluster.home, "logs", "kept")


@pytest.mark.soak
async def test_a_second_ctrl_c_stops_at_once_and_loses_nothing(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder:
        async with up(folder) as cluster:
            # It ignores SIGTERM for as long as it may.
            deaf = ["python3", "-c", "import os, signal, time; signal.signal(15, signal.SIG_IGN)\n"
                    "while True: open(os.environ['DORM_PROGRESS'], 'a').write('{\"step\": 1}\\n'); time.sleep(1)"]  # fmt: skip
            await done(cluster.home, "submit", write_spec(folder, talker("deaf", command=deaf, grace="15s", n_max=4)))
            await done(cluster.home, "submit", write_spec(folder, trainer("hasty", 40)))
            await step_of(cluster, "hasty", 5)
            await done(cluster.home, "submit", write_spec(folder, talker("late", 1, 0.0, n_min=4, n_max=4)))
            cluster.interrupt()
            await cluster.said("Ctrl-C again stops at once")
            cluster.interrupt()
            assert await asyncio.wait_for(cluster.process.wait(), 15.0) == 0
            assert "stopped at once" in cluster.log.read_text()
            await until_gone(folder)
        async with up(folder) as cluster, cluster.client() as client:
            state = await until(
                client, lambda s: bool(named(s, "hasty").ended and named(s, "late").ended), "both others complete"
            )
            assert [(named(state, name).ended, named(state, name).failures) for name in ("hasty", "late")] == [
                ("completed", 0),
                ("completed", 0),
            ]
            assert not named(state, "deaf").ended
            cluster.interrupt()
            await cluster.said("Ctrl-C again stops at once")
            cluster.interrupt()
            await cluster.process.wait()


async def test_two_signals_together_leave_nothing_behind(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder, up(folder) as cluster:
        await done(cluster.home, "submit", write_spec(folder, talker("many", n_min=8, n_max=8, grace="30s")))
        # The containers are on their way up while everything ends.
        cluster.interrupt()
        await asyncio.sleep(0)
        cluster.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(cluster.process.wait(), 20.0) == 0
        await until_gone(folder)


@pytest.mark.soak
async def test_killed_containers_run_on_and_the_next_one_adopts_them(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder:
        async with up(folder) as cluster:
            await done(cluster.home, "submit", write_spec(folder, trainer("steady", 150)))
            before = await step_of(cluster, "steady", 10)
            cluster.process.kill()
            await cluster.process.wait()
        orphans = processes_of(folder)
        servers = [pid for pid, command in orphans.items() if "nats-server" in command]
        workers = {pid: psutil.Process(pid).create_time() for pid in orphans if "compose.apps" in orphans[pid]}
        assert len(servers) == 1
        assert workers
        async with up(folder) as cluster, cluster.client() as client:
            assert not psutil.pid_exists(servers[0]) or not psutil.Process(servers[0]).is_running()
            after = await step_of(cluster, "steady", before + 1)
            assert {pid: psutil.Process(pid).create_time() for pid in workers} == workers
            app = named(await client.state(), "steady")
            assert (app.adjustments, app.failures, app.lost_steps) == (0, 0, 0)
            assert after > before
            state = await until(client, lambda s: bool(named(s, "steady").ended), "it completes")
            assert (named(state, "steady").ended, named(state, "steady").step) == ("completed", 150)
            await check_log(client)


@pytest.mark.soak
@pytest.mark.parametrize(
    "moment", ["nats/nats.conf", "nats/jetstream", "nodes/node-2/ledger", *(["nats", "nats/nats.pid"] if LONG else [])]
)
async def test_ctrl_c_while_it_starts(tmp_path: Path, moment: str) -> None:
    async with leaving_nothing(tmp_path) as folder:
        async with up(folder, ready=False) as cluster:
            while not (cluster.home / "local" / moment).exists():  # noqa: ASYNC110  # nothing else tells
                await asyncio.sleep(0.001)
            cluster.interrupt()
            code = await asyncio.wait_for(cluster.process.wait(), 20.0)
            text = cluster.log.read_text()
            assert code in (0, 130), text
            assert ("stopped before the cluster was up" in text) == (code == 130)
            assert "Traceback" not in text
            assert not (cluster.home / "running.json").exists()
        await until_gone(folder)
        async with up(folder) as cluster:
            assert "node-1" in await done(cluster.home, "nodes")


@pytest.mark.soak
async def test_a_follower_is_informed_of_an_outage_once_and_continues(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder:
        async with up(folder) as cluster:
            port = cluster.url.rsplit(":", 1)[1]
            await done(cluster.home, "submit", write_spec(folder, talker("chatty", 100_000, 0.1)))
            async with cluster.client() as client:
                await until(client, lambda s: named(s, "chatty").phase == "running", "it runs")
            cluster.process.kill()
            await cluster.process.wait()
        # On a port that stays, from here on.
        async with up(folder, "--port", port) as cluster:
            logs = {name: folder / f"follow-{name}" for name in ("events", "logs", "wait")}
            brief = write_spec(folder, talker("brief", 60, 0.2))
            home = cluster.home
            async with (
                running(home, logs["events"], "events", "-f") as events,
                running(home, logs["logs"], "logs", "-f", "chatty") as output,
                running(home, logs["wait"], "submit", "--wait", brief) as waiting,
            ):
                await until_printed(logs["events"], "app=brief", events)
                await until_printed(logs["logs"], "line 5\n", output)
                async with cluster.client() as client:
                    await until(client, lambda s: named(s, "brief").phase == "running", "it runs")
                cluster.process.kill()
                await cluster.process.wait()
                for pid, command in processes_of(folder).items():
                    if "nats-server" in command:
                        psutil.Process(pid).kill()
                for name, process in (("events", events), ("logs", output), ("wait", waiting)):
                    await until_printed(logs[name], "is lost", process)
                async with up(folder, "--port", port) as again:
                    last = f"line {int((await done(home, 'logs', 'chatty', '--tail', '1')).split()[1]) + 5}\n"
                    await until_printed(logs["logs"], last, output)
                    assert await asyncio.wait_for(waiting.wait(), 40.0) == 0
                    await until_printed(logs["events"], "AppCompleted", events)
                    await done(home, "cancel", "chatty", "--wait")
                    assert await asyncio.wait_for(output.wait(), 20.0) == 0
                    again.interrupt()
                    assert await asyncio.wait_for(again.process.wait(), 20.0) == 0
            for log in logs.values():
                text = log.read_text()
                assert text.count("is lost; trying to reach it again") in (1, 2), (
                    text
                )  # 2: the clean end of the last one
                assert text.count("again\n") >= 1
                assert "Traceback" not in text
                assert "[debug" not in text
                assert "nats error" not in text
            lines = [line for line in logs["logs"].read_text().splitlines() if line.startswith("line ")]
            assert lines == [f"line {number}" for number in range(len(lines))]


async def test_a_stale_note_of_a_killed_cluster(tmp_path: Path) -> None:
    async with leaving_nothing(tmp_path) as folder:
        async with up(folder) as cluster:
            cluster.process.kill()
            await cluster.process.wait()
            for pid, command in processes_of(folder).items():
                if "nats-server" in command:
                    psutil.Process(pid).kill()
            await until_gone(folder)
            code, _, err = await dorm(cluster.home, "ps")
            assert (code, len(err.splitlines())) == (1, 1)
            assert err.endswith(" [log.no_server]\n")
        async with up(folder) as cluster:
            assert "no app" in await done(cluster.home, "ps")

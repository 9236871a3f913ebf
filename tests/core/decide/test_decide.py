"""What follows from a state: ends, failures, releases, and when."""

from __future__ import annotations

import pytest

from dorm.core.failures import MOST_PORTS
from dorm.core.state import digest
from dorm.core.timing import next_deadline
from events import kinds as k
from events.quantities import SECOND
from tests.core.records import Bench, joined


class TestCompletion:
    def test_an_app_completes_when_all_slots_exit_unasked_with_0(self) -> None:
        bench = Bench(a=4)
        bench.running(n_min=2, n_max=2)
        bench.exited(slot=0)
        assert bench.decided() == []
        bench.exited(slot=1)
        (said,) = bench.decide()
        assert isinstance(said, k.AppCompleted)
        assert bench.app().ended == "completed"

    def test_exits_on_request_do_not_complete_the_app(self) -> None:
        bench = Bench(a=4)
        bench.running(n_max=1)
        bench.all_exited(asked=True)
        (said,) = bench.decide()
        assert isinstance(said, k.GenerationFailed)
        assert not said.counted

    def test_done_in_the_middle_of_an_adjustment(self) -> None:
        """The last work was done while the others were being asked to stop: nothing is left to restart for."""
        bench = Bench(a=4)
        bench.running(n_max=2)
        bench.add(k.AppUpdated(app="app", n_max=1))
        bench.settle()
        assert bench.app().generation == 2
        bench.all_exited(generation=1)
        assert [type(fact) for fact in bench.settle()] == [k.AppCompleted]


class TestFailure:
    def test_backoff_doubles_up_to_the_longest_and_then_the_app_fails(self) -> None:
        bench = Bench(a=4)
        bench.submit(n_max=1, retries={"limit": 3, "backoff": "2s", "longest": "5s"})
        bench.settle()
        pauses = []
        for _ in range(3):
            bench.started()
            bench.exited(code=3)
            (said, *_) = bench.decide()
            assert isinstance(said, k.GenerationFailed)
            assert said.counted
            assert said.reason == "slot 0 on a ended with exit code 3"
            pauses.append((said.retry_at - bench.now) / SECOND)
            bench.settle()
            assert bench.app().phase == "retrying"
            assert next_deadline(bench.state, bench.now) == said.retry_at
            bench.wait(pauses[-1])
            bench.settle()
        assert pauses == [2, 4, 5]
        bench.started()
        bench.exited(code=143)
        (said, *_) = bench.decide()
        assert isinstance(said, k.AppFailed)
        assert said.reason == "slot 0 on a ended with exit code 143 (killed by signal 15) (3 of 3 retries used up)"
        assert said.exit_codes == {"0": 143}
        assert bench.app().ended == "failed"

    @pytest.mark.parametrize(
        ("how", "reason", "counted"),
        [
            ({"code": None, "reason": "out_of_memory"}, "slot 0 on a ran out of memory", True),
            ({"code": None, "reason": "image", "message": "no such image"}, "slot 0 on a: no such image", True),
            ({"code": None, "reason": "port", "message": "port 9 is taken"}, "slot 0 on a: port 9 is taken", False),
            ({"code": None, "reason": "lost", "message": "it is gone"}, "slot 0 on a: it is gone", False),
        ],
    )
    def test_whether_the_app_failed_by_itself(self, how: dict[str, str], reason: str, counted: bool) -> None:
        bench = Bench(a=4)
        bench.running(n_max=1, retries={"limit": 0} if not counted else {"limit": 1})
        bench.exited(**how)  # type: ignore[arg-type]  # fields of ContainerExited
        (said,) = bench.decide()
        assert isinstance(said, k.GenerationFailed)
        assert (said.reason, said.counted) == (reason, counted)
        assert bench.app().failures == int(counted)

    def test_the_first_ended_container_decides_the_cause(self) -> None:
        bench = Bench(a=4)
        bench.running(n_min=3, n_max=3, retries={"limit": 0})
        bench.exited(slot=0, code=None, reason="lost", message="it is gone")
        bench.wait(1)
        bench.exited(slot=2, code=7)  # its peer was lost
        (said,) = bench.decide()
        assert isinstance(said, k.GenerationFailed)
        assert (said.reason, said.counted) == ("slot 0 on a: it is gone", False)

    def test_an_app_that_finds_every_port_taken_is_at_fault_itself(self) -> None:
        bench = Bench(a=4)
        bench.submit(n_max=1, retries={"limit": 0, "backoff": "1s"})
        bench.settle()
        for _ in range(MOST_PORTS):
            bench.started()
            bench.exited(code=98, reason="port")
            (said, *_) = bench.decide()
            assert isinstance(said, k.GenerationFailed)
            assert not said.counted
            bench.settle()
            bench.wait((said.retry_at - bench.now) / SECOND)
            bench.settle()
        bench.started()
        bench.exited(code=98, reason="port")
        (said, *_) = bench.decide()
        assert isinstance(said, k.AppFailed)

    def test_the_rest_is_waited_for_before_it_starts_again(self) -> None:
        bench = Bench(a=4)
        bench.running(n_min=2, n_max=2)
        bench.exited(slot=0, code=1)
        bench.settle()
        bench.wait(60)
        bench.settle()
        assert bench.app().generation == 1
        assert bench.decided(allocate=True) == [], "it is no part of the problem, so there is no news of it"
        bench.exited(slot=1, code=143, asked=True)
        bench.settle()
        assert bench.app().generation == 2

    def test_an_app_that_waits_for_room_after_its_pause_has_that_reason(self) -> None:
        bench = Bench(a=4)
        bench.running(n_min=4, n_max=4)
        bench.exited(slot=0, code=1)
        bench.settle()
        bench.all_exited(code=143, asked=True)
        bench.add(joined("a", 3))
        bench.wait(60)
        bench.settle()
        app = bench.app()
        assert (app.phase, app.waiting.code if app.waiting else "") == ("waiting", "no_nodes")
        assert app.retry_at == 0


class TestBarrier:
    def test_nothing_starts_before_all_of_the_old_has_exited(self) -> None:
        bench = Bench(a=4)
        bench.running(n_max=3)
        bench.add(k.AppUpdated(app="app", n_max=2))
        bench.settle()
        app = bench.app()
        assert [app.generation, app.generations[2].released] == [2, False]
        for slot in (0, 1):
            bench.exited(slot=slot, code=143, asked=True, generation=1)
            assert bench.decided() == []
        bench.wait(3)
        bench.exited(slot=2, code=143, asked=True, generation=1)
        (said,) = bench.decide()
        assert isinstance(said, k.GenerationReleased)
        assert (said.generation, said.previous, said.stop_s, said.lease_ended) == (2, 1, 3.0, [])
        assert list(app.generations) == [2]
        assert app.adjustments == 1

    def test_a_container_that_was_never_started_counts_until_its_agent_reports_it(self) -> None:
        bench = Bench(a=4)
        bench.submit(n_min=2, n_max=2)
        bench.settle()
        bench.started(slots=[0])
        bench.exited(slot=0, code=1)
        bench.settle()
        bench.wait(60)
        assert [type(fact) for fact in bench.settle()] == [k.IdleTicked], "nothing comes of looking again"
        bench.exited(slot=1, code=None, reason="lost")
        bench.settle()
        assert bench.app().generation == 2

    def test_room_of_another_is_waited_for(self) -> None:
        bench = Bench(a=4)
        bench.running("first", n_min=1, n_max=4)
        bench.submit("second", n_min=2, n_max=2)
        bench.settle()
        assert bench.app("first").generation == 2
        assert not bench.app("second").generations[1].released
        bench.all_exited("first", 143, generation=1, asked=True)
        bench.settle()
        assert bench.app("second").generations[1].released

    def test_work_since_the_checkpoint_is_lost_and_counted(self) -> None:
        bench = Bench(a=4)
        app = bench.running(n_max=2)
        bench.add(k.AppCheckpointed(app=app.id, generation=1, step=100), "a")
        bench.add(k.AppProgressed(app=app.id, generation=1, step=130))
        bench.add(k.AppUpdated(app="app", n_max=1))
        bench.settle()
        bench.all_exited(code=143, generation=1, asked=True)
        (said,) = bench.decide()
        assert isinstance(said, k.GenerationReleased)
        assert (said.resume, said.checkpoint, said.lost_steps) == (True, 100, 30)
        assert (app.lost_steps, app.step) == (30, 100)

    def test_a_lost_node_is_waited_out_until_its_lease_has_ended(self) -> None:
        bench = Bench(a=2, b=2)
        bench.running(n_min=2, n_max=2, cpu=2)
        bench.conclude(a=20)
        bench.settle()
        bench.wait(200)
        assert [type(fact) for fact in bench.settle()] == [k.IdleTicked], "nothing comes of looking again"
        bench.conclude(a=320)
        bench.settle()
        app = bench.app()
        assert [c.reason for c in app.generations[1].containers.values() if c.node == "a"] == ["lost"]
        bench.all_exited(code=143, asked=True)
        bench.add(joined("c", 2))
        bench.wait(60)
        bench.settle()
        assert app.generations[2].by_node() == {"b": 1, "c": 1}
        assert app.generations[2].released


class TestOvertaken:
    """What was decided on a basis that others have changed meanwhile is void, and the app is placed again."""

    def decided(self, *nodes: str, n_min: int = 1, n_max: int = 4) -> tuple[Bench, list[object], int]:
        bench = Bench(**dict.fromkeys(nodes or ("a", "b"), 4))
        bench.submit(n_min=n_min, n_max=n_max)
        bench.decide()
        return bench, bench.decided(allocate=True), bench.state.seq

    @pytest.mark.parametrize(
        "event",
        [
            k.NodeDrainRequested(node="a"),
            k.NodeLeft(node="a"),
            joined("a", 1),
        ],
        ids=["drained", "left", "joined again with less"],
    )
    def test_a_changed_node_voids_the_placement(self, event: k.Event) -> None:
        bench, facts, basis = self.decided(n_min=8, n_max=8)
        bench.add(event)
        bench.say(*facts, basis=basis)
        app = bench.app()
        assert app.generations[1].void
        assert bench.decided() == []
        bench.add(joined("c", 4))
        bench.add(joined("d", 4))
        bench.settle()
        assert app.generation == 2
        assert app.generations[2].released
        assert "a" not in app.generations[2].by_node() or app.generations[2].by_node()["a"] == 1

    def test_a_lost_node_after_the_round_voids_the_placement(self) -> None:
        bench, facts, basis = self.decided("a", "b", n_min=2, n_max=2)
        bench.say(*facts, basis=basis)
        node = next(iter(bench.app().generations[1].by_node()))
        bench.conclude(**{node: 20})
        assert bench.app().generations[1].void
        bench.settle()
        assert node not in bench.app().generations[2].by_node()

    def test_a_cancellation_voids_the_placement(self) -> None:
        bench, facts, basis = self.decided()
        bench.add(k.AppCancelRequested(app="app"))
        bench.say(*facts, basis=basis)
        assert bench.app().generations[1].void
        assert [type(fact) for fact in bench.settle()] == [k.AppCancelled]

    def test_an_exit_of_the_running_partition_voids_the_placement(self) -> None:
        bench = Bench(a=4)
        bench.running(n_max=2)
        bench.add(k.AppUpdated(app="app", n_max=1))
        facts, basis = bench.decided(allocate=True), bench.state.seq
        bench.exited(slot=0, code=1)
        bench.say(*facts, basis=basis)
        assert bench.app().generations[2].void
        bench.exited(slot=1, code=143, asked=True, generation=1)
        bench.settle()
        assert bench.app().generations[3].released


class TestRest:
    def test_a_drained_node_is_emptied(self) -> None:
        bench = Bench(a=4, b=4)
        bench.running(n_max=1)
        node = next(iter(bench.app().generations[1].by_node()))
        bench.add(k.NodeDrainRequested(node=node))
        bench.settle()
        assert node not in bench.app().generations[2].by_node()

    def test_forced_moves_happen_even_if_nothing_may_change(self) -> None:
        """A drained node's apps do not count against θ2, and neither do those of a lost one: they start again."""
        bench = Bench(a=2, b=2, c=4)
        bench.add(k.PolicyChanged(params={"theta2": 0.0}))
        for name in ("one", "two", "three"):
            bench.running(name, n_max=2)
        homes = {app.name: sorted(app.generations[1].by_node()) for app in bench.state.live_apps()}
        drained = homes["one"][0]
        bench.add(k.NodeDrainRequested(node=drained))
        (decision,) = bench.decide(allocate=True)
        assert isinstance(decision, k.Resized)
        moved = {change.app for change in decision.changes}
        assert moved == {bench.app(name).id for name, nodes in homes.items() if drained in nodes}
        assert (decision.overhead, decision.overhead_budget) == (0, 0)
        assert all(placed.node != drained for change in decision.changes for placed in change.placement)

    def test_if_nothing_may_change_no_other_app_moves(self) -> None:
        bench = Bench(a=4)
        bench.add(k.PolicyChanged(params={"theta2": 0.0}))
        bench.running("one", n_max=4)
        bench.add(joined("b", 4))
        bench.add(k.AppUpdated(app="one", n_max=8))
        bench.settle()
        assert bench.app("one").generation == 1
        waiting = bench.app("one").waiting
        assert waiting is not None
        assert waiting.code == "overhead"

    def test_asking_changes_nothing_and_gives_the_same_twice(self) -> None:
        bench = Bench(a=4, b=2)
        bench.submit("one", n_max=3)
        bench.submit("two", n_max=3)
        for _ in range(4):
            before = digest(bench.state)
            for allocate in (False, True):
                assert bench.decided(allocate=allocate) == bench.decided(allocate=allocate)
            assert digest(bench.state) == before
            bench.decide() or bench.decide(allocate=True)

    def test_the_allocation_waits_until_the_rest_is_published(self) -> None:
        bench = Bench(a=4)
        bench.submit()
        assert [type(fact) for fact in bench.decided(allocate=True)] == [k.AppAccepted]

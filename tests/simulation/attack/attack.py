"""The attack: applies a schedule of faults to a running history, and ends each fault when its time is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from events import kinds as k
from events import subjects
from events.codec import decode
from events.log.records import Record
from tests.core.nonsense import nonsense
from tests.simulation.attack import ailments, clocks, gates, misuse, neighbors, operators, replacing, steering
from tests.simulation.attack.crowds import flood_progress, submit_crowd
from tests.simulation.attack.strangers import impersonate_node, submit_large, take_message_id, write_absurd_rounds

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.attack.faults import Fault
    from tests.simulation.history import History
    from tests.simulation.machines.machine import Container, Machine
    from tests.simulation.world.process import Host

_RESTART_S = 0.5
_MOST_STEPS = 400
"""A process crashes at most this many steps after the fault's time."""


class Attack:
    """Attacks one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.world = history.world
        self.injected: list[Fault] = []
        self.over = False

    def schedule(self, faults: list[Fault]) -> None:
        for fault in faults:
            self.world.at(fault.at, self._inject, fault)

    def _inject(self, fault: Fault) -> None:
        if self.over:
            return
        self.world.trace(f"FAULT {fault}")
        self.injected.append(fault)
        _HITS[fault.kind](self, fault)
        self.history.hit(fault)

    def _later(self, fault: Fault, undo: Callable[[], None]) -> None:
        """Call `undo` when the fault's time is over, unless the calm end of the history, which undoes everything, came
        before."""
        self.later(fault.for_s, undo)

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self.world.after(seconds, lambda: None if self.over else act())

    def place(self, fault: Fault) -> str:
        """The host that the fault hits: for a node's name, its present machine."""
        return self.history.place_of.get(fault.target, fault.target)

    # --- processes -----------------------------------------------------------------------------------------------------

    def _kill(self, fault: Fault) -> None:
        self.history.down_for[self.place(fault)] = fault.for_s or _RESTART_S
        for process in list(self._host(fault).processes):
            process.kill()

    def _crash(self, fault: Fault) -> None:
        self.history.down_for[self.place(fault)] = fault.for_s or _RESTART_S
        for process in self._host(fault).processes:
            process.kill(crash_in=1 + int(fault.argument * _MOST_STEPS))

    def _stop(self, fault: Fault) -> None:
        self.history.down_for[self.place(fault)] = fault.for_s or _RESTART_S
        for process in list(self._host(fault).processes):
            process.stop()

    def _pause(self, fault: Fault) -> None:
        self.pause(self.place(fault), fault.for_s)

    def pause(self, place: str, for_s: float) -> None:
        """Pause everything that runs on this host."""
        paused = list(self.history.hosts[place].processes)
        for process in paused:
            process.pause()

        def resume() -> None:
            for process in paused:
                process.resume()

        self.later(for_s, resume)

    def _kill_masters(self, fault: Fault) -> None:
        for name in self.history.masters:
            for process in list(self.history.hosts[name].processes):
                process.kill()

    # --- the network ---------------------------------------------------------------------------------------------------

    def _host(self, fault: Fault) -> Host:
        return self.history.hosts[self.place(fault)]

    def _cut(self, fault: Fault) -> None:
        host = self._host(fault)
        host.cut(silent=fault.argument < 0.6)
        self._later(fault, host.heal)

    def _half_cut(self, fault: Fault) -> None:
        host = self._host(fault)
        host.cut(silent=True, way="up" if fault.argument < 0.5 else "down")
        self._later(fault, host.heal)

    def _lag(self, fault: Fault) -> None:
        self._host(fault).lag(fault.for_s)

    def _reset(self, fault: Fault) -> None:
        self._host(fault).reset()

    def _step_clock(self, fault: Fault) -> None:
        self._host(fault).step_clock(_step_of(fault))

    # --- rounds --------------------------------------------------------------------------------------------------------

    def _before_next_round(self, act: Callable[[str, bytes, Callable[[], None]], None]) -> None:
        """Call `act` with id and body of the next round that reaches the server, and a function that lets it pass."""
        server = self.world.server
        append = server.append

        def watch(
            subject: str, body: bytes, msg_id: str, expected: int | None, reply: Callable[[object], None]
        ) -> None:
            if expected is None:
                append(subject, body, msg_id, expected, reply)
                return
            server.append = append  # type: ignore[method-assign]
            if self.over:
                append(subject, body, msg_id, expected, reply)
            else:
                act(msg_id, body, lambda: server.handle(lambda: append(subject, body, msg_id, expected, reply)))

        server.append = watch  # type: ignore[method-assign, assignment]

    def _hold_round(self, fault: Fault) -> None:
        """The network delays a round, and everything that its master sends afterwards, for longer than the master's lease."""

        def hold(msg_id: str, body: bytes, let_pass: Callable[[], None]) -> None:
            host = self.history.hosts[msg_id.partition("-")[0]]
            host.cut(silent=True)
            self.history.disturb(host.name, fault.for_s)
            self.world.after(fault.for_s, let_pass)
            self.world.after(fault.for_s + 0.01, host.heal)

        self._before_next_round(hold)

    def _forestall_round(self, fault: Fault) -> None:
        """A record that the master could not know about arrives right before its round."""

        def forestall(msg_id: str, body: bytes, let_pass: Callable[[], None]) -> None:
            round = decode(Record(0, 0, subjects.rounds(self.history.cluster), body))
            facts = round.events if isinstance(round, k.Round) else []
            if fault.argument < 0.3 and not self.history.audited:
                self.history.append(subjects.rounds(self.history.cluster), b"{}")
            for fact in facts:
                if isinstance(fact, k.Resized) and fact.changes and fact.changes[0].placement:
                    node = fact.changes[0].placement[0].node
                    self._drain(msgspec.structs.replace(fault, target=node, for_s=5.0))
                elif isinstance(fact, k.AppAccepted | k.GenerationReleased) and fault.argument > 0.8:
                    self.history.say(k.AppCancelRequested(app=fact.app, reason="just now"))
            let_pass()

        self._before_next_round(forestall)

    def _kill_before_start(self, fault: Fault) -> None:
        """The agents that will start the next generation die before they read about it, for longer than their lease."""

        def kill(msg_id: str, body: bytes, let_pass: Callable[[], None]) -> None:
            del msg_id
            round = decode(Record(0, 0, subjects.rounds(self.history.cluster), body))
            facts = round.events if isinstance(round, k.Round) else []
            released = {fact.app: fact.generation for fact in facts if isinstance(fact, k.GenerationReleased)}
            if not released:
                self._before_next_round(kill)
            for app, generation in released.items():
                known = self.world.whole.apps[app].generations.get(generation)
                for node in known.by_node() if known is not None else ():
                    place = self.history.place_of.get(node, node)
                    self.history.disturb(place, fault.for_s)
                    self.history.down_for[place] = fault.for_s
                    for process in list(self.history.hosts[place].processes):
                        process.kill()
            let_pass()

        self._before_next_round(kill)

    def _read_slowly(self, fault: Fault) -> None:
        """An agent restarts, and gets the log a few records at a time, so its knowledge is outdated for a while."""
        place = self.place(fault)
        self.history.down_for[place] = _RESTART_S
        self._host(fault).reads_slowly_until = self.world.now + fault.for_s
        for process in list(self._host(fault).processes):
            if fault.argument < 0.5:
                process.kill()
            else:
                process.stop()

    # --- machines and engines ------------------------------------------------------------------------------------------

    def _machine(self, fault: Fault) -> Machine:
        return self.history.machines[self.place(fault)]

    def _lose_power(self, fault: Fault) -> None:
        machine = self._machine(fault)
        if machine.powered:
            machine.lose_power(tail=fault.argument < 0.5)
            self._later(fault, lambda: self.history.boot(machine))

    def _stop_engine(self, fault: Fault) -> None:
        machine = self._machine(fault)
        machine.stop_engine(live_restore=fault.kind == "engine down")
        self._later(fault, machine.start_engine)

    def _slow_engine(self, fault: Fault) -> None:
        machine = self._machine(fault)
        machine.delay_s = 0.5 + 11 * fault.argument**2
        self._later(fault, lambda: setattr(machine, "delay_s", 0.02))

    def _fill_disk(self, fault: Fault) -> None:
        machine = self._machine(fault)
        machine.disk_full = True
        self._later(fault, lambda: setattr(machine, "disk_full", False))

    def _fail_creates(self, fault: Fault) -> None:
        machine = self._machine(fault)
        machine.create_fails = True
        self._later(fault, lambda: setattr(machine, "create_fails", False))

    def _lose_image(self, fault: Fault) -> None:
        machine = self._machine(fault)
        machine.image_missing = True
        self._later(fault, lambda: setattr(machine, "image_missing", False))

    def _take_port(self, fault: Fault) -> None:
        machine = self._machine(fault)
        low, high = self.history.ports[machine.name]
        taken = set(range(low, low + 1 + int(fault.argument * min(20, high - low))))
        machine.strangers |= taken
        self._later(fault, lambda: machine.strangers.difference_update(taken))

    def _pick(self, fault: Fault) -> Container | None:
        machine = self._machine(fault)
        running = sorted(machine.running(), key=lambda container: container.key)
        return running[int(fault.argument * len(running))] if running and machine.engine_up else None

    def _remove_container(self, fault: Fault) -> None:
        if container := self._pick(fault):
            container.machine.remove_by_hand(container.key)

    def _kill_container(self, fault: Fault) -> None:
        if container := self._pick(fault):
            container.end(137)

    # --- the server ----------------------------------------------------------------------------------------------------

    def _kill_server(self, fault: Fault) -> None:
        self.world.server.crash(down_s=fault.for_s)

    def _start_before_server(self, fault: Fault) -> None:
        """Masters and agents start long before the server, as when everything is switched on at once."""
        for host in [*self.history.masters, *self.history.machines]:
            self.history.down_for[host] = fault.argument
            for process in list(self.history.hosts[host].processes):
                process.kill()
        self.world.server.crash(down_s=fault.for_s)

    def _pause_server(self, fault: Fault) -> None:
        self.world.server.pause(fault.for_s)

    def _fill_server(self, fault: Fault) -> None:
        self.world.server.full = True
        self._later(fault, lambda: setattr(self.world.server, "full", False))

    def _step_server(self, fault: Fault) -> None:
        # Deadlines use log time, so a step would end hours of them.
        self.world.server.step_clock(max(-40.0, min(40.0, _step_of(fault))))

    # --- clients and strangers -----------------------------------------------------------------------------------------

    def _repeat_submission(self, fault: Fault) -> None:
        acknowledged = self.world.acknowledged
        if acknowledged:
            again = acknowledged[int(fault.argument * len(acknowledged))]
            whole = self.world.whole
            known = {*whole.submissions, *(app.submission for app in whole.apps.values())}
            for record in self.world.server.records:
                if record.msg_id == again.msg_id:
                    # After the retention, only the log still knows its id.
                    forget = fault.argument > 0.5 and again.msg_id in known
                    self.history.append(record.subject, record.body, "" if forget else record.msg_id)
                    return

    def _repeat_records(self, fault: Fault) -> None:
        """Repeat facts of agents, without the ids by which the log would recognize them."""
        facts = [r for r in self.world.server.records[-60:] if isinstance(decode(r), _REPEATABLE)]
        for record in facts[int(fault.argument * len(facts)) :][:3]:
            self.history.append(record.subject, record.body)

    def _nonsense(self, fault: Fault) -> None:
        apps = ["nobody", *self.world.whole.apps]
        nodes = list(self.history.machines)
        words = nonsense(nodes[int(fault.argument * len(nodes))], apps[int(fault.argument * len(apps))])
        begin = int(fault.argument * 1e5) % len(words)
        for subject, body in words[begin : begin + 3]:
            if subject.startswith("round") and self.history.audited:
                continue  # An audit is meant to find rounds that no master wrote.
            self.history.append(f"dorm.{self.history.cluster}.{subject}", body)

    def _drain(self, fault: Fault) -> None:
        self.history.say(k.NodeDrainRequested(node=fault.target))
        self._later(fault, lambda: self.history.say(k.NodeDrainRequested(node=fault.target, drain=False)))

    def _change_policy(self, fault: Fault) -> None:
        policies = [*self.history.policies, "none such"]
        self.history.say(k.PolicyChanged(policy=policies[int(fault.argument * len(policies))]))

    def _change_lease(self, fault: Fault) -> None:
        self.history.say(k.PolicyChanged(node_lease_s=round(6 + 30 * fault.argument, 1)))

    def _live_app(self, fault: Fault) -> str | None:
        live = list(self.world.whole.names.values())
        return live[int(fault.argument * len(live))] if live else None

    def _cancel(self, fault: Fault) -> None:
        if app := self._live_app(fault):
            kill = int(fault.argument * 1e6) % 2 == 0
            self.history.say(k.AppCancelRequested(app=app, reason="enough", kill=kill))

    def _update(self, fault: Fault) -> None:
        if app := self._live_app(fault):
            known = self.world.whole.apps[app]
            upper = max(known.n_min, 1 + int(fault.argument * 1e3) % 5)
            self.history.say(k.AppUpdated(app=app, n_max=upper))


_REPEATABLE = (k.ContainerStarted, k.ContainerExited, k.AppCheckpointed, k.AppProgressed)


def _step_of(fault: Fault) -> float:
    """Return a step: mostly seconds, sometimes hours, forward or back."""
    size = 3.0 if fault.argument < 0.4 else 40.0 if fault.argument < 0.8 else 7200.0
    return size if int(fault.argument * 1e5) % 2 else -size


_HITS: Final[dict[str, Callable[[Attack, Fault], None]]] = {
    "all start before the server": Attack._start_before_server,
    **clocks.HITS,
    **misuse.HITS,
    **operators.HITS,
    **gates.HITS,
    **steering.HITS,
    **ailments.HITS,
    "master killed": Attack._kill,
    "master crashes": Attack._crash,
    "master stopped": Attack._stop,
    "master paused": Attack._pause,
    "master cut off": Attack._cut,
    "master half deaf": Attack._half_cut,
    "master lags": Attack._lag,
    "master reconnects": Attack._reset,
    "master's clock steps": Attack._step_clock,
    "all masters killed": Attack._kill_masters,
    "round held back": Attack._hold_round,
    "round forestalled": Attack._forestall_round,
    "agent killed": Attack._kill,
    "agent crashes": Attack._crash,
    "agent dead for long": Attack._kill,
    "agent stopped": Attack._stop,
    "agent paused": Attack._pause,
    "node cut off": Attack._cut,
    "node half deaf": Attack._half_cut,
    "node lags": Attack._lag,
    "node reconnects": Attack._reset,
    "node's clock steps": Attack._step_clock,
    "machine loses power": Attack._lose_power,
    "engine down": Attack._stop_engine,
    "engine killed with its containers": Attack._stop_engine,
    "engine slow": Attack._slow_engine,
    "disk of a node full": Attack._fill_disk,
    "image missing": Attack._lose_image,
    "containers can't be created": Attack._fail_creates,
    "port taken": Attack._take_port,
    "container removed by hand": Attack._remove_container,
    "container killed by hand": Attack._kill_container,
    "server killed": Attack._kill_server,
    "server paused": Attack._pause_server,
    "server's disk full": Attack._fill_server,
    "server's clock steps": Attack._step_server,
    "client killed": Attack._kill,
    "client cut off": Attack._cut,
    "submission repeated": Attack._repeat_submission,
    "records repeated": Attack._repeat_records,
    "nonsense": Attack._nonsense,
    "drained": Attack._drain,
    "policy changed": Attack._change_policy,
    "lease changed": Attack._change_lease,
    "app cancelled": Attack._cancel,
    "app updated": Attack._update,
    "message id taken": take_message_id,
    "large submissions": submit_large,
    "rounds of absurd numbers": write_absurd_rounds,
    "progress flooded": lambda attack, fault: flood_progress(attack.history, fault),
    "app of many containers": lambda attack, fault: submit_crowd(attack.history, fault),
    "node replaced": replacing.replace_node,
    "node's folder removed": replacing.remove_folder,
    "crash loop": lambda attack, fault: neighbors.start_loop(attack.history, fault),
    "cluster restarted": lambda attack, fault: neighbors.restart(attack.history, fault),
    "node impersonated": impersonate_node,
    "agents dead before a start": Attack._kill_before_start,
    "agent reads slowly": Attack._read_slowly,
}

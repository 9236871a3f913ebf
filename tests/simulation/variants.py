"""Deliberately broken variants of the code, which the simulation has to catch; otherwise, it would miss such bugs in the real
code.

Each replaces a piece of the real source, or makes the model of the server or the runtime violate its contract.  Luck decides
which seeds catch a variant, so known ones are tried first, and then the others in order.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import dorm.core.evolve as evolving
from agents import reconcile
from agents.actions import Actions
from agents.agent import Agent
from agents.desired import Desired
from agents.fitness import Fitness
from agents.following import install
from agents.outbox import Outbox
from agents.outputs.folders import CheckpointFolder
from agents.reporter import Reporter
from dorm.client.client import Client
from dorm.core import allocation, authority, claims, failures, faults, operating, placement, rounds, sizes, submissions
from dorm.core import next_round as decide
from dorm.core.evolve import evolve
from dorm.core.generation import Generation
from dorm.core.parts.concerned import Concerned
from dorm.core.timing import conclude
from dorm.master.log_time import LogTime
from dorm.master.master import Master
from dorm.master.parts import PartWriter
from events import appending, identities
from events import chain as signatures
from tests.simulation.breaking import ways
from tests.simulation.breaking.patches import Variant, code, server, together
from tests.simulation.breaking.seeds import CAUGHT_BY
from tests.simulation.breaking.ways import among_hostile
from tests.simulation.machines.machine import Machine
from tests.simulation.world.connection import SimLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.simulation.history import Outcome

MOST_SEEDS = 120
"""The number of seeds within which each has to be caught."""


_ROUND_CHECK = (
    "if not state.epoch <= event.epoch <= state.epoch + 1 or not fence <= event.basis < state.seq:",
    "if False:",
)
_DESIRED_CHECK = (
    "if not self.epoch <= event.epoch <= self.epoch + 1 or not self.round_seq <= event.basis < record.seq:",
    "if False:",
)
_NO_ANSWER_YET = "return last.seq if last and last.body == body else None"

VARIANTS: dict[str, Variant] = {
    # the log
    "the server has no fence": Variant(server(fence=False)),
    "the server stores repeats": Variant(server(dedupe=False)),
    "the server loses what it acknowledged": Variant(server(lose_acknowledged=2)),
    "a reader skips records, and nobody sees the gap": Variant(
        together(
            code(
                SimLog.read,
                ("after = batch[-1].seq\n", "after = batch[-1].seq\n                batch = batch[1:] or batch\n"),
            ),
            code(evolve, ("if seq != state.seq + 1:", "if False:")),
        )
    ),
    # masters
    "a master gives up when its first look at the log gets no answer": Variant(
        code(Master.run, ('await until_answered(self._open, "reading the log\'s end")', "await self._open()"))
    ),
    "followers lead": Variant(ways.lease_is_everybodys),
    "a master that was succeeded goes on": Variant(
        together(ways.lease_never_ends, code(Master._check_epoch, ("raise Deposed", "str")))
    ),
    "a refused round is sent again with the new sequence": Variant(
        code(
            Master._append,
            (_NO_ANSWER_YET, "expected_last = last.seq if last else 0"),
        )
    ),
    "a duplicate is believed of rounds": Variant(
        code(
            Master._append,
            ("append_event(self._log, subject, event,", "self._log.append(subject, body, msg_id=event.id,"),
        )
    ),
    "silence goes by the wall clock": Variant(ways.wall_clock),
    "an outage counts as everybody's silence": Variant(
        together(
            ways.nothing_is_silence_of_ours,
            code(
                Master._ask,
                ("except LogError", "except ZeroDivisionError"),
                ("record = await", "record = 0 and await"),
            ),
        )
    ),
    "unreachable is taken for gone": Variant(code(conclude, ("silence > max(lease, grace)", "silence > grace"))),
    "the lease ends without a margin": Variant(lambda patch: patch.setattr("dorm.core.timing.LEASE_MARGIN_S", -3.0)),
    "deadlines go by the master's wall clock": Variant(
        code(
            Master._now,
            ("def _now(self) -> int:", "def _now(self) -> int:\n    return max(self._clock(), self.state.time)"),
        )
    ),
    "a leap of the log's clock counts as time that passed": Variant(
        code(LogTime.folded, ("elif time > own + LEAP:", "elif False:"))
    ),
    "log time stands still while the log's clock is behind it": Variant(
        code(evolve, ("set_back(state, time)", "pass"))
    ),
    # the core
    "no barrier: released before the last generation has ended": Variant(
        code(decide._candidate, ("if not all(g.ended for number, g in", "if not all(True for number, g in"))
    ),
    "released without room": Variant(code(decide._releases, ("if _take_room(state, free, candidate)", "if candidate"))),
    "a newcomer starts before its room is free": Variant(
        code(
            decide._releases,
            (
                "if _take_room(state, free, candidate)",
                "if candidate.change is not None or _take_room(state, free, candidate)",
            ),
        )
    ),
    "a membership is announced before its release": Variant(ways.announced_by_the_decision),
    "the room of members that leave is given away at once": Variant(
        code(Generation.all_containers, ("yield from self.leaving.values()", "pass"))
    ),
    "ports are not counted": Variant(
        together(
            code(placement.with_ports, ("most = max(size", "most = 1 << 40 or max(size")),
            code(
                placement._Draft.shrink,
                ("changing = [app for app in self.problem.apps if self._changes(app)]", "changing = []"),
            ),
        )
    ),
    "a generation is released before its ports are free": Variant(
        code(decide._take_room, ("if any(port in surely.held for port in ports):", "if False:"))
    ),
    "a start that fails on its node is the app's failure": Variant(
        code(failures.consequence, ('(failure == "checkpoints" or found.by_node)', '(failure == "checkpoints")'))
    ),
    "exit code 0 is done, asked or not": Variant(code(failures.done, ("and not container.asked", ""))),
    "an app is done with its first slot": Variant(
        code(decide._ends_and_failures, ("if all(failures.done(container) for", "if any(failures.done(container) for"))
    ),
    "what was asked to stop has failed by itself": Variant(
        code(failures._failure_of, ("if container.asked:", "if False:"))
    ),
    "the first end counts, whatever explains it": Variant(
        code(failures.cause_due_at, ("if not left or not all(", "if True or not all("))
    ),
    "checkpoints are not believed": Variant(code(decide._release, ("resume=checkpoint is not None", "resume=False"))),
    "an exit counts twice": Variant(
        code(evolving._container_exited, ('if container.state == "exited":', 'if container.state == "never":'))
    ),
    "a repeated submission is a new one": Variant(
        together(
            code(submissions.queue, ("if submission.id in state.submissions:", "if False:")),
            code(evolving._app_submitted, ("if app_id(name_of(event.spec), event.id) in state.apps:", "if False:")),
        )
    ),
    "anybody may speak for a node": Variant(
        code(evolving._own, ("if subjects.who_of(record.subject) == subjects.token(event.node):", "if True:"))
    ),
    "decisions that were overtaken count": Variant(
        code(rounds._next_generation, ("app.changed_seq > basis or _nodes_changed(", "False and _nodes_changed("))
    ),
    "no fence at the log, and rounds of a stale basis count": Variant(
        together(server(fence=False), code(rounds.fold_round, _ROUND_CHECK), code(Desired._round, _DESIRED_CHECK))
    ),
    "a round may leave epochs out": Variant(
        together(
            code(rounds.fold_round, ("<= event.epoch <= state.epoch + 1", "<= event.epoch")),
            code(Desired._round, ("<= event.epoch <= self.epoch + 1", "<= event.epoch")),
        )
    ),
    "rounds are as large as what there is to say": Variant(
        together(
            lambda patch: patch.setattr("dorm.core.next_round.LARGEST_ANSWERS", 2**30),
            code(decide.decide, ("first_that_fit(facts)", "facts")),
        )
    ),
    "what was resized is resized again before it has worked": Variant(
        code(sizes.settles_until, ("return until if until > now else 0", "return 0"))
    ),
    "others make room for a crash loop again and again": Variant(
        code(rounds._count_own_debt, ("app.debt, app.barred = app.debt + 1, app.disturbs or app.room_taken", "pass"))
    ),
    "after a restart of the cluster it is first come, first served": Variant(
        together(
            code(claims._may_claim, ("bool(app.interrupted_at or app.retry_at)", "bool(app.retry_at)")),
            code(claims.held_back_for, ("if until is not None and now < until", "if False")),
        )
    ),
    "decisions are made while scheduling is paused": Variant(
        code(allocation.allocate_now, ("if state.paused or _waits", "if _waits"))
    ),
    "a node is forgotten while its lease lasts": Variant(
        code(operating.may_be_forgotten, ("return node is not None and node.gone", "return node is not None"))
    ),
    # agents
    "an agent gives up when its first look at the log gets no answer": Variant(
        code(
            Agent.run,
            (
                'await until_answered(self._log.end, f"looking up the log\'s end for node {self.config.name}")',
                "await self._log.end()",
            ),
        )
    ),
    "the runtime does not keep the lease": Variant(ways.runtime_forgets_lease),
    "the lease counts from the answer": Variant(
        code(Agent._beat, ("await self._extend(sent_at)", "await self._extend(asyncio.get_running_loop().time())"))
    ),
    "a heartbeat that was not stored extends the lease": Variant(
        code(
            Agent._heartbeats,
            (
                "except (LogError, Unavailable, OSError) as error:",
                "except (LogError, Unavailable, OSError) as error:\n            await self._extend(self._since_boot())",
            ),
        )
    ),
    "an agent acts on what it knew before it has joined": Variant(
        together(
            code(Agent._announce, ("lambda: self.desired.seq >= seq", "lambda: True")),
            lambda patch: patch.setattr(Desired, "fresh", property(lambda self: True)),
        )
    ),
    "the agent forgets what it asked to stop": Variant(
        lambda patch: patch.setattr(Reporter, "_was_asked", lambda self, key, seen, unwanted: False)
    ),
    "facts are dropped in an outage": Variant(code(Outbox._store, ("await asyncio.sleep(pause)", "return"))),
    "facts are sent again with a new id": Variant(
        code(appending._other_id, ("return id\n", "return f'{id}.{secrets.token_hex(4)}'\n"))
    ),
    "a duplicate is believed of an agent's facts": Variant(
        code(
            Outbox._store,
            (
                "append_event(self._log, subject, event)",
                "self._log.append(subject, __import__('events.codec').codec.encode(event), msg_id=event.id)",
            ),
        )
    ),
    "what was not released is started": Variant(code(Desired.wanted, ("if app.released and", "if"))),
    "what is prepared is started at once": Variant(
        code(Actions._prepare, ("self._runtime.prepare(", "self._runtime.ensure("))
    ),
    "what was prepared for an overtaken plan is kept": Variant(
        code(reconcile._for, ("if wanted else Discard(key)", "if wanted else None"))
    ),
    "a generation works on though its successor is prepared": Variant(
        code(Desired.works_on, ("return bool(app.held.waits_for) and now < app.held.until", "return True"))
    ),
    "generations that failed, and apps that ended, run on": Variant(
        code(Desired.wanted, ("and not app.failed and not app.ended_at", ""))
    ),
    "what was removed is started again": Variant(
        code(reconcile._for, ("        if started:\n            return ReportExited(key, None)\n", ""))
    ),
    "every line of a progress file is a fact": Variant(ways.every_line_is_a_fact),
    "a container's last words are not read": Variant(
        code(Reporter.exited, ("await self.progress(key, final=True)", "pass"))
    ),
    "ended containers are discarded before their end is stored": Variant(
        code(reconcile._kept_long_enough, ("if key in desired.due:", "if False:"))
    ),
    "running containers of another generation are adopted": Variant(
        code(reconcile._for, ("if not wanted or exited:", "if exited:"))
    ),
    # parts
    "a part that was delayed brings back what has ended": Variant(
        together(
            code(install, ("part.seq <= desired.part_seq or part.epoch < desired.epoch", "False")),
            server(repeat_parts=True),
        )
    ),
    "a part is published before its round is stored": Variant(ways.parts_before_their_round),
    "a new leader leaves the parts as they are": Variant(
        code(PartWriter._begin, ("dict.fromkeys(known_nodes(state))", "{}"))
    ),
    "only nodes that get a new place are told": Variant(
        code(Concerned._app, ("(*before, *now)", "[node for node in now if node not in before]"))
    ),
    "a node acts on a part of before its announcement": Variant(
        lambda patch: patch.setattr(Desired, "fresh", property(lambda self: True))
    ),
    "a node extends its lease before it knows how long that is": Variant(
        lambda patch: patch.setattr(Desired, "knows_lease", property(lambda self: True))
    ),
    # machines
    "any machine may take a node's name": Variant(
        code(identities.may_hold, ("gone or not holder or holder == identity", "True"))
    ),
    "a goodbye that was delayed ends the stay of the next process": Variant(
        code(identities.ends, ("return not joined or not left or joined == left", "return True"))
    ),
    "a node's name is free once its machine is silent": Variant(ways.names_are_free_once_silent),
    "a machine that was refused a name acts under it": Variant(
        code(Agent._announce, ("return self._holds_name and await", "return await"))
    ),
    "what runs in a removed folder outlives its lease": Variant(ways.removed_folders_keep_no_lease),
    "an agent goes on in a folder that is not its own": Variant(
        lambda patch: patch.setattr(Machine, "opened", lambda self, folders_lost: None)
    ),
    # what operators do by mistake
    "settings that would destroy are taken": Variant(
        lambda patch: patch.setattr("events.times.broken_rule", lambda times: None)
    ),
    "the marker of the shared folder is not looked at": Variant(ways.marker_not_looked_at),
    "an agent starts apps in a folder that is not the one of the release": Variant(
        together(
            code(CheckpointFolder.check, ('if cluster not in ("", self.id):', "if False:")),
            lambda _: ways.unmounted_at_releases,
        )
    ),
    # bad nodes
    "each failure counts against the app": Variant(
        lambda patch: patch.setattr(faults, "verdict", lambda *_: faults.Verdict(""))
    ),
    "no node is suspect": Variant(lambda patch: patch.setattr(faults, "_becomes", lambda *_: None)),
    "an app is tried again where it failed": Variant(
        lambda patch: patch.setattr(faults, "_is_recent", lambda state, pair, now: False)
    ),
    "failures of broken apps stay with nodes": Variant(
        lambda patch: patch.setattr(faults, "_clear_nodes", lambda *_: None)
    ),
    "new containers go to suspect nodes": Variant(code(faults.Placing.require, ("elif self.suspect:", "elif False:"))),
    "a node that an operator trusts keeps what failed there": Variant(
        code(faults.trusted, ('if how != "evidence":', 'if how == "probe":'))
    ),
    "an agent says nothing of a full disk": Variant(
        code(Fitness._judge, ('made |= judge(name, paths.get(name, Path("/")), folder, self._since)', "pass"))
    ),
    "an agent does not listen to the health program": Variant(
        code(Fitness._judge, ("verdict is not None and not verdict.fit", "False"))
    ),
    "a start that is given up has not happened": Variant(
        code(Actions._given_up, ("seen.key == key and seen.started_at", "False"))
    ),
    # clients
    "a submission is tried again with a new id": Variant(
        code(Client.submit, ("self.submission_id(id)", "self.submission_id()"))
    ),
    # hostile users, nodes and forgers
    "any user changes any app": Variant(
        among_hostile(code(submissions.app_of_request, ("and (app.tenant == tenant or known.operates(who))", "")))
    ),
    "any user operates": Variant(
        among_hostile(code(authority._operates, ("if known.operates(who):", "if True:"))),
    ),
    "any user is an admin": Variant(among_hostile(code(identities.takes, ('!= "admin"', '== "nobody"')))),
    "a submission's id is the first sender's": Variant(
        among_hostile(code(authority._own_id, ("owned_id(tenant, event.id)", "event.id")))
    ),
    "nodes report about any app": Variant(among_hostile(code(authority._of_app, ("container.node == who", "True")))),
    "nodes report for each other": Variant(
        among_hostile(
            together(
                code(authority._of_node, ("event.node != who", "False")),
                code(evolving._own, ("subjects.who_of(record.subject) == subjects.token(event.node)", "True")),
            )
        )
    ),
    "nodes claim what they like": Variant(
        among_hostile(code(authority._joins, (" or claims_too_much(known.nodes[who], event)", "")))
    ),
    "unsigned rounds count": Variant(
        among_hostile(code(signatures.is_round_signed_by, ("    return False\n", "    return True\n")))
    ),
}


# --- catching them -----------------------------------------------------------------------------------------------------


def caught_by(name: str, seeds: Sequence[int] = range(MOST_SEEDS)) -> Outcome | None:
    """Return the first seed that finds something wrong with this variant; None if none does."""
    from tests.simulation.running import Choice, play

    first = CAUGHT_BY.get(name, ())
    for seed in [*first, *(seed for seed in seeds if seed not in first)]:
        outcome = play(seed, Choice(variant=name)).outcome
        if outcome.broken:
            return outcome
    return None


def catch(names: Sequence[str], jobs: int) -> Iterator[tuple[str, Outcome | None]]:
    """Yield each variant with the seed that caught it, in order."""
    with ProcessPoolExecutor(jobs, get_context("forkserver")) as pool:
        yield from zip(names, pool.map(caught_by, names), strict=True)

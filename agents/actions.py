"""The actions of reconciliation, carried out on the runtime: launch, halt, report, discard.

Each container has at most one action under way; a failed action is tried again when reconciliation next asks for it, after
a pause in which other actions on the container may start.  `agents.delays` says what of that goes on the log, and when a
start is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from agents import environment as environments
from agents import reconcile as r
from agents.contract import checkpoint_command, container_spec, ports_of
from agents.delays import GIVEN_UP_S, Delays, Repeats, Trouble, bound_of, trouble_of
from agents.environment import Building
from agents.fetching import Fetching
from agents.outputs import checkpoints, folders
from agents.outputs.folders import NotShared
from agents.reconcile import Announced, announced, files_of
from agents.runtime import secrets
from agents.runtime.interface import Conflict, Key, Refused, Seen, Unavailable, spec_hash
from agents.runtime.long_work import LongWork
from events.errors import DormError
from events.log.records import LogError
from events.quantities import GPU
from events.spec.variables import TooLong

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agents.config import NodeConfig
    from agents.desired import Desired
    from agents.environment import Environments
    from agents.gpus import Gpus
    from agents.offers import Offers
    from agents.outputs.folders import Looks
    from agents.reporter import Reporter
    from agents.runtime.interface import ContainerSpec, Runtime
    from events.kinds import Doing, ExitReason
    from events.log.stores import Files
    from events.parts import AppPart
    from events.spec import AppSpec

_log = structlog.get_logger(__name__)
_AGAIN_S = 1.0
_FAILED_TO: dict[Doing, str] = {
    "prepare": "make its place ready",
    "fetch": "fetch its project folder",
    "pull": "pull its image",
    "create": "create it",
    "start": "start it",
    "read": "read its checkpoints",
}
_ENDS_BY_ITSELF = (r.Halt, r.ReportStarted, r.ReportExited)
"""Actions after which a start or an end on the log ends a delay."""


class Actions:
    """The actions of one node.  `port_taken` tests whether a process listens at an address and port of this machine."""

    def __init__(
        self,
        config: NodeConfig,
        desired: Desired,
        runtime: Runtime,
        gpus: Gpus,
        reporter: Reporter,
        looks: Looks,
        offers: Offers,
        environments: Environments,
        *,
        port_taken: Callable[[str, int], bool],
        may_launch: Callable[[], Awaitable[bool]],
        unfit: Callable[[], str],
        seen: Callable[[], Sequence[Seen]],
        wake: asyncio.Event,
        files: Files,
    ) -> None:
        """`may_launch` raises Unavailable while the node's lease is not held; `unfit` returns why the log says that the node
        takes nothing new, "" if it does not; `seen` returns the containers listed last;
        `wake` is set after each action, since the list may differ by then; `files` has the folders that clients ship."""
        self.busy: set[Key] = set()
        """Containers with an action under way: a concurrent list may be wrong about them."""
        self._halting: set[Key] = set()
        """Containers that have their grace time now."""
        self._killing: set[Key] = set()
        """Those of them that were killed since; what ended may be listed as running for a moment."""
        self.launching: set[Key] = set()
        """Containers being launched, which the runtime may not list as running yet."""
        self.announced: dict[Key, Announced] = {}
        """The last announcement written for each container; empty after a restart."""
        self.prepared: dict[Key, str] = {}
        """Containers for which all preparation before the release is done, with the reason if they were not
        created."""
        self._copying = LongWork("checkpoints of other apps", of_one=1)
        self._removing = LongWork("files of ended apps", of_one=1)
        self._config = config
        self._desired = desired
        self._runtime = runtime
        self._gpus = gpus
        self._reporter = reporter
        self._looks = looks
        self._offers = offers
        self._environments = environments
        self._building = Building(wake.set)
        self._port_taken = port_taken
        self._may_launch = may_launch
        self._unfit = unfit
        self._seen = seen
        self._wake = wake
        self._fetching = Fetching(files, runtime.blobs)
        self._resting: dict[Key, type[r.Action]] = {}
        """Containers whose last action failed, and is not tried again for a while."""
        self.delays = Delays()
        self.given_up_s = GIVEN_UP_S
        """Seconds for which a start may fail at most; simulated time is short."""
        self._repeats = Repeats()

    def start(self, action: r.Action, tasks: asyncio.TaskGroup) -> None:
        """Begin an action on a container that has none under way.  One that still builds its environment is not reported as
        started."""
        if isinstance(action, r.ReportStarted) and self._builds(action.key, tasks):
            return
        if self._resting.get(action.key) is type(action):
            return
        self.busy.add(action.key)
        tasks.create_task(self._do(action))

    def _builds(self, key: Key, tasks: asyncio.TaskGroup) -> bool:
        app = self._desired.apps.get(key.app)
        needed = app is not None and self._environments.of(app.spec, app.owner) is not None
        return needed and self._building.waits(key, self._runtime.run_dir(key), tasks)

    def kill_what_stops(self, tasks: asyncio.TaskGroup) -> None:
        """Kill containers of killed apps that have their grace time already: no action starts on them while that lasts."""
        self._forget_gone()
        for key in sorted(self._halting - self._killing):
            if self._killed(key):
                self._killing.add(key)
                tasks.create_task(self._kill_now(key))

    async def _kill_now(self, key: Key) -> None:
        try:
            await self._kill(key)
        except LogError:
            raise
        except Exception as error:
            await asyncio.sleep(await self._failed(r.Halt(key), error, asyncio.get_running_loop().time()))
            self._killing.discard(key)
            self._wake.set()

    def _killed(self, key: Key) -> bool:
        app = self._desired.apps.get(key.app)
        return app is not None and app.killed

    async def _kill(self, key: Key) -> None:
        _log.warning("killing a container of a killed app", node=self._config.name, key=key)
        await self._reporter.asking(key)
        if await self._runtime.stop(key, 0.0):
            await self._reporter.killed(key)

    async def _do(self, action: r.Action) -> None:
        pause_s, began = 0.0, asyncio.get_running_loop().time()
        try:
            await self._act(action)
        except LogError:
            raise
        except Exception as error:  # A failure of one app's container ends no other app's.
            pause_s = await self._failed(action, error, began)
        else:
            await self._worked(action)
        finally:
            if pause_s:
                self._resting[action.key] = type(action)
            self.busy.discard(action.key)
            self._wake.set()
        if pause_s:
            await asyncio.sleep(pause_s)
            if self._resting.get(action.key) is type(action):
                del self._resting[action.key]
            self._wake.set()

    # --- what is tried again ----------------------------------------------------------------------------------------------

    async def _failed(self, action: r.Action, error: Exception, began: float) -> float:
        """Note a failed action, and return for how long (s) it is not tried again."""
        self._looks.doubted.set()  # Maybe nothing new can start here.
        key, now = action.key, asyncio.get_running_loop().time()
        trouble = trouble_of(action, error)
        if trouble is None:
            if self._repeats.due(str(error), now):
                _log.warning("no container is started", node=self._config.name, reason=str(error))
            return _AGAIN_S
        app = self._desired.apps.get(key.app)
        bound_s = (
            bound_of(app.spec.deadlines, self.given_up_s) if isinstance(action, r.Launch) and app is not None else None
        )
        step = self.delays.failed(key, trouble, now, bound_s, took_s=now - began)
        given_up = step.given_up and await self._given_up(key, trouble, step.lasts_s)
        if step.log or given_up:
            fields = {"node": self._config.name, "key": key, "doing": trouble.doing, "reason": trouble.reason}
            failure = {**fields, "code": trouble.code, "tries": step.tries, "seconds": round(step.lasts_s)}
            if not isinstance(error, OSError | DormError):
                _log.exception("an action failed; please report this", action=repr(action), **fields)
            elif given_up:
                _log.error("an action failed, and is given up", **failure)
            elif trouble.failing:
                _log.error("an action failed, trying again", **failure)
            else:
                _log.warning("a container waits", **failure)
        if step.publish and not given_up:
            await self._reporter.delayed(key, trouble, step.lasts_s)
        return 0.0 if given_up else step.pause_s

    async def _worked(self, action: r.Action) -> None:
        key = action.key
        published, tries = self.delays.over(key)
        if tries > 1:
            _log.info("an action worked at last", node=self._config.name, key=key, tries=tries + 1)
        is_over = key in self._desired.exited or key in self._desired.announced or isinstance(action, _ENDS_BY_ITSELF)
        if published is not None and not is_over:
            await self._reporter.delayed(key, published, 0.0, over=True)

    async def _given_up(self, key: Key, trouble: Trouble, lasted_s: float) -> bool:
        """Report a container that this node can't start as failed, so that its app may go elsewhere.  Return False if it may
        run after all: the engine does not say for certain, or it has started it and only answered too late."""
        try:
            if any(seen.key == key and seen.started_at for seen in await self._runtime.list()):
                return False  # It is reported as started, and its end as what it was.
            await self._runtime.stop(key, 0.0)
            with contextlib.suppress(OSError):  # It does not run; its folder stays on a disk that takes no change.
                await self._runtime.remove(key)
        except (Unavailable, Conflict) as error:
            if self._repeats.due(f"{key}", asyncio.get_running_loop().time()):
                _log.warning("whether a container runs is unknown", node=self._config.name, key=key, reason=str(error))
            return False
        self.delays.over(key)
        await self._refuse_start(key, trouble, lasted_s)
        return True

    async def _refuse_start(self, key: Key, trouble: Trouble, lasted_s: float) -> None:
        """The node is at fault, or if it can't read the shared folder, perhaps that."""
        reason: ExitReason = "checkpoints" if trouble.code.startswith("checkpoints.") else "start"
        text = f"its node could not {_FAILED_TO.get(trouble.doing, 'start it')} for {lasted_s:.0f} s: {trouble.reason}"
        await self._reporter.refused(key, reason, text)

    async def _report_exit(self, key: Key, seen: Seen | None) -> None:
        never = seen is None and key not in self._desired.started and key not in self._desired.announced
        late = self.delays.failing(key, asyncio.get_running_loop().time())
        if not never:
            await self._reporter.exited(key, seen)
        elif late is not None:
            await self._refuse_start(key, *late)
        else:
            await self._reporter.refused(key, "lost", "it was no longer wanted before it had started")

    def _forget_gone(self) -> None:
        """Drop what is known of delays of containers that are no longer wanted, and of which nothing is left."""
        if not self.delays.keys:
            return
        here = {
            *self._desired.wanted(),
            *self._desired.to_prepare(),
            *self._desired.due,
            *(seen.key for seen in self._seen()),
        }
        for key in self.delays.keys - here - self.busy:
            self.delays.over(key)

    async def _act(self, action: r.Action) -> None:
        match action:
            case r.Launch(key):
                self.launching.add(key)
                try:
                    await self._launch(key)
                finally:
                    self.launching.discard(key)
            case r.Prepare(key):
                await self._prepare(key)
            case r.Halt(key):
                self._halting.add(key)
                try:
                    await self._halt(key)
                finally:
                    self._halting.discard(key)
                    self._killing.discard(key)
            case r.Announce(key):
                await self._announce(key)
            case r.ReportStarted(seen):
                await self._reporter.started(seen, self._building.seconds(seen.key))
            case r.Withdraw(key):
                await self._withdraw(key)
            case r.ReportExited(key, seen):
                await self._empty_secrets(key)
                await self._look_for_lost_gpu(key, seen)
                await self._report_exit(key, seen)
                await self._gpus.settle()
                if self._gpus.changed:
                    self._looks.doubted.set()  # The capacity falls with the end of what held a lost GPU.
            case r.Discard(key):
                await self._runtime.remove(key)
                await self._reporter.forget(key)
                self.announced.pop(key, None)
                self.prepared.pop(key, None)
                self._building.forget(key)
                if not any(seen.key.app == key.app and seen.key != key for seen in self._seen()):
                    await self._forget_ended(key.app)

    async def _forget_ended(self, app: str) -> None:
        """Remove the files of an app that ended long ago and has nothing else left here.  Every agent that ran a part
        of it does this on the shared folder, so they may be gone already."""
        known = self._desired.apps.get(app)
        if app in self._desired.ended or (known is not None and known.ended_at):
            owner = self._desired.owner_of(app) or ""
            await self._removing.run(owner, partial(folders.remove, self._config.checkpoints, app))
            self._desired.forget(app)

    async def remove_remains(self) -> None:
        """Try again to remove what stayed of apps' files at an earlier removal, and name what stays again."""
        with contextlib.suppress(OSError):  # The machine has no thread left; the next start tries it.
            await self._removing.run("", lambda: folders.remove_remains(self._config.checkpoints))
            await self._removing.run("", self._environments.remove_remains)

    async def _launch(self, key: Key) -> None:
        app = self._desired.wanted().get(key)
        if app is None or not await self._may_launch():
            return
        if why := self._unfit():
            await self._reporter.refused(key, "lost", f"node {self._config.name} takes nothing new: {why}")
            return
        ports = ports_of(app.joined_as(key.slot), key.slot, app.master_port)
        taken = next((port for address, port in ports if self._port_taken(address, port)), 0)
        if taken:
            await self._reporter.refused(key, "port", f"port {taken} is in use on {self._config.address}")
            return
        wanted_gpus = app.spec.resources().get(GPU, 0)
        devices = await self._gpus.take(key, wanted_gpus)
        if devices is None:
            await self._reporter.refused(key, "device", f"fewer than {wanted_gpus} GPUs are free here")
            return
        try:
            await self._bring_origin(key.app, app)
            here = await self._folders(key.app, app, resume=app.resume)
            await self._judge(key, app)
        except NotShared as error:
            await self._reporter.refused(key, "checkpoints", str(error))
            self._looks.doubted.set()
            return
        except Refused as error:
            await self._reporter.refused(key, error.cause, str(error))
            return
        try:
            spec = self._spec(key, app, here, devices)
        except Refused as error:
            await self._reporter.refused(key, error.cause, str(error))
            return
        await self._drop_other(key, spec)
        try:
            await self._fetching.have(app)
            await self._offers.check(app.spec, app.owner)
            await self._have_environment(app)
            private = await asyncio.to_thread(secrets.files, self._config.secrets, app.spec)
            served = self._runtime.serves
            seen = await self._runtime.ensure(spec, {**files_of(app), **private})
            if self._runtime.serves != served:
                self._looks.doubted.set()  # No other tenant's app may come here from now on.
        except Refused as error:
            mounted = await self._looks.shared()
            self._looks.doubted.set()  # This node's offers may have changed.
            await self._reporter.refused(key, error.cause if mounted else "checkpoints", str(error))
        except Conflict as error:
            await self._reporter.refused(key, "unknown", str(error))
        else:
            _log.info("started", app=key.app, generation=key.generation, slot=key.slot, node=self._config.name)
            builds = self._environments.of(app.spec, app.owner) is not None
            if seen.state == "running" and key not in self._desired.started and not builds:
                await self._reporter.started(seen)

    async def _bring_origin(self, name: str, app: AppPart) -> None:
        """Copy the checkpoint that a new app starts from, which may take long: not in the turn of the looks.  Raises Refused,
        NotShared, OSError, Unavailable."""
        if app.spec.origin and app.resume:
            await self._looks(lambda: folders.prepare(self._looks.folder, name, app.owner, cluster=app.checkpoints))
            bring = partial(checkpoints.bring, self._config.checkpoints, name, app.spec.origin)
            digest = await self._copying.run(app.owner, bring)
            self._reporter.origins[name] = digest

    async def _judge(self, key: Key, app: AppPart) -> None:
        """Compare the checkpoint with what the app reported, before its first container starts.  Raises Unavailable."""
        fall_back = app.spec.on_doubtful == "fall_back"
        if not app.resume:
            return
        if key.slot == app.first_slot:
            await self._reporter.judge(key, fall_back=fall_back)
        elif fall_back:
            await self._reporter.wait_for_judgement(key)

    async def _folders(self, name: str, app: AppPart, *, resume: bool) -> folders.AppFolders:
        """Raises NotShared, and Unavailable if the shared folder does not answer or takes no change."""
        try:
            return await self._looks(
                lambda: folders.folders_of(self._looks.folder, name, app.owner, resume=resume, cluster=app.checkpoints)
            )
        except OSError as error:
            text = f"its folder of checkpoints can't be used: {error.strerror or error}"
            raise Unavailable(text, code="checkpoints.unavailable", doing="read") from error

    def _spec(self, key: Key, app: AppPart, here: folders.AppFolders, devices: tuple[str, ...]) -> ContainerSpec:
        return container_spec(
            key.app,
            app,
            key.slot,
            checkpoint_dir=str(here.checkpoints),
            checkpoint_mount=self._runtime.checkpoint_mount,
            outputs_dir=str(here.outputs),
            outputs_mount=self._runtime.outputs_mount,
            run_dir=self._runtime.run_mount(key),
            devices=devices,
            environment=self._environments.of(app.spec, app.owner),
            mounts=self._offers.mounts(app.spec, "" if self._runtime.mounts else self._runtime.run_mount(key)),
        )

    async def _have_environment(self, app: AppPart) -> None:
        environment = self._environments.of(app.spec, app.owner)
        await self._environments.have(environment, app.owner, self._runtime.owner_of(app.owner))

    async def _drop_other(self, key: Key, spec: ContainerSpec) -> None:
        """Remove a container that was prepared for another command: whether the app resumes is certain only at its release.
        It has never run."""
        seen = next((container for container in self._seen() if container.key == key), None)
        if seen is not None and seen.state == "created" and seen.spec_hash != spec_hash(spec):
            await self._runtime.remove(key)

    async def _prepare(self, key: Key) -> None:
        """Fetch the image and create the container, if that works before its release.  A failure costs the app nothing:
        the launch tries it again, and only that counts."""
        app = self._desired.to_prepare().get(key)
        if app is None or not await self._may_launch():
            return
        self.prepared = {other: why for other, why in self.prepared.items() if other in self._desired.to_prepare()}
        why = ""
        if app.spec.resources().get(GPU, 0):
            why = "its GPUs are in use until the generation before has ended"
        else:
            try:
                # The app has run, so its folder is there.  Nothing makes it here, which would hide that it is missing.
                here = await self._folders(key.app, app, resume=True)
                # Most apps have saved a checkpoint by then; a container that has not started is created again.
                expected = msgspec.structs.replace(app, resume=True)
                await self._fetching.have(app)
                await self._offers.check(app.spec, app.owner)
                await self._have_environment(app)
                await self._runtime.prepare(self._spec(key, expected, here, ()))
            except (Refused, Conflict, NotShared) as error:
                why = str(error)
        self.prepared[key] = why
        keys = [other for other in self._desired.to_prepare() if other[:2] == key[:2]]
        if keys and all(key in self.prepared for key in keys):
            reasons = [self.prepared[key] for key in keys]
            created = reasons.count("")
            await self._reporter.prepared(key, created, next((reason for reason in reasons if reason), ""))

    async def _empty_secrets(self, key: Key) -> None:
        """Its logs are kept for a while; its secrets need not be."""
        app = self._desired.apps.get(key.app)
        with contextlib.suppress(KeyError, Unavailable):
            for name in secrets.emptied(app.spec_of(key.generation)) if app is not None else ():
                await self._runtime.put(key, name, b"")

    async def _announce(self, key: Key) -> None:
        """Write the last announcement where the container reads it."""
        app = self._desired.wanted().get(key)
        if app is None:
            return
        written = announced(app)
        with contextlib.suppress(KeyError):  # it has been removed
            for name, content in files_of(app).items():
                await self._runtime.put(key, name, content)
            self.announced[key] = written

    def inside(self, key: Key, command: tuple[str, ...]) -> tuple[str, ...]:
        """Return how a command runs in the environment of a container."""
        app = self._desired.apps.get(key.app)
        environment = self._environments.of(app.spec_of(key.generation), app.owner) if app is not None else None
        return environments.inside(command, environment, self._runtime.run_mount(key))

    async def _withdraw(self, key: Key) -> None:
        """Stop a container whose GPU is gone.  It may still save what it has."""
        if key in self._gpus.lost:
            await self._reporter.lost_device(key, self._gpus.why_lost(key))
            app = self._desired.apps.get(key.app)
            await self._runtime.stop(key, app.spec_of(key.generation).stop_s if app is not None else 0.0)

    async def _look_for_lost_gpu(self, key: Key, seen: Seen | None) -> None:
        """Find out whether a container failed because its GPU is gone: programs notice that before any agent does."""
        if self._gpus.any and seen is not None and seen.exit_code != 0 and await self._gpus.holds(key):
            await self._gpus.look()
            if key in self._gpus.lost:
                await self._reporter.lost_device(key, self._gpus.why_lost(key))

    async def _checkpoint(self, key: Key, spec: AppSpec) -> int:
        """Run the app's checkpoint command and return its exit code.  KeyError if the container has ended."""
        try:
            command = checkpoint_command(spec, await self._runtime.variables(key))
        except (TooLong, Unavailable) as error:
            if isinstance(error, Unavailable) and error.code != "container.record.damaged":
                raise
            _log.warning("the checkpoint command cannot be run", app=key.app, slot=key.slot, reason=str(error))
            return 0
        return await self._runtime.run(key, self.inside(key, command), spec.grace_s)

    async def _halt(self, key: Key) -> None:
        """Run the checkpoint command, if the app has one, then stop with SIGTERM and the grace time.  Kill at once if the log
        counts the container as ended: another generation may run by now."""
        if key not in self._desired.due:
            _log.warning("killing what the log counts as ended", node=self._config.name, key=key)
            await self._runtime.stop(key, 0.0)
            return
        if self._killed(key):
            await self._kill(key)
            return
        app = self._desired.apps.get(key.app)
        spec = app.spec_of(key.generation) if app else None
        await self._reporter.asking(key)
        if self._killed(key):  # meanwhile
            await self._kill(key)
            return
        if spec is not None and spec.checkpoint and app is not None and not app.ended_at:
            code = 0
            with contextlib.suppress(KeyError):  # it has ended by itself
                code = await self._checkpoint(key, spec)
            if code:
                _log.warning("the checkpoint command failed", app=key.app, slot=key.slot, exit_code=code)
        if await self._runtime.stop(key, spec.stop_s if spec else 10.0):
            await self._reporter.killed(key)

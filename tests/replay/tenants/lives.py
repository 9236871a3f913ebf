"""Lives of a cluster with several tenants, drawn from a seed: every text that others than Alice's tenant write is a canary."""

from __future__ import annotations

from random import Random
from typing import Any

from events import kinds as k
from events import subjects
from events.codec import encode
from events.quantities import SECOND
from tests.core.nonsense import nonsense
from tests.core.records import document
from tests.replay.made_log import CLUSTER, Story

CANARY = "canary"
ALICES = ("alice", "amy")
"""Users of the tenant `alice`."""
BOB, CARL, ROOT = "canary-bob", "canary-carl", "canary-root"
"""Another user, an operator, the admin."""


class Life(Story):
    """A story in which known users and nodes say things."""

    def __init__(self, seed: int, nodes: int = 3, *, hostile: bool = True) -> None:
        """Without `hostile`, no author tries a forbidden act, of which only the author sees more than the position."""
        super().__init__(nodes)
        self.hostile = hostile
        self.random = Random(seed)
        self.count = 0
        self.by(ROOT, k.TrustEnabled(nodes=[f"n{index}" for index in range(nodes)]))
        for user, role, tenant in (
            ("alice", "user", ""),
            ("amy", "user", "alice"),
            (BOB, "user", ""),
            (CARL, "operator", ""),
        ):
            self.by(ROOT, k.UserAdded(name=user, role=role, tenant=tenant, public_key="A" * 56))  # type: ignore[arg-type]
        self.by(BOB, k.TokenAdded(token=f"{CANARY}-token", user=BOB, digest="cd" * 32))

    def by(self, who: str, event: k.Event) -> None:
        self.count += 1
        self.store(subjects.fact(CLUSTER, type(event).__name__, who), encode(event), f"{who}.{self.count}")

    def play(self, steps: int) -> Life:
        acts = [self._submit, self._submit, self._update, self._cancel, self._gate, self._operate, self._attack, self._report,
                self._exit, self._nodes, self.work]  # fmt: skip
        self.by("alice", k.AppSubmitted(spec=document("plain-first", n_max=3)))
        self.settle()
        for _ in range(steps):
            self.random.choice(acts)()
            if self.random.random() < 0.7:
                self.settle()
        self.settle()
        return self

    # --- what they do ---------------------------------------------------------------------------------------------------

    def _submit(self) -> None:
        who = self.random.choice((*ALICES, BOB, BOB, CARL))
        secret = "plain" if who in ALICES else CANARY
        spec: dict[str, Any] = document(
            f"{secret}-{who[-1]}{self.random.randrange(2)}",
            cpu=self.random.choice((0.5, 1, 2, 40)),
            n_max=self.random.choice((1, 2, 6)),
            command=[secret, "--run"],
            resume=[secret],
            checkpoint=[secret],
            env={f"{secret}_VAR": secret},
            labels={secret: secret},
            image=f"{secret}:1",
            secrets={f"{secret}_FILE": secret},
            weight=self.random.choice((1.0, 2.0)),
            retries={"limit": 1, "backoff": 0},
        )
        if self.random.random() < 0.3:
            spec["group"] = {"name": f"{secret}s", "parallel": 1, "parameters": {secret: secret}}
        if self.random.random() < 0.2:
            spec["require"] = f'{secret} == "{secret}"'
        if self.random.random() < 0.1:
            spec["demand"] = {f"{secret}s": 1}
        spec |= self._gates(who)
        self.by(who, k.AppSubmitted(id=self.random.choice(("", f"{who}//{self.random.randrange(3)}")), spec=spec))

    def _gates(self, who: str) -> dict[str, Any]:
        """What may keep it from running: mostly for a short time."""
        known = self.state.known
        own = [app for app in self.state.apps.values() if known is not None and app.tenant == known.tenant_of(who)]
        other = self.random.choice(own) if own and self.random.random() < 0.5 else None
        after = [{"app": self.random.choice((other.id, other.name)), "when": "ended"}] if other is not None else []
        start, most = self.random.choice(("", "", "20s")), self.random.choice(("", "", "2s", "1h"))
        return {"hold": self.random.random() < 0.2, "after": after, "start_after": start, "max_runtime": most}

    def _some(self, *tenants: str) -> Any:
        apps = [app for app in self.state.apps.values() if not tenants or app.tenant in tenants]
        return self.random.choice(apps) if apps else None

    def _who_changes(self, app: Any) -> str:
        """An operator who changes an app that has ended is refused, and only readers of the log learn of it."""
        if not self.hostile and app.ended:
            return str(app.user)
        return self.random.choice((app.user, CARL, BOB if self.hostile else app.user))

    def _update(self) -> None:
        app = self._some()
        if app is not None:
            who = self._who_changes(app)
            named = self.random.choice((app.id, app.name))
            self.by(who, k.AppUpdated(app=named, weight=3.0, n_max=self.random.choice((None, 1, 5, 9))))

    def _cancel(self) -> None:
        app = self._some()
        if app is not None:
            who = self._who_changes(app)
            # What an operator says about an app of hers is said to her.
            reason = "plain" if who in ALICES or (who == CARL and app.tenant == "alice") else CANARY
            self.by(who, k.AppCancelRequested(app=self.random.choice((app.id, app.name)), reason=reason))

    def _gate(self) -> None:
        app = self._some()
        if app is not None:
            who = self._who_changes(app)
            reason = "plain" if who in ALICES or (who == CARL and app.tenant == "alice") else CANARY
            kind = self.random.choice((k.AppHoldRequested, k.AppReleaseRequested))
            self.by(who, kind(app=self.random.choice((app.id, app.name)), reason=reason))

    def _operate(self) -> None:
        counts = {app.id: 1 for app in self.state.apps.values() if self.random.random() < 0.5 and self.hostile}
        match self.random.randrange(5):
            case 0:
                self.by(CARL, k.PolicyChanged(policy="static", params={"counts": {**counts, "*": 2}}))
            case 1:
                self.by(
                    CARL,
                    k.PolicyChanged(
                        policy=self.random.choice(("dorm", "fifo", CANARY if self.hostile else "drf")), params={}
                    ),
                )
            case 2:
                node, drain = self.random.choice(("n0", CANARY)), self.random.random() < 0.5
                self.by(CARL, k.NodeDrainRequested(node=node, drain=drain, reason="for all to know"))
            case 3:
                hook = k.WebhookSet(webhook=CANARY, url=f"https://{CANARY}", events=["app.ended"], key=CANARY)
                self.by(CARL, hook)
            case 4:
                self.by(ROOT, k.UserAdded(name=f"{CANARY}-new", tenant=self.random.choice(("", f"{CANARY}-lab"))))

    def _attack(self) -> None:
        if not self.hostile:
            return
        app = self._some()
        match self.random.randrange(4):
            case 0:
                for end, body in nonsense("n0", app.id if app is not None else "x"):
                    self.store(f"dorm.{CLUSTER}.{end.replace('.ann', f'.{BOB}')}", body)
            case 1:
                self.store(f"dorm.{CLUSTER}.{CANARY}Kind.{BOB}", f'{{"text": "{CANARY}"}}'.encode())
            case 2:
                self.store(f"dorm.{CLUSTER}.AppSubmitted.{BOB}", f'{{"spec": {{"name": "{CANARY}"'.encode())
            case 3:
                self.by(BOB, k.UserAdded(name=f"{CANARY}-friend", role="admin"))

    def _report(self) -> None:
        app = self._some()
        generation = app.generations.get(app.generation) if app is not None else None
        if app is None or generation is None or not generation.containers:
            return
        said = "plain" if app.tenant == "alice" else CANARY
        first = generation.containers[min(generation.containers)]
        at: dict[str, Any] = {"app": app.id, "generation": generation.number}
        step = self.random.randrange(1, 10**6)
        self.by(first.node, k.AppProgressed(**at, step=step, loss=0.123456789, samples_per_s=987.654321))
        self.by(first.node, k.AppCheckpointed(**at, step=step))
        self.by(first.node, k.AppResizeRequested(**at, containers=1, reason=said))
        self.by(first.node, k.ContainersPrepared(**at, node=first.node, reason=said))
        self.by(first.node, k.ContainerDelayed(**at, slot=first.slot, node=first.node, doing="stop", reason=said))

    def _exit(self) -> None:
        app = self._some()
        generation = app.generations.get(app.generation) if app is not None else None
        if app is None or generation is None or not generation.released:
            return
        said = "plain" if app.tenant == "alice" else CANARY
        code = self.random.choice((0, 1))
        for c in list(generation.containers.values()):
            ended = k.ContainerExited(
                app=app.id, generation=generation.number, slot=c.slot, node=c.node, exit_code=code, message=said
            )
            self.by(c.node, ended)

    def _nodes(self) -> None:
        match self.random.randrange(3):
            case 0:
                self.join("n1")
            case 1:
                self.conclude({"n2": self.now - 60 * SECOND})
            case 2:
                self.elect()

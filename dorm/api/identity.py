"""Which user makes a request, and what that user may do: the one place that decides both.

On an open cluster a request may name a user in the header `Dorm-User`, as `dorm --user` does; nothing proves it, as nothing
proves that option.  Without one it is the user who runs the process.  So everyone who reaches the API can do all that it can
do, in any name.  That is why it listens on loopback by default.

On a cluster that knows its users (`events.identities`) every request proves who makes it:

    Authorization: Bearer SECRET    a token of that user (`TokenAdded`)
    Authorization: Basic …          the same secret as password, with the user's name
    a session's cookie              the same secret; browsers get it by signing in (`dorm.api.resources.process`)
    a client's certificate          with the user's name as its common name, signed by the authority that the server trusts

The log, not a file of the API, holds a digest of each token: so all processes of the API accept the same ones, a removed token
ends everywhere at once, and the log shows who had access at every moment.

What a route needs is in `ACCESS`.  A route that is missing there requires a user, so nothing is open by oversight.
Whether a change is allowed is the fold's own rule, which the client asks before it publishes
(`dorm.client.Client.check_authority`).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import re
import secrets
from typing import TYPE_CHECKING, Any, Literal, get_args

from dorm.api.errors import ApiError, Forbidden, Malformed, Unauthorized, Unavailable
from events.kinds import OfIdentities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiohttp import web

    from dorm.api.follower import Follower
    from dorm.core.state import State
    from events.identities import Identities, User
    from events.kinds import Event

HEADER = "Dorm-User"
PATTERN = r"^[A-Za-z0-9._@+=-]{1,64}$"
PREFIX = "dorm_"
"""Secrets begin with it, so that scanners of source code find them."""

Access = Literal["open", "any", "write"]
"""`open`: everyone.  `any`: every user; plain users see the view of their tenant (`dorm.api.services.Tenants`).  `write`: all
but readers, as far as the fold lets them."""
ACCESS: dict[str, Access] = {
    "health": "open",
    "ready": "open",
    "describe": "open",
    "app_schema": "open",
    "sign_in": "open",
    "session_code": "any",
    "masters": "any",
    "list_apps": "any",
    "list_nodes": "any",
    "get_policy": "any",
    "get_usage": "any",
    "submit_app": "write",
    "update_app": "write",
    "cancel_app": "write",
    "kill_app": "write",
    "drain_node": "write",
    "undrain_node": "write",
    "forget_node": "write",
    "trust_node": "write",
    "pause_scheduling": "write",
    "resume_scheduling": "write",
    "retry_app": "write",
    "hold_app": "write",
    "release_app": "write",
    "replace_spec": "write",
    "patch_spec": "write",
    "restart_app": "write",
    "submit_sweep": "write",
    "cancel_sweep": "write",
    "change_policy": "write",
}
"""Access by operation; `any` for all others."""
_READS_ALL = ("reader", "operator", "admin")
CODE_S = 60
"""Seconds that a code for a browser is good for."""
_MOST_CODES = 256


def new_secret() -> str:
    """Return the secret of a new token: 256 random bits."""
    return PREFIX + secrets.token_hex(32)


def digest_of(secret: str) -> str:
    """Return what the log holds of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Doorkeeper:
    """Says who makes a request, as far as the log is read."""

    def __init__(self, follower: Follower, user: str, clock: Callable[[], int], *, everyone: bool = False) -> None:
        """`user` makes requests on an open cluster that name none.  `everyone`: no identity counts, as for an archive, which
        the one who serves it has in full."""
        self._follower = follower
        self._user = user
        self._clock = clock
        self._everyone = everyone
        self._read = everyone
        """Whether the log was read once, so that it is known who is known."""
        self._users: dict[str, User] | None = None
        """Users by name; None for an open cluster."""
        self._tokens: dict[str, tuple[str, int]] = {}
        """User and end (UTC ns, 0 for none), by digest."""
        self._changed = False
        """Whether identities have changed since the streams were looked at."""
        self._streams: dict[int, tuple[web.Request, User | None, Callable[[], None]]] = {}
        self.codes = Codes(clock)
        if not everyone:
            follower.on_ready.append(self._begin)
            follower.on_restart.append(self._forget)
            follower.watchers.append(self._look)

    # --- following: in the state's thread -------------------------------------------------------------------------------

    def _begin(self, state: State) -> None:
        self._copy_identities(state.known)
        self._follower.observers.append(self._note_record)
        self._read = True

    def _forget(self) -> None:
        self._read = False

    def _note_record(self, state: State, record: object, event: Event, folded: str) -> None:
        if isinstance(event, get_args(OfIdentities)) and folded == "applied":
            self._copy_identities(state.known)

    def _copy_identities(self, known: Identities | None) -> None:
        """Take copies, which no later record changes."""
        tokens = known.tokens.values() if known is not None else ()
        self._tokens = {token.digest: (token.user, token.expires_at) for token in tokens}
        self._users = dict(known.users) if known is not None else None
        self._changed = True

    # --- streams, which outlive the question who makes them -------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, request: web.Request, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` as soon as the user of this request is unknown, or has another role."""
        self._streams[id(request)] = request, self._judge(request, "any"), end
        try:
            yield
        finally:
            del self._streams[id(request)]

    def _look(self, records: object) -> None:
        if not self._changed:
            return
        self._changed = False
        for request, before, end in list(self._streams.values()):
            try:
                user = self._judge(request, "any")
            except ApiError:
                end()
                continue
            if (user and (user.name, user.role)) != (before and (before.name, before.role)):
                end()

    # --- asking ---------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether requests have to prove who makes them, as far as is known."""
        return self._users is not None

    def own_only(self, name: str) -> str | None:
        """Return the tenant whose apps alone this user reads, None for one who reads all."""
        user = None if self._everyone or self._users is None else self._users.get(name)
        return user.tenant if user is not None and user.role not in _READS_ALL else None

    def reads_files(self, name: str) -> bool:
        """Return whether this user may ask for files of apps: a reader reads the log and output."""
        user = None if self._everyone or self._users is None else self._users.get(name)
        return user is None or user.role != "reader"

    async def admit(self, request: web.Request, operation: str) -> str:
        """Return the user who makes this request.  Raises Malformed, Unauthorized, Forbidden, and Unavailable as long as it is
        unknown who is known."""
        access = ACCESS.get(operation, "any")
        if access == "open":
            return self._user
        if not self._read:
            raise Unavailable(f"the log is not read yet: {self._follower.trouble}", code="api.starting")
        user = self._judge(request, access)
        if user is None:
            return user_of(request, self._user)
        return user.name

    def views_of(self, name: str) -> str:
        """Return the tenant whose view of the log this user reads, "" for one who reads all of it."""
        user = self._users.get(name) if self._users is not None and not self._everyone else None
        return user.tenant if user is not None and user.role not in _READS_ALL else ""

    def _judge(self, request: web.Request, access: Access) -> User | None:
        """Return the user who may do this, None on an open cluster.  Raises Malformed, Unauthorized, Forbidden."""
        if self._everyone or self._users is None:
            return None
        user = self._proven(request, self._users)
        if user_of(request, user.name) != user.name:
            raise Forbidden(f"{HEADER} names another user than {user.name}", code="api.user.not_own")
        if access == "write" and user.role == "reader":
            raise Forbidden(f"{user.name} is a reader, and changes nothing", code="identity.role.too_low")
        return user

    def _proven(self, request: web.Request, users: dict[str, User]) -> User:
        name = _certified(request)
        secret = secret_of(request) or _session_of(request)
        if secret:
            name = self._owner(secret[1])[0]
            if secret[0] and secret[0] != name:
                raise Unauthorized("this token is another user's", code="api.token.unknown")
        if not name:
            raise Unauthorized("say who you are with a token: `Authorization: Bearer SECRET`")
        if name not in users:
            raise Unauthorized(f"the cluster knows no user {name}", code="identity.unknown")
        return users[name]

    def _owner(self, secret: str) -> tuple[str, int]:
        """Return whose secret it is, and its end (UTC ns, 0 for none).  Raises Unauthorized."""
        name, ends = self._tokens.get(digest_of(secret), ("", 0))
        if not name or (ends and ends <= self._clock()):
            raise Unauthorized("this token is unknown, or has ended", code="api.token.unknown")
        return name, ends

    def ends(self, secret: str) -> int:
        """Return until when a token's secret is valid (UTC ns), 0 for no limit. Raises Unauthorized."""
        return self._owner(secret)[1]


class Codes:
    """Codes with which browsers sign in: each is good for one use, within a minute, at this process."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._open: dict[str, tuple[str, int]] = {}
        """Secret and end (UTC ns), by digest of the code."""

    def make(self, secret: str) -> str:
        """Return a code for a token's secret."""
        now = self._clock()
        self._open = {code: session for code, session in self._open.items() if session[1] > now}
        while len(self._open) >= _MOST_CODES:
            del self._open[next(iter(self._open))]
        code = secrets.token_urlsafe(32)
        self._open[digest_of(code)] = (secret, now + CODE_S * 10**9)
        return code

    def take(self, code: str) -> str:
        """Return the secret of a code, which is then used up; "" for one that is unknown or too old."""
        secret, ends = self._open.pop(digest_of(code), ("", 0))
        return secret if ends > self._clock() else ""


def cookie_of(request: web.Request) -> str:
    """Return the name of a session's cookie.  Browsers share cookies among all ports of a host, so it names the port."""
    return f"dorm-session-{request.url.port}"


def _session_of(request: web.Request) -> tuple[str, str] | None:
    """Return a session's secret.  A browser sends it for any page that asks, so a request that changes something must name its
    origin, which `dorm.api.connections` compares.  Raises Forbidden."""
    secret = request.cookies.get(cookie_of(request))
    if not secret:
        return None
    if request.method not in ("GET", "HEAD") and "Origin" not in request.headers:
        raise Forbidden("a session changes something only from the dashboard's own page", code="api.origin.foreign")
    return "", secret


def secret_of(request: web.Request) -> tuple[str, str] | None:
    """Return a user's name, "" for none, and a secret.  Raises Malformed."""
    given = request.headers.get("Authorization")
    if given is None:
        return None
    scheme, _, rest = given.partition(" ")
    if scheme.lower() == "bearer" and rest:
        return "", rest.strip()
    if scheme.lower() == "basic":
        try:
            name, sign, secret = base64.b64decode(rest.strip(), validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            sign = ""
        if sign:
            return name, secret
    raise Malformed(
        "Authorization: write `Bearer SECRET`, or use HTTP's basic authentication", code="api.token.malformed"
    )


def _certified(request: web.Request) -> str:
    """Return the common name of the client's certificate, which the server has verified; "" for none."""
    certificate: Any = request.transport.get_extra_info("peercert") if request.transport is not None else None
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    return names[0] if len(names) == 1 else ""


def user_of(request: web.Request, default: str) -> str:
    """Return the user whom a request names.  Raises Malformed."""
    given = request.headers.get(HEADER)
    if given is None:
        return default
    if not re.fullmatch(PATTERN, given):
        raise Malformed(f"{HEADER}: use 1 to 64 letters, digits and any of . _ @ + = -", code="api.user.malformed")
    return given


def warning(host: str) -> str:
    """Return a warning about an API that listens beyond this machine."""
    return (
        f"the API listens on {host}, beyond this machine: on an open cluster, all who reach it can read the whole log, "
        "submit and cancel apps and change settings in anyone's name; make the cluster know its users, put a proxy that "
        "authenticates in front of it, or let it listen on 127.0.0.1"
    )

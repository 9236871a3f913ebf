"""Signing in from a browser: a token becomes a session's cookie, and no secret is ever part of an address that a server sees.

    POST /v1/session/codes   with a token: a code for one use, good for a minute (`dorm dashboard`)
    POST /v1/session         with a code, or with a token itself: the cookie

The page at `/sign-in` does the second.  `dorm dashboard` hands it the code behind the `#` of its address, which browsers do
not send.  The cookie is the token: removing it on the log (`dorm token remove`) ends the session in every process of the API,
and a restarted process knows it as before.  Scripts cannot read the cookie (`HttpOnly`), other sites' pages do not send it
(`SameSite=Strict`), and what changes something has to come from this origin besides (`dorm.api.identity`).
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from dorm.api.answers import Answer, answer
from dorm.api.errors import Unauthorized
from dorm.api.identity import CODE_S, cookie_of, secret_of
from dorm.api.routes import Call, Parameters, Route


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser signs in with, once."""

    code: str
    expires_s: int
    """Seconds that it is good for."""


class SignIn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What proves the user: a code, or a token's secret."""

    code: str = ""
    token: str = ""


async def session_code(call: Call[Parameters, None]) -> Answer:
    """A code with which a browser signs in as the user of the token that makes this request.  It is good for one use, within a
    minute, and only at the process that made it."""
    found = secret_of(call.request)
    if found is None:
        raise Unauthorized("a code is made for a token: send one as `Authorization: Bearer SECRET`")
    services = call.services
    code = services.door.codes.make(found[1])
    return answer(Code(code=code, expires_s=CODE_S), services.follower.seq, headers={"Cache-Control": "no-store"})


async def sign_in(call: Call[Parameters, SignIn]) -> web.StreamResponse:
    """Begin a session: the answer sets its cookie, which is good for as long as the token."""
    services, body = call.services, call.body
    secret = services.door.codes.take(body.code) if body.code else body.token
    if not secret:
        raise Unauthorized(
            "this code was used already, or its minute is over; `dorm dashboard` makes another one",
            code="api.code.unknown",
        )
    ends = services.door.ends(secret)
    made = web.Response(status=204, headers={"Cache-Control": "no-store"})
    left = max(1, (ends - services.clock()) // 10**9) if ends else None
    made.set_cookie(
        cookie_of(call.request),
        secret,
        max_age=left,
        path="/",
        httponly=True,
        samesite="Strict",
        secure=call.request.secure,
    )
    return made


ROUTES = [
    Route(
        "POST",
        "/v1/session/codes",
        session_code,
        "Make a code for a browser",
        answer=Code,
        tag="session",
        about="`dorm dashboard` asks for one, and opens a browser with it.",
    ),
    Route(
        "POST",
        "/v1/session",
        sign_in,
        "Sign a browser in",
        body=SignIn,
        status=204,
        tag="session",
        about="Browsers do this on the page `/sign-in`. Programs need no session; they send their token with each request.",
    ),
]

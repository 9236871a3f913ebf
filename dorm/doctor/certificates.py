"""When certificates and tokens end: a cluster stops at that moment, and nothing announces it.

A certificate is seen where it counts, in the answer of the server that shows it, and in files of this machine.  Both matter: a
renewed file does not help before its server uses it.  `judge_ends` and `judge_tokens` are pure; the rest looks.

A certificate that lasts longer than two months has to be renewed 30 days before its end.  One that lasts shorter is renewed by
a program, which needs no advice until two thirds of its time are over.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import psutil

from dorm.doctor import findings as f
from dorm.security.files import SecurityError
from events.quantities import SECOND
from replay.words import moment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dorm.doctor.findings import Finding
    from dorm.security.certificates import Validity
    from events.identities import Token

_DAY = 24 * 3600 * SECOND
SOON = 30 * _DAY
"""The time that an admin gets to renew something."""
_SHORT = 2 * SOON
_CONNECT_S = 3.0
_SESSION = "session-"
"""The beginning of the names of browsers' tokens, which last some hours."""
_CHECK = "certificate"
_LARGEST = 1 << 20


class Seen(NamedTuple):
    """A certificate, and who shows it."""

    about: str
    """A server or a file."""
    what: str
    """Such as `the NATS server's certificate`."""
    todo: str
    """Way to renew it."""
    validity: Validity | None = None
    error: str = ""
    """Reason why there is no `validity`."""


# --- judging ------------------------------------------------------------------------------------------------------------


def judge_ends(every: Iterable[Seen], now: int) -> Iterator[Finding]:
    """`now`: UTC ns."""
    for seen in every:
        if seen.validity is None:
            yield f.unknown(_CHECK, seen.about, f"when {seen.what} ends is not known: {seen.error}", seen.todo)
            continue
        begins, ends = seen.validity.begins, seen.validity.ends
        text = f"{seen.what} ends at {moment(ends)}, in {_days(ends - now)}"
        if ends <= now:
            yield f.wrong(
                _CHECK, seen.about, f"{seen.what} ended at {moment(ends)}: no client trusts it any more", seen.todo
            )
        elif begins > now + _DAY:
            text = f"{seen.what} counts from {moment(begins)} on: no client trusts it yet"
            yield f.wrong(_CHECK, seen.about, text, "set the clocks of this machine and of the one that made it")
        elif ends - begins <= _SHORT and ends - now < SOON:
            late = ends - now < (ends - begins) / 3
            yield f.wrong(_CHECK, seen.about, text, seen.todo) if late else f.note(_CHECK, seen.about, text)
        elif ends - now < SOON:
            yield f.wrong(_CHECK, seen.about, text, seen.todo)
        else:
            yield f.ok(_CHECK, seen.about, text)


def judge_tokens(tokens: Iterable[Token], now: int) -> Iterator[Finding]:
    """Judge the tokens of the API that have an end.  Their users chose it, so it is never wrong.  `now`: UTC ns."""
    for token in tokens:
        if not token.expires_at or token.name.startswith(_SESSION):
            continue
        add = f"`dorm token add --for {token.user}` adds another one, and `dorm token remove {token.name}` removes this one"
        if token.expires_at <= now:
            yield f.note("token", token.name, f"the token of {token.user} ended at {moment(token.expires_at)}", add)
        elif token.expires_at - now < SOON:
            text = f"the token of {token.user} ends at {moment(token.expires_at)}, in {_days(token.expires_at - now)}"
            yield f.note("token", token.name, text, add)
        else:
            yield f.ok("token", token.name, f"the token of {token.user} ends at {moment(token.expires_at)}")


def _days(span: int) -> str:
    days = span // _DAY
    return f"{days} day{'' if days == 1 else 's'}" if days else "less than a day"


# --- looking ------------------------------------------------------------------------------------------------------------


def parsed(about: str, what: str, certificate: bytes | str, todo: str) -> Seen:
    """Return what a certificate says, in PEM or DER.  Of several, the first to end counts."""
    from dorm.security.certificates import validity_of

    try:
        raw = certificate.encode() if isinstance(certificate, str) else certificate
        return Seen(about, what, todo, validity_of(raw))
    except SecurityError as error:
        return Seen(about, what, todo, error=str(error))


def in_files(files: Iterable[tuple[Path, str, str]]) -> list[Seen]:
    """Look at those of these files that are there: each with what it is, and how it is renewed."""
    certificates = []
    for path, what, todo in files:
        try:
            with path.open("rb") as file:
                certificates.append(parsed(str(path), what, file.read(_LARGEST), todo))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if not isinstance(error, PermissionError):
                certificates.append(Seen(str(path), what, todo, error=str(error.strerror)))
            # What this user may not read is of another user, who has a doctor too.
    return certificates


async def shown_at(url: str, what: str, todo: str) -> Seen:
    """Look at the certificate that an HTTPS server shows, without checking who signed it."""
    parts = urlsplit(url)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    try:
        port = parts.port or 443
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(parts.hostname, port, ssl=trusting)
    except (OSError, ValueError, TimeoutError) as error:
        return Seen(url, what, todo, error=str(error) or f"no answer within {_CONNECT_S:g} s")
    try:
        raw = writer.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return parsed(url, what, raw, todo)


class ApiHere(NamedTuple):
    """A `dorm serve` with encryption on this machine."""

    url: str
    files: tuple[str, ...]
    """Files of its certificate, and of the authority of its clients if there is one."""


def apis_here() -> list[ApiHere]:
    """Return the processes `dorm serve` of this machine that encrypt."""
    apis = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            api = api_of(process.cmdline(), Path(process.cwd()) if _reads(process) else Path("/"))
            apis += [api] if api is not None and api not in apis else []
    return apis


def _reads(process: psutil.Process) -> bool:
    try:
        return bool(process.cwd())
    except psutil.Error:
        return False


def api_of(command: Sequence[str], folder: Path) -> ApiHere | None:
    """Return what a process's command line says of it, None if it is not a `dorm serve` that encrypts.  `folder`: where it
    runs."""
    if "serve" not in command or not any("dorm" in word for word in command[: list(command).index("serve")]):
        return None
    options = {}
    for word, after in zip(command, [*command[1:], ""], strict=True):
        name, sign, value = word.partition("=")
        options[name] = value if sign else after
    certificate, clients = options.get("--tls-cert", ""), options.get("--tls-clients", "")
    if not certificate:
        return None
    host, sign, port = options.get("--listen", "127.0.0.1:4280").rpartition(":")
    if not sign or options.get("--listen", "").endswith("]"):
        host, port = options["--listen"], "4280"
    host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]", "::": "[::1]"}.get(host, host)
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    files = tuple(str(folder / file) for file in (certificate, clients) if file)
    return ApiHere(f"https://{bracketed}:{port}" if port != "0" else "", files)

"""Requests that a browser makes on behalf of another site are refused before they are read.

Hosts       a page of another name whose DNS entry points here (DNS rebinding) sends its own name as `Host`
Origins     a page of another origin sends its own as `Origin`; there is no CORS, so it could not read an answer anyway
Types       a form of a foreign page can only send a few content types, so what changes something needs another one
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dorm.api.errors import Forbidden, Misdirected, Unsupported

if TYPE_CHECKING:
    from aiohttp import web

    from dorm.api.options import Options

JSON = "application/json"
YAML = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
_WRITES = ("POST", "PUT", "PATCH", "DELETE")
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Server": "dorm",
}
"""Headers of every answer."""


class Hosts:
    """The names by which the API may be called."""

    def __init__(self, options: Options) -> None:
        names = {"localhost", options.host.lower(), *(name.lower() for name in options.allow_hosts)}
        if not options.loopback:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        self._names = names
        self._loopback = options.loopback

    def check(self, request: web.Request) -> None:
        """Raises Misdirected."""
        given = request.headers.get("Host", "")
        name = _host_in(given)
        if name in self._names or self._is_own_address(name):
            return
        raise Misdirected(
            f"this API does not answer for the host {given[:80]!r}; call it as localhost, or allow the name with "
            "`dorm serve --allow-host`"
        )

    def _is_own_address(self, name: str) -> bool:
        """An IP address is not a name that a foreign DNS entry could point here."""
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._loopback


def check_origin(request: web.Request) -> None:
    """Refuse requests that change something if a page of another origin makes them.  Raises Forbidden."""
    if request.method not in _WRITES:
        return
    origin = request.headers.get("Origin")
    host = request.headers.get("Host", "")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        raise Forbidden("a page of another origin may not change anything here", code="api.origin.foreign")
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        raise Forbidden("a page of another site may not change anything here", code="api.origin.foreign")


def check_type(request: web.Request, *, yaml: bool) -> bool:
    """Check the body's type; return whether it is YAML.  Raises Unsupported."""
    given = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if given == JSON:
        return False
    if yaml and given in YAML:
        return True
    takes = f"{JSON} or {YAML[0]}" if yaml else JSON
    raise Unsupported(f"send the body as Content-Type: {takes}, even an empty one ({{}})", code="api.body.unsupported")


def _host_in(given: str) -> str:
    """Return the name or address in a `Host` header, without the port."""
    try:
        return (urlsplit(f"//{given}").hostname or "").lower()
    except ValueError:
        return ""

"""Sessions in containers: commands, shells and forwarded connections, between a person's client and a node's agent.

A session is a question to the agent (`events.log.interface.Bus`) whose answer lasts as long as the session: output
comes in its pieces, each acknowledged when the client has written it, so neither side holds more than a few.  What
goes in is asked as well, one message after the other, each answered once the container has taken it.  The subject of
both names the tenant of the container and the person (`events.subjects.session`), so a server that guards subjects
decides who may enter, and nobody else can add to a session.  Messages are MessagePack.

Either side ends a session by going away.  The agent misses the listener of its answer, or hears nothing for `SILENT_S`
from a client that hangs; the client misses the agent's pieces.

The log shows a session's command as one line that a shell would read, cut, and without what looks like a secret.  No
rule finds every secret, so a command should read its secrets from files or from its standard input, which the log
never has.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from events.errors import DormError
from events.kinds.base import ExitCode, Port
from events.kinds.sessions import SessionIs
from events.limits import Name, Number, Slot, clipped
from events.spec.checking import hide_secrets, names_secret

if TYPE_CHECKING:
    from collections.abc import Sequence


# --- bounds -----------------------------------------------------------------------------------------------------------

CHUNK: Final = 32 * 1024
"""Bytes of input or output in one message at most."""
ALIVE_S: Final = 10.0
"""Seconds after which a client that has nothing to say says that it is there."""
SILENT_S: Final = 60.0
"""Seconds of a client's silence after which the agent ends its session: a client that hangs, or is stopped for long."""
_LARGEST_COMMAND: Final = 256 * 1024

SessionId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16,64}$")]
"""Random, so that nobody meets another's by chance; nobody needs to keep it secret."""
Words = Annotated[list[Annotated[str, msgspec.Meta(max_length=128 * 1024)]], msgspec.Meta(max_length=4096)]
_Cells = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Chunk = Annotated[bytes, msgspec.Meta(max_length=CHUNK)]


class MessageMalformed(DormError, ValueError):
    """A message of a session can't be read."""

    code = "session.message.malformed"


class Size(msgspec.Struct, frozen=True):
    """A terminal's size, in characters."""

    columns: _Cells
    rows: _Cells


# --- what a client asks -------------------------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, tag="open", omit_defaults=True):
    """Begin a session in this container.  Its answer is the session: `Begun`, `Output` …, `Ended`."""

    session: SessionId
    app: Name
    generation: Number
    slot: Slot
    what: SessionIs
    command: Words = []
    """The program and its arguments; empty for forwarded connections."""
    terminal: Size | None = None
    """The size of the client's terminal, if the command is to have one; then its output is one stream."""
    term: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9.+-]{0,64}$")] = ""
    """Kind of the terminal (TERM)."""
    port: Port | None = None
    """Port of the container, for forwarded connections."""


class Connect(msgspec.Struct, frozen=True, tag="connect", omit_defaults=True):
    """Open one more connection of a session of forwarded ones.  The answer is `Output` … and `Ended`."""

    session: SessionId
    connection: Number


class Input(msgspec.Struct, frozen=True, tag="input", omit_defaults=True):
    """Bytes for the command's standard input, or for a connection; answered once they are taken."""

    session: SessionId
    number: Number
    """Counts the inputs of the session or connection from 1, so that none is taken twice or out of order."""
    data: Chunk = b""
    last: bool = False
    """Whether the input ends with this."""
    connection: Number = 0
    """0 for the command's standard input."""


class Resize(msgspec.Struct, frozen=True, tag="resize"):
    """The client's terminal has another size."""

    session: SessionId
    size: Size


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """Send a signal to the command's processes."""

    session: SessionId
    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """The client is there, though it has nothing to say."""

    session: SessionId


Opening = Open | Connect
"""Requests on the subject `session`."""
Following = Input | Resize | Signal | Alive
"""Requests on the subject `input`."""


# --- what the agent answers ---------------------------------------------------------------------------------------------


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The session is on the log, and the command runs."""


class Output(msgspec.Struct, frozen=True, tag="output"):
    """What the command wrote, or what came over a connection."""

    stream: int
    """1 for standard output, a terminal or a connection, 2 for standard error."""
    data: bytes


class Ended(msgspec.Struct, frozen=True, tag="ended", omit_defaults=True):
    """The session is over, or did not begin."""

    exit_code: ExitCode | None = None
    """Exit code as a shell has it: 128 and the signal's number after a signal; None if it did not end by itself."""
    code: str = ""
    """Stable code of the reason, "" if the command has ended by itself."""
    reason: str = ""


Answer = Begun | Output | Ended

_encode = msgspec.msgpack.Encoder().encode
_opening = msgspec.msgpack.Decoder(Opening)
_following = msgspec.msgpack.Decoder(Following)
_answer = msgspec.msgpack.Decoder(Answer)


def encoded(message: Opening | Following | Answer) -> bytes:
    """Return a message's bytes."""
    return _encode(message)


def opening(body: bytes) -> Open | Connect:
    """Read a question on the subject `session`.  Raises MessageMalformed."""
    request: Open | Connect = _read(_opening, body)
    if isinstance(request, Open):
        _check(request)
    return request


def following(body: bytes) -> Input | Resize | Signal | Alive:
    """Read a question on the subject `input`.  Raises MessageMalformed."""
    request: Input | Resize | Signal | Alive = _read(_following, body)
    return request


def answer(body: bytes) -> Begun | Output | Ended:
    """Read a piece of an answer.  Raises MessageMalformed."""
    read: Begun | Output | Ended = _read(_answer, body)
    return read


def _read(decoder: Any, body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageMalformed(
            f"a message of a session can't be read ({error}): client and agent may be of releases too far apart"
        ) from None


def _check(request: Open) -> None:
    if request.what == "forward":
        if request.port is None or request.command or request.terminal is not None:
            raise MessageMalformed("forwarding takes a port, and neither a command nor a terminal")
        return
    if request.port is not None or not request.command or not request.command[0]:
        raise MessageMalformed("a command takes a program's name, and no port")
    if any("\0" in word for word in request.command):
        raise MessageMalformed("a NUL character can't be passed to a program")
    try:
        size = sum(len(word.encode()) + 1 for word in request.command)
    except UnicodeEncodeError:
        raise MessageMalformed("the command is not valid Unicode text") from None
    if size > _LARGEST_COMMAND:
        raise MessageMalformed(
            f"the command has {size:,} bytes, and at most {_LARGEST_COMMAND:,} are taken; pass the rest through standard input"
        )


# --- a command on the log ---------------------------------------------------------------------------------------------

LONGEST_COMMAND: Final = 500
"""Characters of a command on the log."""
HIDDEN: Final = "[hidden]"
_MOST_WORDS, _LONGEST_WORD = 200, 4000
_ASSIGNS = re.compile(r"(?P<name>-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)=(?P<value>.+)", re.DOTALL)
_VALUE = r"(?P<value>'[^']*'|\"[^\"]*\"|[^\s;&|'\"]+)"
_INSIDE = (
    re.compile(rf"(?P<before>(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?:=|:\s*)){_VALUE}"),
    re.compile(rf"(?P<before>(?<!\S)--?(?P<name>[A-Za-z][A-Za-z0-9_.-]*)\s+){_VALUE}"),
)
"""Assignments, headers and options within one word, as `sh -c` has them."""


def shown(command: Sequence[str]) -> str:
    """Return the command as the log may show it."""
    arguments: list[str] = []
    hide_next = False
    for word in command[:_MOST_WORDS]:
        if hide_next and not word.startswith("-"):
            arguments.append(HIDDEN)
            hide_next = False
            continue
        arguments.append(_word(word[:_LONGEST_WORD]))
        hide_next = word.startswith("-") and "=" not in word and _secret(word)
    more = [f"... ({len(command) - _MOST_WORDS} more words)"] if len(command) > _MOST_WORDS else []
    quoted = (word if HIDDEN in word and " " not in word else shlex.quote(word) for word in arguments)
    return clipped(" ".join([*quoted, *more]), LONGEST_COMMAND)


def _word(word: str) -> str:
    assignment = _ASSIGNS.fullmatch(word)
    if assignment is not None and _secret(assignment["name"]):
        return f"{assignment['name']}={HIDDEN}"
    if any(sign in word for sign in " \t\n;"):
        for pattern in _INSIDE:
            word = pattern.sub(lambda match: match["before"] + HIDDEN if _secret(match["name"]) else match[0], word)
    return hide_secrets(word, HIDDEN)


def _secret(name: str) -> bool:
    return names_secret(name.lstrip("-").replace("-", "_"))

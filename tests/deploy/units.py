"""What systemd reads in a unit file: as much of systemd.syntax(7) and systemd.service(5) as Dorm's own units use."""

from __future__ import annotations

from typing import NamedTuple

Unit = dict[str, list[tuple[str, str]]]


class Service(NamedTuple):
    """What a service manager has to know of a service."""

    command: list[str]
    environment: dict[str, str]
    kill_signal: str
    kill_mode: str


def parsed(text: str) -> Unit:
    """The settings of each section, in order."""
    unit: Unit = {}
    section = ""
    for line in text.splitlines():
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            section = line.strip("[]")
            unit.setdefault(section, [])
            continue
        key, sign, value = line.partition("=")
        assert sign, line
        unit[section].append((key, value))
    return unit


def settings(unit: Unit, section: str, key: str) -> list[str]:
    """All values of one setting."""
    return [value for name, value in unit.get(section, []) if name == key]


def words(line: str) -> list[str]:
    """A command line as systemd splits it: quotes, backslashes in them, `%%` and `$$`."""
    found: list[str] = []
    word, quoted, place = None, False, 0
    while place < len(line):
        sign = line[place]
        if sign == '"':
            quoted, word = not quoted, word or ""
        elif sign == "\\" and quoted:
            place += 1
            word = (word or "") + line[place]
        elif sign == " " and not quoted:
            if word is not None:
                found.append(word)
            word = None
        else:
            word = (word or "") + sign
            if sign in "%$":
                assert line[place + 1] == sign, f"a specifier or variable at {place} of {line}"
                place += 1
        place += 1
    return found if word is None else [*found, word]


def service(text: str) -> Service:
    """The one command of a service."""
    unit = parsed(text)
    (command,) = settings(unit, "Service", "ExecStart")
    environment = dict(value.split("=", 1) for value in settings(unit, "Service", "Environment"))
    (signal,) = settings(unit, "Service", "KillSignal") or ["SIGTERM"]
    (mode,) = settings(unit, "Service", "KillMode") or ["control-group"]
    return Service(words(command), environment, signal, mode)

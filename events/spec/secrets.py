"""Secrets that a spec must not hold: the log keeps every spec, and everyone who reads the log reads them.

No rule finds every secret.  These find the usual ones by the formats of well-known credentials, and by names of variables.
A message never repeats the value.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from events.quantities import short
from events.spec.faults import SpecError
from events.spec.texts import field_of, free_texts

if TYPE_CHECKING:
    from events.spec.spec import AppSpec

_FORMATS: dict[str, str] = {
    "a private key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY",
    "an AWS key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": r"\b(?:gh[oprsu]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{20,})",
    "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{30,}",
    "a Slack token": r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    "a Google API key": r"\bAIza[0-9A-Za-z_-]{35}",
    "an API key": r"\bsk-[A-Za-z0-9_-]{20,}",
    "an nkey's seed": r"\bS[ACNOPU][A-Z2-7]{56}\b",
    "a JSON web token": r"\beyJ[A-Za-z0-9_-]{10,400}\.eyJ[A-Za-z0-9_-]{10,2000}\.[A-Za-z0-9_-]{10}",
    "an address with a password": r"\b[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@]{0,200}:[^\s/@$<{][^\s/@]{0,200}@",
}
_SIGNS = (
    "-----BEGIN ", "AKIA", "ASIA", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "hf_", "xox", "AIza",
    "sk-", "eyJ", "://",
)  # fmt: skip
"""Of these each format has one, but for that of seeds; they are found a hundred times as fast in a long text."""
_SEED = re.compile(_FORMATS["an nkey's seed"])
_ANY = re.compile("|".join(f"({pattern})" for pattern in _FORMATS.values()))
_NAMED = re.compile(
    r"(?:^|[_.-])(?:PASSW(?:OR)?D|PASSPHRASE|PASSWD|SECRET|SECRET_?KEY|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS|TOKEN)$",
    re.IGNORECASE,
)
"""Names such as `WANDB_API_KEY`.  Names of files and ids (`…_KEY_FILE`, `…_KEY_ID`) end otherwise."""
_OPAQUE = re.compile(r"(?=\S*[A-Za-z])(?=\S*[0-9])[^\s<>|${}/][^\s<>|{}]{7,}")
"""At least eight signs with letters and digits, without a space: no word, number, path (`/run/key`), reference (`$KEY`) or
mark of a vocabulary (`<|end|>`)."""
_PASSWORD = re.compile(r"PASSW(?:OR)?D$|PASSPHRASE$", re.IGNORECASE)
_PATH_OR_REFERENCE = re.compile(r"[/$<{]|\.{0,2}/|file:")


def check_secrets(spec: AppSpec) -> None:
    """Refuse what looks like a secret.  Raises SpecError."""
    for path, text in free_texts(spec):
        if found := _credential(text):
            what = tuple(_FORMATS)[(found.lastindex or 1) - 1]
            raise _refusal(path, f"holds {what}")
    for name, value in spec.env.items():
        if _NAMED.search(name) and _looks_secret(name, value):
            raise _refusal(f"env.{short(name)[1:-1]}", "looks like a secret by its name")


def _credential(text: str) -> re.Match[str] | None:
    """Return the first credential of a well-known format."""
    return _ANY.search(text) if any(sign in text for sign in _SIGNS) or _SEED.search(text) else None


def why_secret(name: str, value: str) -> str:
    """Return why a variable looks like a secret, as the end of a sentence about it; "" if it does not."""
    if found := _credential(f"{name}={value}"):
        return f"holds {tuple(_FORMATS)[(found.lastindex or 1) - 1]}"
    return "looks like a secret by its name" if _NAMED.search(name) and _looks_secret(name, value) else ""


def hide_secrets(text: str, instead: str) -> str:
    """Return a text with everything that has the format of a well-known credential replaced."""
    return _ANY.sub(lambda _: instead, text)


def names_secret(name: str) -> bool:
    """Return whether the value of a variable or option of this name is likely to be a secret."""
    return _NAMED.search(name) is not None


def _looks_secret(name: str, value: str) -> bool:
    if _PASSWORD.search(name):  # People also choose words.
        return bool(value.strip()) and not _PATH_OR_REFERENCE.match(value)
    return _OPAQUE.fullmatch(value) is not None


def _refusal(path: str, what: str) -> SpecError:
    return SpecError(
        f"{path}: {what}, and everyone who reads the log would see it; put it on the nodes instead and name it in `secrets`, "
        "such as `secrets: {API_KEY_FILE: key}`",
        code=f"spec.{field_of(path)}.secret",
    )

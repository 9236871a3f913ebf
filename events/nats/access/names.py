"""Names that a server's configuration and its clients share.

The log, masters and admins are in one NATS account; users and nodes have an account each, which imports single services of
it.  An importing account has no JetStream of its own, so the API has another prefix there: `$JS.API` would be the
account's own.  Each identity receives answers below a prefix that nobody else may subscribe to.
"""

from __future__ import annotations

from events.limits import LEAST_MAX_PAYLOAD

OWN_API = "$JS.API"
IMPORTED_API = "DORMJS"
ADMIN, MASTER, RESTORER = "admin", "master", "restorer"
_WITH_THE_LOG = (ADMIN, MASTER, RESTORER)
_PEOPLE = ("reader", "user", "operator")
_LARGEST_OF_PEOPLE = LEAST_MAX_PAYLOAD


def in_log_account(role: str) -> bool:
    """Return whether identities of this role are in the account that holds the log."""
    return role in _WITH_THE_LOG


def api_prefix(role: str) -> str:
    """Return the prefix of JetStream's API for this role."""
    return OWN_API if in_log_account(role) else IMPORTED_API


def is_person(role: str) -> bool:
    """Return whether the role is one of people who are not admins."""
    return role in _PEOPLE


def inbox_prefix(role: str, name: str) -> str:
    """Return the prefix of the subjects on which an identity receives answers.  People's roles share one, so that a changed
    role keeps its inboxes."""
    return f"_INBOX.{'user' if is_person(role) else role}.{name}"


def largest_message(role: str) -> int | None:
    """Return the size of the largest message that the server accepts from this role, in bytes; None for the general
    limit."""
    return _LARGEST_OF_PEOPLE if is_person(role) or role == "api" else None


def enrollment(cluster: str, node: str) -> str:
    """Return the subject on which a new node presents its key."""
    return f"dorm.{cluster}.enroll.{node}.key"

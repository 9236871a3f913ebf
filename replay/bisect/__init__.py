"""When did an outcome become inevitable?  The first record from which on it holds under every one of some policies.

    outcomes    parses an outcome, and locates errors in it
    judging     whether it holds: on the log, or on a fork of it that is simulated under a policy
    bisecting   chooses the moments to try, and draws the conclusion

    OutcomeError   an outcome that cannot be parsed; the message names the character
    BisectError    a question without an answer: an unknown app, a log without records

Start with `bisecting`.
"""

from __future__ import annotations

from replay import ReplayError


class BisectError(ReplayError):
    """A question that the log cannot answer; one line for people."""

    code = "bisect.impossible"

"""The root of every error that people can fix: one line of text that says what to do, and a stable code for programs.

A code is lower-case words joined by dots, from the general to the particular: `spec.demand.too_large`.  The first word names
what is wrong (a spec, the log, a key, an app), the last one says how.  Codes keep their meaning from release to release while
the text may be reworded, so programs and tests compare codes.  Each class has the code of its usual cause; a `raise` that
knows more passes its own.  The command line prints the code after the text, and as a field of its own with `-o json`.
"""

from __future__ import annotations


class DormError(Exception):
    """Root of the project's errors.  `code` is stable; the text is one line for people."""

    code: str = "failed"

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code

    @property
    def problem(self) -> str:
        """The last word of the code: how something is wrong, without what (`too_large`)."""
        return self.code.rpartition(".")[2]


def code_of(error: BaseException) -> str:
    """Return an error's code; the operating system's errors have one as well (`system.enoent`), others have ""."""
    if isinstance(error, OSError):
        import errno

        return "system." + errno.errorcode.get(error.errno or 0, "unknown").lower()
    return str(getattr(error, "code", ""))

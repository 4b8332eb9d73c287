"""The base of every error that a user can cause, and the errors of configuration files.

It lives in the lowest folder so that every other folder may raise errors of its own kind.
A message is one line: what was found, what was expected, what to do about it.
"""


class TvmExtError(Exception):
    """Base of all errors that this package raises on purpose; the command line exits with 2."""

    def __init__(self, message: str = "") -> None:
        # Names in models may hold line breaks.
        super().__init__(" ".join(message.splitlines()))


class ConfigError(TvmExtError):
    """A configuration file, or an option given in its place, is not valid."""


def reason_of(error: BaseException, limit: int = 300) -> str:
    """The last line of an error's text, where TVM says what is wrong; its type without a text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:limit] if lines else type(error).__name__

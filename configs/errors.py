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
    """The line of an error's text in which TVM says what is wrong; its type without a text.

    That is the last one, unless TVM shows below where in a module it happened.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    places = [i for i, line in enumerate(lines) if line.startswith("Error in pass:")]
    lines = lines[: places[0]] if places and places[0] else lines
    return lines[-1][:limit] if lines else type(error).__name__

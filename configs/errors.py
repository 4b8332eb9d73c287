"""The base of every error that a user can cause, and the errors of configuration files.

It lives in the lowest folder so that every other folder may raise errors of its own kind.
A message is one line: what was found, what was expected, what to do about it.
"""


class TvmExtError(Exception):
    """Base of all errors that this package raises on purpose.

    Attributes
    ----------
    defect : bool
        Whether it is a defect of this package, and not of what it was given: the command line exits
        with 3 then, else with 2.
    """

    defect = False

    def __init__(self, message: str = "", *, defect: bool = False) -> None:
        # Names in models may hold line breaks.
        super().__init__(" ".join(message.splitlines()))
        if defect:
            self.defect = True


class ConfigError(TvmExtError):
    """A configuration file, or an option given in its place, is not valid."""


class DefectWarning(UserWarning):
    """A part of this package failed, and another one took its place."""


class FormError(ValueError):
    """A part of a model has a form that is not taken.

    Its text is written for users. It says what was found and what was expected, in words that can
    stand behind a node's name: "its axis is 5, and its input has rank 2".
    """


def own_words(error: BaseException | None) -> str:
    """What an error says, if that was written for users; empty for texts of TVM, ONNX or Python."""
    if isinstance(error, TvmExtError | FormError):
        return " ".join(str(error).splitlines())
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, MemoryError):
        return "there is no memory left"
    return ""

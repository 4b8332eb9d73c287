"""Errors that a user can cause: their base, those of configuration files, targets and tuning.

The file lies in the lowest folder so that every other folder may raise them. A message is one
line: what was found, what was expected, what to do about it.
"""

import difflib
from collections.abc import Iterable

# How an error of a run begins that a kernel raises for the sizes of its tensors.
CONTRADICTING_SIZES = "the sizes of a kernel's tensors contradict each other"


class TvmExtError(Exception):
    """Base of all errors that this package raises on purpose.

    Attributes
    ----------
    defect : bool
        Whether the cause is a bug of this package and not what it was given. The command line then
        exits with 3, and otherwise with 2.
    """

    defect = False

    def __init__(self, message: str = "", *, defect: bool = False) -> None:
        # Names in models may hold line breaks.
        super().__init__(" ".join(message.splitlines()))
        if defect:
            self.defect = True


class ConfigError(TvmExtError):
    """A configuration file, or an option that was given instead of one, is not valid."""


class ArtifactError(TvmExtError):
    """A saved model cannot be written, or a file cannot be loaded as one."""


class DefectWarning(UserWarning):
    """A part of this package failed, and another part did its work instead."""


# Why a template or a pass that raised was not used.
FAILED = "it failed, which is a bug in tvm-ext"


class FormError(ValueError):
    """A part of a model has a form that is not supported.

    Its text is written for users. It says what was found and what was expected, in words that can
    follow the name of a node: "its axis is 5, and its input has rank 2".
    """


class MisfitError(FormError):
    """Parts of a model contradict each other or the rules of ONNX. No runtime can run it."""


class NotApplicable(Exception):
    """Why a pass, a template or a model leaves a near match alone.

    It is raised. What asks several in turn (``apply_template``, records) returns it: the reason to
    ask the next. It never reaches a user.

    Attributes
    ----------
    reason : str
        What was found that is not handled.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __eq__(self, other: object) -> bool:
        """Two with the same reason are equal."""
        return isinstance(other, NotApplicable) and self.reason == other.reason

    def __hash__(self) -> int:
        """That of the reason."""
        return hash(self.reason)


def own_words(error: BaseException | None) -> str:
    """Returns the message of an error if it was written for users.

    It is empty for an error whose text comes from TVM, ONNX or Python.
    """
    if isinstance(error, TvmExtError | FormError):
        return " ".join(str(error).splitlines())
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, MemoryError):
        return "there is no memory left"
    return ""


def last_line(error: BaseException) -> str:
    """The end of an error's text, where TVM says what is wrong; its type without a text.

    For logs, which keep what a candidate failed of. Messages are in words of our own.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__


def nearest_hint(word: str, known: Iterable[str]) -> str:
    """``nearest known: 'x'`` when one is close, else ``known: a, b, c``."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"nearest known: '{close[0]}'"
    return "known: " + (", ".join(names) or "none")


class TargetError(TvmExtError):
    """A target is unknown, its description is not valid, or a program was built for another one."""


class BuildError(TvmExtError):
    """Code generation failed for a module that the passes accepted."""


class MemoryLimitError(BuildError):
    """A program needs more memory than its limit.

    Attributes
    ----------
    limit : int
        Bytes that it may take.
    needed : int
        Bytes of the least that was found.
    bound : int
        Bytes that no program of the same kernels can go below.
    """

    def __init__(self, message: str = "", limit: int = 0, needed: int = 0, bound: int = 0) -> None:
        # All have values of their own, as copies and other processes make it of the message alone.
        super().__init__(message)
        self.limit, self.needed, self.bound = limit, needed, bound


class PrecisionError(TvmExtError):
    """A program of lower precision differs from float32 by more than was allowed."""


class TuningError(TvmExtError):
    """A tuning session cannot start or continue."""


class RecordsError(TvmExtError):
    """A folder of records is missing, unusable, or lacks a record that was required."""


class ScheduleRefusedError(TvmExtError):
    """A kernel of the model cannot run on the target with any schedule of its loops."""


class PlanError(TvmExtError):
    """What a memory plan is asked for cannot be, or a plan does not hold for its buffers."""

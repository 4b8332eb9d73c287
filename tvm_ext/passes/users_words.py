"""What code of a user raised, in its own words."""

import traceback
from pathlib import Path

import tvm
import tvm_ffi

import tvm_ext
from tvm_ext.errors import own_words

_OTHERS = tuple(Path(package.__file__ or "").parent for package in (tvm, tvm_ffi, tvm_ext))


def users_words(raised: BaseException | None) -> str:
    """The text of an error, if code of a user raised it: not TVM's, nor Python's of our call."""
    file = ""
    for frame, _ in traceback.walk_tb(raised.__traceback__ if raised is not None else None):
        file = frame.f_code.co_filename
    theirs = Path(file).suffix == ".py" and not any(Path(file).is_relative_to(f) for f in _OTHERS)
    if not theirs or isinstance(raised, tvm.error.InternalError):
        return own_words(raised) or "it raised an error, which --debug shows"
    lines = [line.strip() for line in str(raised).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(raised).__name__

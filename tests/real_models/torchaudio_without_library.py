"""Imports torchaudio beside any build of torch: its models and transforms are plain Python.

The wheel's compiled library is built for one build of torch and is not needed here.
"""

import sys
import types

_extension = types.ModuleType("torchaudio._extension")
_extension.__dict__.update(
    _IS_TORCHAUDIO_EXT_AVAILABLE=False,
    _IS_RIR_AVAILABLE=False,
    _IS_ALIGN_AVAILABLE=False,
    fail_if_no_align=lambda function: function,
)
sys.modules.setdefault("torchaudio._extension", _extension)

import torchaudio  # noqa: E402, F401

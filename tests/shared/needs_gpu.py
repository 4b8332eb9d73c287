"""What modules of tests that need a GPU are marked with: ``pytestmark = NEEDS_GPU``."""

import pytest

from tvm_ext.hardware.cuda.compilers import missing_compilers
from tvm_ext.hardware.cuda.runtime_library import runtime_problem

_PROBLEM = runtime_problem() or missing_compilers()

NEEDS_GPU = [
    pytest.mark.cuda,
    pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM or "there is a GPU"),
]

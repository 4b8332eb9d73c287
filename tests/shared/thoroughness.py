"""How much a run of the tests tries: ``make test`` takes the defaults, ``make test-all`` more."""

import os

# Random cases are drawn this many times as often.
DRAWS = int(os.environ.get("TEST_DRAWS", "1"))
# Every model at every level that its test is for, and the slow cases of tests in one model.
ALL_CASES = bool(os.environ.get("TEST_ALL_CASES"))
# How much LLVM does to code for a CPU: 0 to 3, as of LLVM's own tools.
LLVM_LEVEL = int(os.environ.get("TEST_LLVM_LEVEL", "0"))

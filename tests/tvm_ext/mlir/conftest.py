"""Lets the tests of this folder import what they share; without torch-mlir none of them runs."""

import sys
from pathlib import Path

from tvm_ext.mlir import has_mlir

sys.path.insert(0, str(Path(__file__).parent))

# Files that import torch-mlir at their head cannot even be read without it.
collect_ignore_glob = [] if has_mlir() else ["test_*.py"]


def pytest_report_header():
    return None if has_mlir() else "tests of MLIR are left out: torch-mlir is not installed"

"""torch-mlir is an extra: only the folder that needs it imports it, when it is asked to."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_ext

PACKAGE = Path(tvm_ext.__file__).parent
IMPORT = re.compile(r"^\s*(?:from|import) torch_mlir\b", re.MULTILINE)


def test_only_the_folder_of_mlir_imports_it():
    folders = [PACKAGE, *(one for one in PACKAGE.iterdir() if one.is_symlink())]
    files = {path for one in folders for path in one.resolve().rglob("*.py")}
    found = {path.parent for path in files if IMPORT.search(path.read_text(encoding="utf-8"))}
    assert found == {(PACKAGE / "mlir").resolve()}


@pytest.mark.extended
def test_the_rest_works_without_it():
    """A model is compiled, with passes of MLIR that are not enabled, where nothing imports it."""
    script = """
import sys
import numpy as np
sys.modules["torch_mlir"] = None
import tvm_ext
import tvm_ext.cli.main
from tvm import relax

builder, kind = relax.BlockBuilder(), relax.TensorType([4], "float32")
x = relax.Var("x", kind)
with builder.function("main", [x]):
    builder.emit_func_output(builder.emit(relax.op.add(x, x)))
compiled = tvm_ext.compile(builder.get(), "cpu")
(found,) = compiled.run({"x": np.ones(4, "float32")}).values()
assert (found == 2).all(), found
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

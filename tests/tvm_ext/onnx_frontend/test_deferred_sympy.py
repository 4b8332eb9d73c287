"""Sympy, which onnx_ir imports, is imported when it is needed, once and whole."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, threading
import tvm_ext
tvm_ext.compile({path!r})
print("sympy" in sys.modules)
{user}
import onnx_ir
print(onnx_ir.SymbolicDim("N") + 1)
"""
SUBMODULE_FIRST = """
import sympy.core.symbol
print(sympy.core.symbol.Symbol is sympy.Symbol, sympy.core is sys.modules["sympy.core"])
"""
FROM_THREADS = """
found = []
def use():
    import sympy
    found.append(sympy.Symbol("x") + 1)
threads = [threading.Thread(target=use) for _ in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
print(len(found) == 4, len(set(found)) == 1)
"""


@pytest.mark.extended
@pytest.mark.parametrize("user", [SUBMODULE_FIRST, FROM_THREADS])
def test_compiling_leaves_sympy_to_others(user: str, abs_model_path: Path) -> None:
    program = PROGRAM.format(path=str(abs_model_path), user=user)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("False\nTrue True\nN + 1\n", "")

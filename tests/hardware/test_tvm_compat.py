"""Every name of the compatibility modules exists in the installed TVM."""

import pytest

from tvm_ext.hardware import tvm_compat
from tvm_ext.onnx_frontend import tvm_compat as onnx_compat


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module in (tvm_compat, onnx_compat) for name in module.__all__],
)
def test_name_is_there(module, name):
    assert getattr(module, name) is not None


def test_llvm_answers():
    assert "x86_64" in {str(name) for name in tvm_compat.llvm_codegen.llvm_get_targets()}

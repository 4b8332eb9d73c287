"""Every name of the compatibility module exists in the installed TVM."""

import pytest

from tvm_ext.hardware import tvm_compat


@pytest.mark.parametrize("name", tvm_compat.__all__)
def test_name_is_there(name):
    assert getattr(tvm_compat, name) is not None


def test_llvm_answers():
    assert "x86_64" in {str(name) for name in tvm_compat.llvm_codegen.llvm_get_targets()}

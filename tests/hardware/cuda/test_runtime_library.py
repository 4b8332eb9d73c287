"""What is said of NVIDIA's libraries of kernels."""

import pytest
import tvm_ffi

from tvm_ext.hardware.cuda.runtime_library import (
    CODE_GENERATORS,
    vendor_libraries,
    vendor_library_note,
)


def test_libraries_are_what_tvm_was_built_with():
    names = set(tvm_ffi.registry.list_global_func_names())
    found = vendor_libraries()
    assert ("cuBLAS" in found) == ("relax.ext.cublas" in names)
    assert ("cuDNN" in found) == ("relax.ext.cudnn" in names)


@pytest.mark.parametrize(
    ("library", "note"),
    [("cuBLAS", "cuBLAS (a candidate of tuning)"), ("CUTLASS", "CUTLASS (not used)")],
)
def test_a_library_that_is_there_is_named(library, note):
    name = CODE_GENERATORS[library]
    if library in vendor_libraries():
        assert note in vendor_library_note()
        return
    if not vendor_libraries():
        assert "built without" in vendor_library_note()
    tvm_ffi.register_global_func(name, lambda *arguments: None)
    try:
        assert library in vendor_libraries()
        assert note in vendor_library_note()
    finally:
        tvm_ffi.registry.remove_global_func(name)

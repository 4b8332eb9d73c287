"""What is said of NVIDIA's libraries of kernels."""

import tvm_ffi

from tvm_ext.hardware.cuda.vendor_libraries import vendor_libraries, vendor_library_note


def test_libraries_are_what_tvm_was_built_with():
    names = set(tvm_ffi.registry.list_global_func_names())
    found = vendor_libraries()
    assert ("cuBLAS" in found) == ("relax.ext.cublas" in names)
    assert ("cuDNN" in found) == ("relax.ext.cudnn" in names)


def test_a_library_that_is_there_is_named():
    name = "relax.ext.cutlass"
    if "CUTLASS" in vendor_libraries():
        assert "CUTLASS" in vendor_library_note()
        return
    assert "built without" in vendor_library_note()
    tvm_ffi.register_global_func(name, lambda *arguments: None)
    try:
        assert vendor_libraries()[-1] == "CUTLASS"
        assert vendor_library_note().startswith("not used: this TVM could hand kernels to CUTLASS")
    finally:
        tvm_ffi.registry.remove_global_func(name)

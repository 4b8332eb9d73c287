"""Search over the templates of ``tvm_ext.tir_schedules``."""

if __name__ != "tvm_ext.tuning":
    raise ImportError("import this package as tvm_ext.tuning, not as " + __name__)

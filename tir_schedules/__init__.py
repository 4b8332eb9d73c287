"""Schedules for kernels (TensorIR), one template a file."""

if __name__ != "tvm_ext.tir_schedules":
    raise ImportError("import this package as tvm_ext.tir_schedules, not as " + __name__)

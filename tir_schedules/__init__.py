"""Schedules for kernels (TensorIR): a folder for each kind of machine, one template a file.

What templates of several machines read kernels with lies here and in ``rows``.
"""

if __name__ != "tvm_ext.tir_schedules":
    raise ImportError("import this package as tvm_ext.tir_schedules, not as " + __name__)

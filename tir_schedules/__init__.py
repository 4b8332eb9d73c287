"""Schedules for kernels (TensorIR): a folder for each kind of machine, one template a file.

``analysis`` reads kernels, ``operators`` says what annotated kernels compute, for all machines.
"""

if __name__ != "tvm_ext.tir_schedules":
    raise ImportError("import this package as tvm_ext.tir_schedules, not as " + __name__)

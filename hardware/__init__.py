"""What a machine is, and what work costs on it."""

if __name__ != "tvm_ext.hardware":
    raise ImportError("import this package as tvm_ext.hardware, not as " + __name__)

"""Kernels that are built and run in no time, as tasks of a session."""

from tvm import te

from tvm_ext.tuning.candidate import KernelTask, kernel_task


def matmul_task(rows: int = 24, columns: int = 32, depth: int = 16) -> KernelTask:
    """A matmul."""
    left = te.placeholder((rows, depth), name="left")
    right = te.placeholder((depth, columns), name="right")
    k = te.reduce_axis((0, depth), name="k")
    result = te.compute(
        (rows, columns), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="result"
    )
    func = te.create_prim_func([left, right, result])
    return kernel_task(f"matmul{rows}x{columns}", func, 2, ["MatMul.0", "MatMul.1"])


def add_task(size: int = 4096) -> KernelTask:
    """A sum of vectors."""
    left = te.placeholder((size,), name="left")
    right = te.placeholder((size,), name="right")
    result = te.compute((size,), lambda i: left[i] + right[i], name="result")
    return kernel_task(f"add{size}", te.create_prim_func([left, right, result]), 1, ["Add.0"])

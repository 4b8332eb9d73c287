"""Small kernels without blocks, as the tests of loop nests take them."""

from tvm import tirx
from tvm.script import tirx as T


def jacobi(tsteps: int, n: int) -> tirx.PrimFunc:
    """A stencil over time."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n), "float64"), B: T.Buffer((n, n), "float64")):
        for t in range(tsteps):  # noqa: B007
            for i in range(1, n - 1):
                for j in range(1, n - 1):
                    B[i, j] = A[i, j - 1] + A[i, j + 1] + A[i - 1, j] + A[i + 1, j]
            for i2 in range(1, n - 1):
                for j2 in range(1, n - 1):
                    A[i2, j2] = B[i2, j2] * T.float64(0.25)

    return kernel


def matmul(m: int, n: int, k: int) -> tirx.PrimFunc:
    """A matmul that sums into C."""

    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((m, k), "float64"),
        B: T.Buffer((k, n), "float64"),
        C: T.Buffer((m, n), "float64"),
    ):
        for i in range(m):
            for j in range(n):
                for l in range(k):  # noqa: E741
                    C[i, j] = C[i, j] + A[i, l] * B[l, j]

    return kernel


def wave(n: int) -> tirx.PrimFunc:
    """Each element from the one above and to the right: rows and columns may not change places."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n + 1), "float64")):
        for i in range(n - 1):
            for j in range(n):
                A[i + 1, j] = A[i, j + 1] + T.float64(1)

    return kernel


@T.prim_func(s_tir=True)
def shifted(a: T.handle, n: T.int32):
    """Each element from the one before, of a size that the call gives."""
    A = T.match_buffer(a, (n,), "float64")
    for i in range(n - 1):
        A[i + 1] = A[i] * T.float64(2)


def gathered(n: int) -> tirx.PrimFunc:
    """A loop whose store is where another array says."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n,), "float64"), where: T.Buffer((n,), "int32")):
        for i in range(n):
            A[where[i]] = A[where[i]] + T.float64(1)

    return kernel


def scratch(n: int) -> tirx.PrimFunc:
    """Rows summed in an array of one element, which each iteration has for itself."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n), "float64"), total: T.Buffer((n,), "float64")):
        for i in range(n):
            s = T.alloc_buffer((1,), "float64")
            s[0] = T.float64(0)
            for j in range(i + 1):
                s[0] = s[0] + A[i, j]
            total[i] = s[0]

    return kernel

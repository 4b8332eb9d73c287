"""PolyBench's linear algebra solvers."""

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from tvm import tirx
from tvm.script import tirx as T

from polybench_kernels.catalogue import PolybenchKernel, dominant_diagonal

Array = NDArray[np.float64]


def _cholesky(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n), "float64")):
        for i in range(n):
            for j in range(i):
                for k in range(j):
                    A[i, j] = A[i, j] - A[i, k] * A[j, k]
                A[i, j] = A[i, j] / A[j, j]
            for k in range(i):
                A[i, i] = A[i, i] - A[i, k] * A[i, k]
            A[i, i] = T.sqrt(A[i, i])

    return kernel


def _cholesky_reference(a: Array) -> None:
    lower = np.tril_indices(len(a))
    a[lower] = np.linalg.cholesky(a)[lower]


def _durbin(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(r: T.Buffer((n,), "float64"), y: T.Buffer((n,), "float64")):
        alpha = T.alloc_buffer((1,), "float64")
        beta = T.alloc_buffer((1,), "float64")
        y[0] = T.float64(0) - r[0]
        beta[0] = T.float64(1)
        alpha[0] = T.float64(0) - r[0]
        for k in range(1, n):
            total = T.alloc_buffer((1,), "float64")
            z = T.alloc_buffer((n,), "float64")
            beta[0] = (T.float64(1) - alpha[0] * alpha[0]) * beta[0]
            total[0] = T.float64(0)
            for i in range(k):
                total[0] = total[0] + r[k - i - 1] * y[i]
            alpha[0] = T.float64(0) - (r[k] + total[0]) / beta[0]
            for i in range(k):
                z[i] = y[i] + alpha[0] * y[k - i - 1]
            for i in range(k):
                y[i] = z[i]
            y[k] = alpha[0]

    return kernel


def _durbin_reference(r: Array, y: Array) -> None:
    y[:] = linalg.solve_toeplitz(np.concatenate([[1.0], r[:-1]]), -r)


def _durbin_inputs(func: tirx.PrimFunc) -> list[NDArray[np.float64]]:
    size = int(func.params[0].shape[0])
    # Small numbers beside the diagonal of ones: the matrix is far from singular.
    return [np.random.default_rng(0).random(size) / (4 * size), np.zeros(size)]


def _gramschmidt(m: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((m, n), "float64"),
        R: T.Buffer((n, n), "float64"),
        Q: T.Buffer((m, n), "float64"),
    ):
        for k in range(n):
            nrm = T.alloc_buffer((1,), "float64")
            nrm[0] = T.float64(0)
            for i in range(m):
                nrm[0] = nrm[0] + A[i, k] * A[i, k]
            R[k, k] = T.sqrt(nrm[0])
            for i in range(m):
                Q[i, k] = A[i, k] / R[k, k]
            for j in range(k + 1, n):
                R[k, j] = T.float64(0)
                for i in range(m):
                    R[k, j] = R[k, j] + Q[i, k] * A[i, j]
                for i in range(m):
                    A[i, j] = A[i, j] - Q[i, k] * R[k, j]

    return kernel


def _gramschmidt_reference(a: Array, r: Array, q: Array) -> None:
    for k in range(a.shape[1]):
        r[k, k] = np.linalg.norm(a[:, k])
        q[:, k] = a[:, k] / r[k, k]
        r[k, k + 1 :] = q[:, k] @ a[:, k + 1 :]
        a[:, k + 1 :] -= np.outer(q[:, k], r[k, k + 1 :])


def _lu(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n), "float64")):
        for i in range(n):
            for j in range(i):
                for k in range(j):
                    A[i, j] = A[i, j] - A[i, k] * A[k, j]
                A[i, j] = A[i, j] / A[j, j]
            for j in range(i, n):
                for k in range(i):
                    A[i, j] = A[i, j] - A[i, k] * A[k, j]

    return kernel


def _lu_reference(a: Array) -> None:
    for k in range(len(a)):
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])


def _ludcmp(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((n, n), "float64"),
        b: T.Buffer((n,), "float64"),
        x: T.Buffer((n,), "float64"),
        y: T.Buffer((n,), "float64"),
    ):
        for i in range(n):
            for j in range(i):
                w = T.alloc_buffer((1,), "float64")
                w[0] = A[i, j]
                for k in range(j):
                    w[0] = w[0] - A[i, k] * A[k, j]
                A[i, j] = w[0] / A[j, j]
            for j in range(i, n):
                v = T.alloc_buffer((1,), "float64")
                v[0] = A[i, j]
                for k in range(i):
                    v[0] = v[0] - A[i, k] * A[k, j]
                A[i, j] = v[0]
        for i in range(n):
            s = T.alloc_buffer((1,), "float64")
            s[0] = b[i]
            for j in range(i):
                s[0] = s[0] - A[i, j] * y[j]
            y[i] = s[0]
        for i in range(n):
            u = T.alloc_buffer((1,), "float64")
            u[0] = y[n - 1 - i]
            for j in range(n - i, n):
                u[0] = u[0] - A[n - 1 - i, j] * x[j]
            x[n - 1 - i] = u[0] / A[n - 1 - i, n - 1 - i]

    return kernel


def _ludcmp_reference(a: Array, b: Array, x: Array, y: Array) -> None:
    _lu_reference(a)
    y[:] = linalg.solve_triangular(a, b, lower=True, unit_diagonal=True)
    x[:] = linalg.solve_triangular(a, y)


def _trisolv(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        L: T.Buffer((n, n), "float64"),
        x: T.Buffer((n,), "float64"),
        b: T.Buffer((n,), "float64"),
    ):
        for i in range(n):
            x[i] = b[i]
            for j in range(i):
                x[i] = x[i] - L[i, j] * x[j]
            x[i] = x[i] / L[i, i]

    return kernel


def _trisolv_reference(lower: Array, x: Array, b: Array) -> None:
    x[:] = linalg.solve_triangular(lower, b, lower=True)


SOLVERS = (
    PolybenchKernel("cholesky", _cholesky, _cholesky_reference, (17,), (800,), dominant_diagonal),
    PolybenchKernel("durbin", _durbin, _durbin_reference, (17,), (2000,), _durbin_inputs),
    PolybenchKernel("gramschmidt", _gramschmidt, _gramschmidt_reference, (19, 17), (400, 350)),
    PolybenchKernel("lu", _lu, _lu_reference, (17,), (700,), dominant_diagonal),
    PolybenchKernel("ludcmp", _ludcmp, _ludcmp_reference, (17,), (600,), dominant_diagonal),
    PolybenchKernel("trisolv", _trisolv, _trisolv_reference, (17,), (2000,), dominant_diagonal),
)

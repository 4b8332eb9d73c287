"""PolyBench's BLAS routines."""

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.script import tirx as T

from polybench_kernels.catalogue import PolybenchKernel

Array = NDArray[np.float64]

ALPHA, BETA = 1.5, 1.2


def _gemm(ni: int, nj: int, nk: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        C: T.Buffer((ni, nj), "float64"),
        A: T.Buffer((ni, nk), "float64"),
        B: T.Buffer((nk, nj), "float64"),
    ):
        for i in range(ni):
            for j in range(nj):
                C[i, j] = C[i, j] * T.float64(BETA)
            for k in range(nk):
                for j in range(nj):
                    C[i, j] = C[i, j] + T.float64(ALPHA) * A[i, k] * B[k, j]

    return kernel


def _gemm_reference(c: Array, a: Array, b: Array) -> None:
    c[:] = BETA * c + ALPHA * a @ b


def _gemver(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((n, n), "float64"),
        u1: T.Buffer((n,), "float64"),
        v1: T.Buffer((n,), "float64"),
        u2: T.Buffer((n,), "float64"),
        v2: T.Buffer((n,), "float64"),
        w: T.Buffer((n,), "float64"),
        x: T.Buffer((n,), "float64"),
        y: T.Buffer((n,), "float64"),
        z: T.Buffer((n,), "float64"),
    ):
        for i in range(n):
            for j in range(n):
                A[i, j] = A[i, j] + u1[i] * v1[j] + u2[i] * v2[j]
        for i in range(n):
            for j in range(n):
                x[i] = x[i] + T.float64(BETA) * A[j, i] * y[j]
        for i in range(n):
            x[i] = x[i] + z[i]
        for i in range(n):
            for j in range(n):
                w[i] = w[i] + T.float64(ALPHA) * A[i, j] * x[j]

    return kernel


def _gemver_reference(
    a: Array, u1: Array, v1: Array, u2: Array, v2: Array, w: Array, x: Array, y: Array, z: Array
) -> None:
    a += np.outer(u1, v1) + np.outer(u2, v2)
    x += BETA * a.T @ y + z
    w += ALPHA * a @ x


def _gesummv(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((n, n), "float64"),
        B: T.Buffer((n, n), "float64"),
        x: T.Buffer((n,), "float64"),
        y: T.Buffer((n,), "float64"),
        tmp: T.Buffer((n,), "float64"),
    ):
        for i in range(n):
            tmp[i] = T.float64(0)
            y[i] = T.float64(0)
            for j in range(n):
                tmp[i] = A[i, j] * x[j] + tmp[i]
                y[i] = B[i, j] * x[j] + y[i]
            y[i] = T.float64(ALPHA) * tmp[i] + T.float64(BETA) * y[i]

    return kernel


def _gesummv_reference(a: Array, b: Array, x: Array, y: Array, tmp: Array) -> None:
    tmp[:] = a @ x
    y[:] = ALPHA * tmp + BETA * b @ x


def _symm(m: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        C: T.Buffer((m, n), "float64"),
        A: T.Buffer((m, m), "float64"),
        B: T.Buffer((m, n), "float64"),
    ):
        for i in range(m):
            for j in range(n):
                temp2 = T.alloc_buffer((1,), "float64")
                temp2[0] = T.float64(0)
                for k in range(i):
                    C[k, j] = C[k, j] + T.float64(ALPHA) * B[i, j] * A[i, k]
                    temp2[0] = temp2[0] + B[k, j] * A[i, k]
                C[i, j] = (
                    T.float64(BETA) * C[i, j]
                    + T.float64(ALPHA) * B[i, j] * A[i, i]
                    + T.float64(ALPHA) * temp2[0]
                )

    return kernel


def _symm_reference(c: Array, a: Array, b: Array) -> None:
    whole = np.tril(a) + np.tril(a, -1).T
    c[:] = BETA * c + ALPHA * whole @ b


def _syr2k(n: int, m: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        C: T.Buffer((n, n), "float64"),
        A: T.Buffer((n, m), "float64"),
        B: T.Buffer((n, m), "float64"),
    ):
        for i in range(n):
            for j in range(i + 1):
                C[i, j] = C[i, j] * T.float64(BETA)
            for k in range(m):
                for j in range(i + 1):
                    C[i, j] = (
                        C[i, j]
                        + A[j, k] * T.float64(ALPHA) * B[i, k]
                        + B[j, k] * T.float64(ALPHA) * A[i, k]
                    )

    return kernel


def _syr2k_reference(c: Array, a: Array, b: Array) -> None:
    lower = np.tril_indices(len(c))
    c[lower] = (BETA * c + ALPHA * (a @ b.T + b @ a.T))[lower]


def _syrk(n: int, m: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(C: T.Buffer((n, n), "float64"), A: T.Buffer((n, m), "float64")):
        for i in range(n):
            for j in range(i + 1):
                C[i, j] = C[i, j] * T.float64(BETA)
            for k in range(m):
                for j in range(i + 1):
                    C[i, j] = C[i, j] + T.float64(ALPHA) * A[i, k] * A[j, k]

    return kernel


def _syrk_reference(c: Array, a: Array) -> None:
    lower = np.tril_indices(len(c))
    c[lower] = (BETA * c + ALPHA * a @ a.T)[lower]


def _trmm(m: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((m, m), "float64"), B: T.Buffer((m, n), "float64")):
        for i in range(m):
            for j in range(n):
                for k in range(i + 1, m):
                    B[i, j] = B[i, j] + A[k, i] * B[k, j]
                B[i, j] = T.float64(ALPHA) * B[i, j]

    return kernel


def _trmm_reference(a: Array, b: Array) -> None:
    b[:] = ALPHA * (np.tril(a, -1) + np.eye(len(a))).T @ b


BLAS = (
    PolybenchKernel("gemm", _gemm, _gemm_reference, (11, 13, 17), (600, 650, 700)),
    PolybenchKernel("gemver", _gemver, _gemver_reference, (19,), (2000,)),
    PolybenchKernel("gesummv", _gesummv, _gesummv_reference, (19,), (1300,)),
    PolybenchKernel("symm", _symm, _symm_reference, (13, 17), (500, 600)),
    PolybenchKernel("syr2k", _syr2k, _syr2k_reference, (17, 13), (600, 500)),
    PolybenchKernel("syrk", _syrk, _syrk_reference, (17, 13), (600, 500)),
    PolybenchKernel("trmm", _trmm, _trmm_reference, (13, 17), (500, 600)),
)

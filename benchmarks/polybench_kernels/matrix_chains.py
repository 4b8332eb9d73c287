"""PolyBench's linear algebra kernels: chains of products."""

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.script import tirx as T

from polybench_kernels.catalogue import PolybenchKernel

Array = NDArray[np.float64]

ALPHA, BETA = 1.5, 1.2


def _two_products(ni: int, nj: int, nk: int, nl: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        tmp: T.Buffer((ni, nj), "float64"),
        A: T.Buffer((ni, nk), "float64"),
        B: T.Buffer((nk, nj), "float64"),
        C: T.Buffer((nj, nl), "float64"),
        D: T.Buffer((ni, nl), "float64"),
    ):
        for i in range(ni):
            for j in range(nj):
                tmp[i, j] = T.float64(0)
                for k in range(nk):
                    tmp[i, j] = tmp[i, j] + T.float64(ALPHA) * A[i, k] * B[k, j]
        for i in range(ni):
            for j in range(nl):
                D[i, j] = D[i, j] * T.float64(BETA)
                for k in range(nj):
                    D[i, j] = D[i, j] + tmp[i, k] * C[k, j]

    return kernel


def _two_products_reference(tmp: Array, a: Array, b: Array, c: Array, d: Array) -> None:
    tmp[:] = ALPHA * a @ b
    d[:] = BETA * d + tmp @ c


def _three_products(ni: int, nj: int, nk: int, nl: int, nm: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        E: T.Buffer((ni, nj), "float64"),
        A: T.Buffer((ni, nk), "float64"),
        B: T.Buffer((nk, nj), "float64"),
        F: T.Buffer((nj, nl), "float64"),
        C: T.Buffer((nj, nm), "float64"),
        D: T.Buffer((nm, nl), "float64"),
        G: T.Buffer((ni, nl), "float64"),
    ):
        for i in range(ni):
            for j in range(nj):
                E[i, j] = T.float64(0)
                for k in range(nk):
                    E[i, j] = E[i, j] + A[i, k] * B[k, j]
        for i in range(nj):
            for j in range(nl):
                F[i, j] = T.float64(0)
                for k in range(nm):
                    F[i, j] = F[i, j] + C[i, k] * D[k, j]
        for i in range(ni):
            for j in range(nl):
                G[i, j] = T.float64(0)
                for k in range(nj):
                    G[i, j] = G[i, j] + E[i, k] * F[k, j]

    return kernel


def _three_products_reference(
    e: Array, a: Array, b: Array, f: Array, c: Array, d: Array, g: Array
) -> None:
    e[:], f[:] = a @ b, c @ d
    g[:] = e @ f


def _atax(m: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((m, n), "float64"),
        x: T.Buffer((n,), "float64"),
        y: T.Buffer((n,), "float64"),
        tmp: T.Buffer((m,), "float64"),
    ):
        for i in range(n):
            y[i] = T.float64(0)
        for i in range(m):
            tmp[i] = T.float64(0)
            for j in range(n):
                tmp[i] = tmp[i] + A[i, j] * x[j]
            for j in range(n):
                y[j] = y[j] + A[i, j] * tmp[i]

    return kernel


def _atax_reference(a: Array, x: Array, y: Array, tmp: Array) -> None:
    tmp[:] = a @ x
    y[:] = a.T @ tmp


def _bicg(m: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        A: T.Buffer((n, m), "float64"),
        s: T.Buffer((m,), "float64"),
        q: T.Buffer((n,), "float64"),
        p: T.Buffer((m,), "float64"),
        r: T.Buffer((n,), "float64"),
    ):
        for i in range(m):
            s[i] = T.float64(0)
        for i in range(n):
            q[i] = T.float64(0)
            for j in range(m):
                s[j] = s[j] + r[i] * A[i, j]
                q[i] = q[i] + A[i, j] * p[j]

    return kernel


def _bicg_reference(a: Array, s: Array, q: Array, p: Array, r: Array) -> None:
    s[:], q[:] = a.T @ r, a @ p


def _doitgen(nr: int, nq: int, np_: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((nr, nq, np_), "float64"), C4: T.Buffer((np_, np_), "float64")):
        for r in range(nr):
            for q in range(nq):
                total = T.alloc_buffer((np_,), "float64")
                for p in range(np_):
                    total[p] = T.float64(0)
                    for s in range(np_):
                        total[p] = total[p] + A[r, q, s] * C4[s, p]
                for p in range(np_):
                    A[r, q, p] = total[p]

    return kernel


def _doitgen_reference(a: Array, c4: Array) -> None:
    a[:] = a @ c4


def _mvt(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        x1: T.Buffer((n,), "float64"),
        x2: T.Buffer((n,), "float64"),
        y1: T.Buffer((n,), "float64"),
        y2: T.Buffer((n,), "float64"),
        A: T.Buffer((n, n), "float64"),
    ):
        for i in range(n):
            for j in range(n):
                x1[i] = x1[i] + A[i, j] * y1[j]
        for i in range(n):
            for j in range(n):
                x2[i] = x2[i] + A[j, i] * y2[j]

    return kernel


def _mvt_reference(x1: Array, x2: Array, y1: Array, y2: Array, a: Array) -> None:
    x1 += a @ y1
    x2 += a.T @ y2


MATRIX_CHAINS = (
    PolybenchKernel(
        "2mm", _two_products, _two_products_reference, (11, 13, 15, 17), (500, 550, 600, 650)
    ),
    PolybenchKernel(
        "3mm",
        _three_products,
        _three_products_reference,
        (11, 13, 15, 17, 19),
        (400, 450, 500, 550, 600),
    ),
    PolybenchKernel("atax", _atax, _atax_reference, (19, 23), (1900, 2100)),
    PolybenchKernel("bicg", _bicg, _bicg_reference, (23, 19), (1900, 2100)),
    PolybenchKernel("doitgen", _doitgen, _doitgen_reference, (5, 7, 11), (100, 110, 120)),
    PolybenchKernel("mvt", _mvt, _mvt_reference, (19,), (2000,)),
)

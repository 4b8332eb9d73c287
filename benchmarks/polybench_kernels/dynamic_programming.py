"""PolyBench's medley: the Deriche filter, shortest paths and RNA folding."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import signal
from tvm import tirx
from tvm.script import tirx as T

from polybench_kernels.catalogue import PolybenchKernel, random_arguments, shapes_of

Array = NDArray[np.float64]

# Deriche's coefficients for alpha = 0.25, as PolyBench computes them.
_E = math.exp(-0.25)
_K = (1 - _E) * (1 - _E) / (1 + 2 * 0.25 * _E - math.exp(0.5))
A1 = A5 = _K
A2 = A6 = _K * _E * (0.25 - 1)
A3 = A7 = _K * _E * (0.25 + 1)
A4 = A8 = -_K * math.exp(-0.5)
B1 = 2**-0.25
B2 = -math.exp(-0.5)


def _deriche(w: int, h: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        img_in: T.Buffer((w, h), "float64"),
        img_out: T.Buffer((w, h), "float64"),
        y1: T.Buffer((w, h), "float64"),
        y2: T.Buffer((w, h), "float64"),
    ):
        for i in range(w):
            ym1 = T.alloc_buffer((1,), "float64")
            ym2 = T.alloc_buffer((1,), "float64")
            xm1 = T.alloc_buffer((1,), "float64")
            ym1[0] = T.float64(0)
            ym2[0] = T.float64(0)
            xm1[0] = T.float64(0)
            for j in range(h):
                y1[i, j] = (
                    T.float64(A1) * img_in[i, j]
                    + T.float64(A2) * xm1[0]
                    + T.float64(B1) * ym1[0]
                    + T.float64(B2) * ym2[0]
                )
                xm1[0] = img_in[i, j]
                ym2[0] = ym1[0]
                ym1[0] = y1[i, j]
        for i in range(w):
            yp1 = T.alloc_buffer((1,), "float64")
            yp2 = T.alloc_buffer((1,), "float64")
            xp1 = T.alloc_buffer((1,), "float64")
            xp2 = T.alloc_buffer((1,), "float64")
            yp1[0] = T.float64(0)
            yp2[0] = T.float64(0)
            xp1[0] = T.float64(0)
            xp2[0] = T.float64(0)
            for j in range(h):
                y2[i, h - 1 - j] = (
                    T.float64(A3) * xp1[0]
                    + T.float64(A4) * xp2[0]
                    + T.float64(B1) * yp1[0]
                    + T.float64(B2) * yp2[0]
                )
                xp2[0] = xp1[0]
                xp1[0] = img_in[i, h - 1 - j]
                yp2[0] = yp1[0]
                yp1[0] = y2[i, h - 1 - j]
        for i in range(w):
            for j in range(h):
                img_out[i, j] = y1[i, j] + y2[i, j]
        for j in range(h):
            tm1 = T.alloc_buffer((1,), "float64")
            um1 = T.alloc_buffer((1,), "float64")
            um2 = T.alloc_buffer((1,), "float64")
            tm1[0] = T.float64(0)
            um1[0] = T.float64(0)
            um2[0] = T.float64(0)
            for i in range(w):
                y1[i, j] = (
                    T.float64(A5) * img_out[i, j]
                    + T.float64(A6) * tm1[0]
                    + T.float64(B1) * um1[0]
                    + T.float64(B2) * um2[0]
                )
                tm1[0] = img_out[i, j]
                um2[0] = um1[0]
                um1[0] = y1[i, j]
        for j in range(h):
            tp1 = T.alloc_buffer((1,), "float64")
            tp2 = T.alloc_buffer((1,), "float64")
            up1 = T.alloc_buffer((1,), "float64")
            up2 = T.alloc_buffer((1,), "float64")
            tp1[0] = T.float64(0)
            tp2[0] = T.float64(0)
            up1[0] = T.float64(0)
            up2[0] = T.float64(0)
            for i in range(w):
                y2[w - 1 - i, j] = (
                    T.float64(A7) * tp1[0]
                    + T.float64(A8) * tp2[0]
                    + T.float64(B1) * up1[0]
                    + T.float64(B2) * up2[0]
                )
                tp2[0] = tp1[0]
                tp1[0] = img_out[w - 1 - i, j]
                up2[0] = up1[0]
                up1[0] = y2[w - 1 - i, j]
        for i in range(w):
            for j in range(h):
                img_out[i, j] = y1[i, j] + y2[i, j]

    return kernel


def _deriche_reference(img_in: Array, img_out: Array, y1: Array, y2: Array) -> None:
    feedback = [1.0, -B1, -B2]
    for source, axis in ((img_in.copy(), 1), (img_out, 0)):
        y1[:] = signal.lfilter([A1, A2], feedback, source, axis=axis)
        backwards = np.flip(source, axis)
        y2[:] = np.flip(signal.lfilter([0.0, A3, A4], feedback, backwards, axis=axis), axis)
        img_out[:] = y1 + y2


def _floyd_warshall(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(path: T.Buffer((n, n), "int32")):
        for k in range(n):
            for i in range(n):
                for j in range(n):
                    path[i, j] = T.min(path[i, j], path[i, k] + path[k, j])

    return kernel


def _floyd_warshall_reference(path: NDArray[np.int32]) -> None:
    for k in range(len(path)):
        np.minimum(path, path[:, k : k + 1] + path[k : k + 1], out=path)


def _lengths(func: tirx.PrimFunc) -> list[NDArray[Any]]:
    generator = np.random.default_rng(0)
    return [generator.integers(1, 1000, shape).astype(dtype) for shape, dtype in shapes_of(func)]


def _nussinov(n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(seq: T.Buffer((n,), "int32"), table: T.Buffer((n, n), "int32")):
        for r in range(n):
            for j in range(n - r, n):
                table[n - 1 - r, j] = T.max(table[n - 1 - r, j], table[n - 1 - r, j - 1])
                table[n - 1 - r, j] = T.max(table[n - 1 - r, j], table[n - r, j])
                if n - 1 - r < j - 1:
                    table[n - 1 - r, j] = T.max(
                        table[n - 1 - r, j],
                        table[n - r, j - 1]
                        + T.Select(seq[n - 1 - r] + seq[j] == 3, T.int32(1), T.int32(0)),
                    )
                else:
                    table[n - 1 - r, j] = T.max(table[n - 1 - r, j], table[n - r, j - 1])
                for k in range(n - r, j):
                    table[n - 1 - r, j] = T.max(
                        table[n - 1 - r, j], table[n - 1 - r, k] + table[k + 1, j]
                    )

    return kernel


def _nussinov_reference(seq: NDArray[np.int32], table: NDArray[np.int32]) -> None:
    n = len(seq)
    for i in reversed(range(n)):
        for j in range(i + 1, n):
            pair = int(seq[i] + seq[j] == 3) if i < j - 1 else 0
            best = max(table[i, j], table[i, j - 1], table[i + 1, j], table[i + 1, j - 1] + pair)
            splits = table[i, i + 1 : j] + table[i + 2 : j + 1, j]
            table[i, j] = max(best, *splits) if len(splits) else best


def _bases(func: tirx.PrimFunc) -> list[NDArray[Any]]:
    size = int(func.params[0].shape[0])
    bases = np.random.default_rng(0).integers(0, 4, size).astype("int32")
    return [bases, np.zeros((size, size), "int32")]


DYNAMIC_PROGRAMMING = (
    PolybenchKernel(
        "deriche", _deriche, _deriche_reference, (13, 17), (1200, 1000), random_arguments
    ),
    PolybenchKernel(
        "floyd-warshall", _floyd_warshall, _floyd_warshall_reference, (17,), (700,), _lengths
    ),
    PolybenchKernel("nussinov", _nussinov, _nussinov_reference, (17,), (800,), _bases),
)

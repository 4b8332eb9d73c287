"""PolyBench's stencils over time."""

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.script import tirx as T

from polybench_kernels.catalogue import PolybenchKernel

Array = NDArray[np.float64]


def _coefficients(tsteps: int, n: int) -> tuple[float, float, float, float, float, float]:
    """The coefficients a to f of PolyBench's alternating directions."""
    dx, dt = 1 / n, 1 / tsteps
    mul1, mul2 = 2 * dt / dx**2, dt / dx**2
    return -mul1 / 2, 1 + mul1, -mul1 / 2, -mul2 / 2, 1 + mul2, -mul2 / 2


def _adi(tsteps: int, n: int) -> tirx.PrimFunc:
    a, b, c, d, e, f = _coefficients(tsteps, n)

    @T.prim_func(s_tir=True)
    def kernel(
        u: T.Buffer((n, n), "float64"),
        v: T.Buffer((n, n), "float64"),
        p: T.Buffer((n, n), "float64"),
        q: T.Buffer((n, n), "float64"),
    ):
        for t in range(tsteps):
            for i in range(1, n - 1):
                v[0, i] = T.float64(1)
                p[i, 0] = T.float64(0)
                q[i, 0] = v[0, i]
                for j in range(1, n - 1):
                    p[i, j] = T.float64(-c) / (T.float64(a) * p[i, j - 1] + T.float64(b))
                    q[i, j] = (
                        T.float64(-d) * u[j, i - 1]
                        + T.float64(1 + 2 * d) * u[j, i]
                        - T.float64(f) * u[j, i + 1]
                        - T.float64(a) * q[i, j - 1]
                    ) / (T.float64(a) * p[i, j - 1] + T.float64(b))
                v[n - 1, i] = T.float64(1)
                for j in range(1, n - 1):
                    v[n - 1 - j, i] = p[i, n - 1 - j] * v[n - j, i] + q[i, n - 1 - j]
            for i in range(1, n - 1):
                u[i, 0] = T.float64(1)
                p[i, 0] = T.float64(0)
                q[i, 0] = u[i, 0]
                for j in range(1, n - 1):
                    p[i, j] = T.float64(-f) / (T.float64(d) * p[i, j - 1] + T.float64(e))
                    q[i, j] = (
                        T.float64(-a) * v[i - 1, j]
                        + T.float64(1 + 2 * a) * v[i, j]
                        - T.float64(c) * v[i + 1, j]
                        - T.float64(d) * q[i, j - 1]
                    ) / (T.float64(d) * p[i, j - 1] + T.float64(e))
                u[i, n - 1] = T.float64(1)
                for j in range(1, n - 1):
                    u[i, n - 1 - j] = p[i, n - 1 - j] * u[i, n - j] + q[i, n - 1 - j]

    return kernel


def _sweep(
    p: Array, q: Array, rights: Array, low: float, middle: float, high: float
) -> list[Array]:
    """The forward sweep of a tridiagonal solve for many rows, then the values, last first."""
    p[1:-1, 0], q[1:-1, 0] = 0.0, 1.0
    for j in range(1, p.shape[1] - 1):
        below = low * p[1:-1, j - 1] + middle
        p[1:-1, j] = -high / below
        q[1:-1, j] = (rights[:, j - 1] - low * q[1:-1, j - 1]) / below
    values = [np.ones(len(p) - 2)]
    for j in range(p.shape[1] - 2, 0, -1):
        values.append(p[1:-1, j] * values[-1] + q[1:-1, j])
    return [*values, np.ones(len(p) - 2)]


def _adi_reference(u: Array, v: Array, p: Array, q: Array) -> None:
    n = len(u)
    tsteps = _ADI_STEPS[n]
    a, b, c, d, e, f = _coefficients(tsteps, n)
    for _ in range(tsteps):
        rights = -d * u[1:-1, :-2] + (1 + 2 * d) * u[1:-1, 1:-1] - f * u[1:-1, 2:]
        v[:, 1:-1] = np.array(_sweep(p, q, rights.T, a, b, c))[::-1]
        rights = -a * v[:-2, 1:-1] + (1 + 2 * a) * v[1:-1, 1:-1] - c * v[2:, 1:-1]
        u[1:-1] = np.array(_sweep(p, q, rights, d, e, f))[::-1].T


def _fdtd_2d(tmax: int, nx: int, ny: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        ex: T.Buffer((nx, ny), "float64"),
        ey: T.Buffer((nx, ny), "float64"),
        hz: T.Buffer((nx, ny), "float64"),
        fict: T.Buffer((tmax,), "float64"),
    ):
        for t in range(tmax):
            for j in range(ny):
                ey[0, j] = fict[t]
            for i in range(1, nx):
                for j in range(ny):
                    ey[i, j] = ey[i, j] - T.float64(0.5) * (hz[i, j] - hz[i - 1, j])
            for i in range(nx):
                for j in range(1, ny):
                    ex[i, j] = ex[i, j] - T.float64(0.5) * (hz[i, j] - hz[i, j - 1])
            for i in range(nx - 1):
                for j in range(ny - 1):
                    hz[i, j] = hz[i, j] - T.float64(0.7) * (
                        ex[i, j + 1] - ex[i, j] + ey[i + 1, j] - ey[i, j]
                    )

    return kernel


def _fdtd_2d_reference(ex: Array, ey: Array, hz: Array, fict: Array) -> None:
    for value in fict:
        ey[0] = value
        ey[1:] -= 0.5 * (hz[1:] - hz[:-1])
        ex[:, 1:] -= 0.5 * (hz[:, 1:] - hz[:, :-1])
        hz[:-1, :-1] -= 0.7 * (ex[:-1, 1:] - ex[:-1, :-1] + ey[1:, :-1] - ey[:-1, :-1])


def _heat_3d(tsteps: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n, n), "float64"), B: T.Buffer((n, n, n), "float64")):
        for t in range(tsteps):
            for i in range(1, n - 1):
                for j in range(1, n - 1):
                    for k in range(1, n - 1):
                        B[i, j, k] = (
                            T.float64(0.125)
                            * (A[i + 1, j, k] - T.float64(2) * A[i, j, k] + A[i - 1, j, k])
                            + T.float64(0.125)
                            * (A[i, j + 1, k] - T.float64(2) * A[i, j, k] + A[i, j - 1, k])
                            + T.float64(0.125)
                            * (A[i, j, k + 1] - T.float64(2) * A[i, j, k] + A[i, j, k - 1])
                            + A[i, j, k]
                        )
            for i in range(1, n - 1):
                for j in range(1, n - 1):
                    for k in range(1, n - 1):
                        A[i, j, k] = (
                            T.float64(0.125)
                            * (B[i + 1, j, k] - T.float64(2) * B[i, j, k] + B[i - 1, j, k])
                            + T.float64(0.125)
                            * (B[i, j + 1, k] - T.float64(2) * B[i, j, k] + B[i, j - 1, k])
                            + T.float64(0.125)
                            * (B[i, j, k + 1] - T.float64(2) * B[i, j, k] + B[i, j, k - 1])
                            + B[i, j, k]
                        )

    return kernel


def _heat_3d_reference(a: Array, b: Array) -> None:
    for _ in range(_HEAT_STEPS[len(a)]):
        for source, result in ((a, b), (b, a)):
            middle = source[1:-1, 1:-1, 1:-1]
            found = middle.copy()
            for axis in range(3):
                inner = [slice(1, -1)] * 3
                before, behind = list(inner), list(inner)
                before[axis], behind[axis] = slice(None, -2), slice(2, None)
                found += 0.125 * (source[tuple(behind)] - 2 * middle + source[tuple(before)])
            result[1:-1, 1:-1, 1:-1] = found


def _jacobi_1d(tsteps: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n,), "float64"), B: T.Buffer((n,), "float64")):
        for t in range(tsteps):
            for i in range(1, n - 1):
                B[i] = T.float64(0.33333) * (A[i - 1] + A[i] + A[i + 1])
            for i in range(1, n - 1):
                A[i] = T.float64(0.33333) * (B[i - 1] + B[i] + B[i + 1])

    return kernel


def _jacobi_1d_reference(a: Array, b: Array) -> None:
    for _ in range(_JACOBI_STEPS[len(a)]):
        b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
        a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])


def _jacobi_2d(tsteps: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n), "float64"), B: T.Buffer((n, n), "float64")):
        for t in range(tsteps):
            for i in range(1, n - 1):
                for j in range(1, n - 1):
                    B[i, j] = T.float64(0.2) * (
                        A[i, j] + A[i, j - 1] + A[i, j + 1] + A[i + 1, j] + A[i - 1, j]
                    )
            for i in range(1, n - 1):
                for j in range(1, n - 1):
                    A[i, j] = T.float64(0.2) * (
                        B[i, j] + B[i, j - 1] + B[i, j + 1] + B[i + 1, j] + B[i - 1, j]
                    )

    return kernel


def _jacobi_2d_reference(a: Array, b: Array) -> None:
    for _ in range(_JACOBI_STEPS[len(a)]):
        for source, result in ((a, b), (b, a)):
            result[1:-1, 1:-1] = 0.2 * (
                source[1:-1, 1:-1]
                + source[1:-1, :-2]
                + source[1:-1, 2:]
                + source[2:, 1:-1]
                + source[:-2, 1:-1]
            )


def _seidel_2d(tsteps: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n), "float64")):
        for t in range(tsteps):
            for i in range(1, n - 1):
                for j in range(1, n - 1):
                    A[i, j] = (
                        A[i - 1, j - 1]
                        + A[i - 1, j]
                        + A[i - 1, j + 1]
                        + A[i, j - 1]
                        + A[i, j]
                        + A[i, j + 1]
                        + A[i + 1, j - 1]
                        + A[i + 1, j]
                        + A[i + 1, j + 1]
                    ) / T.float64(9)

    return kernel


def _seidel_2d_reference(a: Array) -> None:
    for _ in range(_SEIDEL_STEPS[len(a)]):
        for i in range(1, len(a) - 1):
            for j in range(1, len(a) - 1):
                a[i, j] = a[i - 1 : i + 2, j - 1 : j + 2].sum() / 9


# How many steps a run of each size takes, which the arguments do not say.
_ADI_STEPS = {13: 5, 400: 20}
_HEAT_STEPS = {9: 5, 100: 40}
_JACOBI_STEPS = {19: 7, 13: 5, 400000: 100, 1300: 50}
_SEIDEL_STEPS = {13: 5, 700: 40}

STENCILS = (
    PolybenchKernel("adi", _adi, _adi_reference, (5, 13), (20, 400)),
    PolybenchKernel("fdtd-2d", _fdtd_2d, _fdtd_2d_reference, (5, 13, 15), (60, 800, 900)),
    PolybenchKernel("heat-3d", _heat_3d, _heat_3d_reference, (5, 9), (40, 100)),
    PolybenchKernel("jacobi-1d", _jacobi_1d, _jacobi_1d_reference, (7, 19), (100, 400000)),
    PolybenchKernel("jacobi-2d", _jacobi_2d, _jacobi_2d_reference, (5, 13), (50, 1300)),
    PolybenchKernel("seidel-2d", _seidel_2d, _seidel_2d_reference, (5, 13), (40, 700)),
)

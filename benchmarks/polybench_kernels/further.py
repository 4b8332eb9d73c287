"""Loop nests that are not PolyBench's, which the scheduler was not written for.

Tables of dynamic programming, recurrences along one axis for many rows, and solves whose bounds
depend on the loops around them.
"""

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import signal
from tvm import tirx
from tvm.script import tirx as T

from polybench_kernels.catalogue import PolybenchKernel, random_arguments, shapes_of

Array = NDArray[np.float64]
Integers = NDArray[np.int32]


def _smith_waterman(n: int, m: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        a: T.Buffer((n,), "int32"), b: T.Buffer((m,), "int32"), H: T.Buffer((n + 1, m + 1), "int32")
    ):
        for i in range(n):
            for j in range(m):
                H[i + 1, j + 1] = T.max(
                    T.max(H[i, j] + T.Select(a[i] == b[j], 2, -1), 0),
                    T.max(H[i, j + 1], H[i + 1, j]) - 1,
                )

    return kernel


def _smith_waterman_reference(a: Integers, b: Integers, table: Integers) -> None:
    for i in range(len(a)):
        for j in range(len(b)):
            met = table[i, j] + (2 if a[i] == b[j] else -1)
            table[i + 1, j + 1] = max(met, 0, table[i, j + 1] - 1, table[i + 1, j] - 1)


def _edit_distance(n: int, m: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        a: T.Buffer((n,), "int32"), b: T.Buffer((m,), "int32"), D: T.Buffer((n + 1, m + 1), "int32")
    ):
        for i in range(n + 1):
            D[i, 0] = i
        for j in range(m + 1):
            D[0, j] = j
        for i in range(n):
            for j in range(m):
                D[i + 1, j + 1] = T.min(
                    T.min(D[i, j + 1], D[i + 1, j]) + 1, D[i, j] + T.Select(a[i] == b[j], 0, 1)
                )

    return kernel


def _edit_distance_reference(a: Integers, b: Integers, table: Integers) -> None:
    table[:, 0], table[0] = np.arange(len(a) + 1), np.arange(len(b) + 1)
    for i in range(len(a)):
        for j in range(len(b)):
            met = table[i, j] + int(a[i] != b[j])
            table[i + 1, j + 1] = min(table[i, j + 1] + 1, table[i + 1, j] + 1, met)


def _letters(func: tirx.PrimFunc) -> list[NDArray[Any]]:
    generator = np.random.default_rng(0)
    shapes = [shape for shape, _ in shapes_of(func)]
    texts = [generator.integers(0, 4, shape).astype(np.int32) for shape in shapes[:2]]
    return [*texts, np.zeros(shapes[2], np.int32)]


def _thomas(n: int, columns: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        a: T.Buffer((n, columns), "float64"),
        b: T.Buffer((n, columns), "float64"),
        c: T.Buffer((n, columns), "float64"),
        d: T.Buffer((n, columns), "float64"),
    ):
        for j in range(columns):
            for i in range(1, n):
                a[i, j] = a[i, j] / b[i - 1, j]
                b[i, j] = b[i, j] - a[i, j] * c[i - 1, j]
                d[i, j] = d[i, j] - a[i, j] * d[i - 1, j]
            d[n - 1, j] = d[n - 1, j] / b[n - 1, j]
            for i in range(1, n):
                d[n - 1 - i, j] = (d[n - 1 - i, j] - c[n - 1 - i, j] * d[n - i, j]) / b[
                    n - 1 - i, j
                ]

    return kernel


def _thomas_reference(a: Array, b: Array, c: Array, d: Array) -> None:
    for i in range(1, len(a)):
        a[i] /= b[i - 1]
        b[i] -= a[i] * c[i - 1]
        d[i] -= a[i] * d[i - 1]
    d[-1] /= b[-1]
    for i in range(len(a) - 2, -1, -1):
        d[i] = (d[i] - c[i] * d[i + 1]) / b[i]


def _with_large_diagonal(func: tirx.PrimFunc) -> list[NDArray[Any]]:
    arguments = random_arguments(func)
    arguments[1] += 3
    return arguments


def _gauss_seidel_3d(steps: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n, n), "float64")):
        for t in range(steps):
            for i in range(1, n - 1):
                for j in range(1, n - 1):
                    for k in range(1, n - 1):
                        A[i, j, k] = (
                            A[i - 1, j, k]
                            + A[i, j - 1, k]
                            + A[i, j, k - 1]
                            + A[i + 1, j, k]
                            + A[i, j + 1, k]
                            + A[i, j, k + 1]
                        ) * T.float64(1 / 6)

    return kernel


def _gauss_seidel_3d_reference(a: Array) -> None:
    inner = range(1, len(a) - 1)
    for _ in range(_GAUSS_SEIDEL_STEPS[len(a)]):
        for i in inner:
            for j in inner:
                for k in inner:
                    before = a[i - 1, j, k] + a[i, j - 1, k] + a[i, j, k - 1]
                    after = a[i + 1, j, k] + a[i, j + 1, k] + a[i, j, k + 1]
                    a[i, j, k] = (before + after) / 6


def _forward_backward(steps: int, states: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        P: T.Buffer((states, states), "float64"),
        E: T.Buffer((steps, states), "float64"),
        alpha: T.Buffer((steps, states), "float64"),
        beta: T.Buffer((steps, states), "float64"),
    ):
        for t in range(1, steps):
            for s in range(states):
                alpha[t, s] = T.float64(0)
                for r in range(states):
                    alpha[t, s] = alpha[t, s] + alpha[t - 1, r] * P[r, s]
                alpha[t, s] = alpha[t, s] * E[t, s]
        for t in range(1, steps):
            for s in range(states):
                beta[steps - 1 - t, s] = T.float64(0)
                for r in range(states):
                    beta[steps - 1 - t, s] = (
                        beta[steps - 1 - t, s] + P[s, r] * E[steps - t, r] * beta[steps - t, r]
                    )

    return kernel


def _forward_backward_reference(p: Array, e: Array, alpha: Array, beta: Array) -> None:
    for t in range(1, len(e)):
        alpha[t] = (alpha[t - 1] @ p) * e[t]
    for t in range(len(e) - 2, -1, -1):
        beta[t] = p @ (e[t + 1] * beta[t + 1])


def _chances(func: tirx.PrimFunc) -> list[NDArray[Any]]:
    arguments = random_arguments(func)
    arguments[0] /= arguments[0].sum(axis=1, keepdims=True)
    return arguments


def _prefix_maxima(rows: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(a: T.Buffer((rows, n), "float64"), best: T.Buffer((rows, n), "float64")):
        for i in range(rows):
            best[i, 0] = a[i, 0]
            for j in range(1, n):
                best[i, j] = T.max(best[i, j - 1], a[i, j])

    return kernel


def _prefix_maxima_reference(a: Array, best: Array) -> None:
    np.maximum.accumulate(a, axis=1, out=best)


def _banded_lu(n: int, width: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((n, n), "float64")):
        for k in range(n):
            for i in range(k + 1, T.min(n, k + width + 1)):
                A[i, k] = A[i, k] / A[k, k]
                for j in range(k + 1, T.min(n, k + width + 1)):
                    A[i, j] = A[i, j] - A[i, k] * A[k, j]

    return kernel


def _banded_lu_reference(a: Array) -> None:
    width = _BANDS[len(a)]
    for k in range(len(a)):
        near = slice(k + 1, k + width + 1)
        a[near, k] /= a[k, k]
        a[near, near] -= np.outer(a[near, k], a[k, near])


def _banded(func: tirx.PrimFunc) -> list[NDArray[Any]]:
    (matrix,) = random_arguments(func)
    n = len(matrix)
    width = _BANDS[n]
    return [np.triu(np.tril(matrix, width), -width) + 2 * width * np.eye(n)]


def _small_choleskys(batch: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((batch, n, n), "float64")):
        for b in range(batch):
            for i in range(n):
                for j in range(i):
                    for k in range(j):
                        A[b, i, j] = A[b, i, j] - A[b, i, k] * A[b, j, k]
                    A[b, i, j] = A[b, i, j] / A[b, j, j]
                for k in range(i):
                    A[b, i, i] = A[b, i, i] - A[b, i, k] * A[b, i, k]
                A[b, i, i] = T.sqrt(A[b, i, i])

    return kernel


def _small_choleskys_reference(a: Array) -> None:
    lower = np.tril(np.linalg.cholesky(a))
    a[:] = lower + np.triu(a, 1)


def _positive(func: tirx.PrimFunc) -> list[NDArray[Any]]:
    (matrices,) = random_arguments(func)
    n = matrices.shape[-1]
    return [(matrices + matrices.transpose(0, 2, 1)) / 2 + n * np.eye(n)]


def _bellman_ford(rounds: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(weights: T.Buffer((n, n), "float64"), d: T.Buffer((n,), "float64")):
        for r in range(rounds):
            for u in range(n):
                for v in range(n):
                    d[v] = T.min(d[v], d[u] + weights[u, v])

    return kernel


def _bellman_ford_reference(weights: Array, d: Array) -> None:
    for _ in range(_ROUNDS[len(d)]):
        for u in range(len(d)):
            np.minimum(d, d[u] + weights[u], out=d)


def _automaton(steps: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(cells: T.Buffer((steps + 1, n), "int32")):
        for t in range(steps):
            for i in range(1, n - 1):
                cells[t + 1, i] = T.Select(
                    cells[t, i - 1] + cells[t, i] + cells[t, i + 1] == 3,
                    0,
                    T.max(cells[t, i], cells[t, i + 1]),
                )

    return kernel


def _automaton_reference(cells: Integers) -> None:
    for now, later in itertools.pairwise(cells):
        three = now[:-2] + now[1:-1] + now[2:]
        later[1:-1] = np.where(three == 3, 0, np.maximum(now[1:-1], now[2:]))


def _bits(func: tirx.PrimFunc) -> list[NDArray[Any]]:
    ((shape, _),) = shapes_of(func)
    return [np.random.default_rng(0).integers(0, 2, shape).astype(np.int32)]


_FORWARD, _BACK = (0.2, 0.4, 0.2), (-0.6, 0.3)


def _biquad(channels: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(x: T.Buffer((channels, n), "float64"), y: T.Buffer((channels, n), "float64")):
        for c in range(channels):
            for t in range(2, n):
                y[c, t] = (
                    T.float64(_FORWARD[0]) * x[c, t]
                    + T.float64(_FORWARD[1]) * x[c, t - 1]
                    + T.float64(_FORWARD[2]) * x[c, t - 2]
                    - T.float64(_BACK[0]) * y[c, t - 1]
                    - T.float64(_BACK[1]) * y[c, t - 2]
                )

    return kernel


def _biquad_reference(x: Array, y: Array) -> None:
    over = (1.0, *_BACK)
    for channel in range(len(x)):
        # lfiltic takes what came last first.
        state = signal.lfiltic(_FORWARD, over, y[channel, 1::-1], x[channel, 1::-1])
        y[channel, 2:], _ = signal.lfilter(_FORWARD, over, x[channel, 2:], zi=state)


# What the arguments do not say of the sizes.
_GAUSS_SEIDEL_STEPS = {9: 3, 100: 20}
_BANDS = {29: 5, 3000: 60}
_ROUNDS = {19: 3, 1500: 5}

FURTHER: dict[str, PolybenchKernel] = {
    kernel.name: kernel
    for kernel in (
        PolybenchKernel(
            "smith-waterman",
            _smith_waterman,
            _smith_waterman_reference,
            (19, 23),
            (3000, 3100),
            _letters,
        ),
        PolybenchKernel(
            "edit-distance",
            _edit_distance,
            _edit_distance_reference,
            (19, 23),
            (3000, 3100),
            _letters,
        ),
        PolybenchKernel(
            "thomas", _thomas, _thomas_reference, (13, 19), (500, 2000), _with_large_diagonal
        ),
        PolybenchKernel(
            "gauss-seidel-3d", _gauss_seidel_3d, _gauss_seidel_3d_reference, (3, 9), (20, 100)
        ),
        PolybenchKernel(
            "forward-backward",
            _forward_backward,
            _forward_backward_reference,
            (7, 13),
            (200, 300),
            _chances,
        ),
        PolybenchKernel(
            "prefix-maxima", _prefix_maxima, _prefix_maxima_reference, (13, 19), (1000, 2000)
        ),
        PolybenchKernel(
            "banded-lu", _banded_lu, _banded_lu_reference, (29, 5), (3000, 60), _banded
        ),
        PolybenchKernel(
            "small-choleskys",
            _small_choleskys,
            _small_choleskys_reference,
            (11, 8),
            (20000, 8),
            _positive,
        ),
        PolybenchKernel("bellman-ford", _bellman_ford, _bellman_ford_reference, (3, 19), (5, 1500)),
        PolybenchKernel(
            "automaton", _automaton, _automaton_reference, (9, 37), (500, 20000), _bits
        ),
        PolybenchKernel("biquad", _biquad, _biquad_reference, (13, 19), (500, 4000)),
    )
}

"""PolyBench's data mining: correlation and covariance."""

import numpy as np
from numpy.typing import NDArray
from tvm import tirx
from tvm.script import tirx as T

from polybench_kernels.catalogue import PolybenchKernel

Array = NDArray[np.float64]


def _correlation(m: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        data: T.Buffer((n, m), "float64"),
        corr: T.Buffer((m, m), "float64"),
        mean: T.Buffer((m,), "float64"),
        stddev: T.Buffer((m,), "float64"),
    ):
        for j in range(m):
            mean[j] = T.float64(0)
            for i in range(n):
                mean[j] = mean[j] + data[i, j]
            mean[j] = mean[j] / T.float64(n)
        for j in range(m):
            stddev[j] = T.float64(0)
            for i in range(n):
                stddev[j] = stddev[j] + (data[i, j] - mean[j]) * (data[i, j] - mean[j])
            stddev[j] = T.sqrt(stddev[j] / T.float64(n))
            stddev[j] = T.if_then_else(stddev[j] <= T.float64(0.1), T.float64(1), stddev[j])
        for i in range(n):
            for j in range(m):
                data[i, j] = data[i, j] - mean[j]
                data[i, j] = data[i, j] / (T.sqrt(T.float64(n)) * stddev[j])
        for i in range(m - 1):
            corr[i, i] = T.float64(1)
            for j in range(i + 1, m):
                corr[i, j] = T.float64(0)
                for k in range(n):
                    corr[i, j] = corr[i, j] + data[k, i] * data[k, j]
                corr[j, i] = corr[i, j]
        corr[m - 1, m - 1] = T.float64(1)

    return kernel


def _correlation_reference(data: Array, corr: Array, mean: Array, stddev: Array) -> None:
    mean[:] = data.mean(axis=0)
    stddev[:] = data.std(axis=0)
    stddev[stddev <= 0.1] = 1.0
    data[:] = (data - mean) / (np.sqrt(len(data)) * stddev)
    corr[:] = data.T @ data
    np.fill_diagonal(corr, 1.0)


def _covariance(m: int, n: int) -> tirx.PrimFunc:
    @T.prim_func(s_tir=True)
    def kernel(
        data: T.Buffer((n, m), "float64"),
        cov: T.Buffer((m, m), "float64"),
        mean: T.Buffer((m,), "float64"),
    ):
        for j in range(m):
            mean[j] = T.float64(0)
            for i in range(n):
                mean[j] = mean[j] + data[i, j]
            mean[j] = mean[j] / T.float64(n)
        for i in range(n):
            for j in range(m):
                data[i, j] = data[i, j] - mean[j]
        for i in range(m):
            for j in range(i, m):
                cov[i, j] = T.float64(0)
                for k in range(n):
                    cov[i, j] = cov[i, j] + data[k, i] * data[k, j]
                cov[i, j] = cov[i, j] / T.float64(n - 1)
                cov[j, i] = cov[i, j]

    return kernel


def _covariance_reference(data: Array, cov: Array, mean: Array) -> None:
    mean[:] = data.mean(axis=0)
    data -= mean
    cov[:] = data.T @ data / (len(data) - 1)


STATISTICS = (
    PolybenchKernel("correlation", _correlation, _correlation_reference, (13, 17), (600, 700)),
    PolybenchKernel("covariance", _covariance, _covariance_reference, (13, 17), (600, 700)),
)

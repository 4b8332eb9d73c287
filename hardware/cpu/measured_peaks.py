"""What this CPU reaches at best, measured: multiply-adds in registers, copying and reading memory.

Both are kernels built by TVM for the CPU at hand, so that they use the instructions and the threads
that compiled models use.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.system import usable_cpus
from tvm_ext.hardware.timing import interleaved_seconds, timed

# Long enough that handing work to threads (microseconds) does not show.
_STEPS = 32768
# So many times the last-level cache, and no less than so many bytes, are surely beyond it.
CACHE_FACTOR = 4
_LEAST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Peak:
    """A kernel that does nothing but what is measured.

    Attributes
    ----------
    amount : float
        Floating-point operations (a multiply-add is two), or bytes read plus bytes written, of one
        call.
    run : callable
        One call.
    """

    amount: float
    run: Callable[[], object]

    def rate(self, seconds: float) -> float:
        """1e9 operations or bytes a second, for a call that took ``seconds``."""
        return self.amount / seconds / 1e9


def with_measured_peaks(machine: CpuDescription, seconds: float = 1.0) -> CpuDescription:
    """The description of this CPU with the rates that it reaches, measured in about ``seconds``.

    Its clock becomes the one with which all cores of ``machine`` would do the multiply-adds of
    float32 that were measured; bandwidths are those of copies that fill half of each cache, and of
    one that none holds. Each is the best that was seen: a peak is what was ever reached.
    """
    core = machine.with_cores(1)
    peaks = {
        "flops": fma_peak(machine),
        "memory_gbs": copy_peak(machine),
        "core_memory_gbs": copy_peak(core),
        "core_l2_gbs": copy_peak(core, machine.l2_bytes // 4),
    }
    if machine.l3_bytes:
        peaks["core_l3_gbs"] = copy_peak(core, machine.l3_bytes // 4)
    timers = [timed(peak.run) for peak in peaks.values()]
    samples = interleaved_seconds(timers, seconds, rounds=10)
    rates = {name: peaks[name].rate(min(taken)) for name, taken in zip(peaks, samples, strict=True)}
    faster = 1e9 * rates.pop("flops") / machine.peak_flops("float32")
    return machine.model_copy(update={**rates, "clock_ghz": machine.clock_ghz * faster})


def large_bytes(machine: CpuDescription) -> int:
    """Bytes of a tensor that is surely beyond the last-level cache."""
    return max(_LEAST_BYTES, CACHE_FACTOR * max(machine.l3_bytes, machine.l2_bytes))


def use_tvm_threads(count: int) -> None:
    """Sizes TVM's own pool, which runs what TVM alone has built."""
    cpus = sorted(usable_cpus())
    every_thread_on_any_cpu = -3
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(every_thread_on_any_cpu, min(count, len(cpus)), [str(cpu) for cpu in cpus])


def fma_peak(machine: CpuDescription) -> Peak:
    """Independent float32 multiply-adds on vector registers, on all cores of ``machine``.

    Three quarters of the registers are accumulators: more than latency times throughput of any
    core's multiply-add units.
    """
    lanes, vectors, threads = _shape(machine)
    module = fma_module(machine)
    # x = x / 2 + 1/2 stays at 1: no overflow and no denormal, which would be slow.
    factors = tvm.runtime.tensor(np.full((2, lanes), 0.5, np.float32))
    sums = tvm.runtime.tensor(np.ones((threads, 2, vectors // 2 * lanes), np.float32))
    kernel = module["main"]

    def run() -> None:
        if threads > 1:
            use_tvm_threads(threads)
        kernel(factors, sums)

    return Peak(2.0 * vectors * lanes * _STEPS * threads, run)


def fma_module(machine: CpuDescription) -> tvm.runtime.Module:
    """The machine code of ``fma_peak``, also for a CPU that is not this one."""
    lanes, vectors, threads = _shape(machine)
    return _built(_fma_kernel(threads, lanes, vectors // 2), machine)


def copy_peak(machine: CpuDescription, nbytes: int | None = None) -> Peak:
    """A copy of an array beyond the last-level cache, on all cores of ``machine``.

    Read and written bytes both count. What a CPU reads in order to write (a cache line that is
    written whole is read first, unless the store bypasses the cache) does not.
    """
    lanes = machine.vector_lanes("float32")
    threads = machine.cores
    steps = (nbytes or large_bytes(machine)) // (4 * lanes * threads)
    size = steps * lanes * threads
    module = _built(_copy_kernel(threads, steps, lanes), machine)
    source = tvm.runtime.tensor(np.ones(size, np.float32))
    copied = tvm.runtime.tensor(np.zeros(size, np.float32))
    kernel = module["main"]

    def run() -> None:
        if threads > 1:
            use_tvm_threads(threads)
        kernel(source, copied)

    return Peak(2.0 * 4 * size, run)


def read_peak(machine: CpuDescription, nbytes: int | None = None) -> Peak:
    """The sum of an array beyond the last-level cache, by all cores of ``machine``: what a product
    with few rows can reach of its weights.
    """
    lanes, threads = machine.vector_lanes("float32"), machine.cores
    # As many sums as TVM keeps on the stack, from where LLVM takes them into registers.
    step = lanes * (_shape(machine)[1] // 3)
    steps = (nbytes or large_bytes(machine)) // (4 * step * threads)
    module = _built(_read_kernel(threads, steps, step), machine)
    source = tvm.runtime.tensor(np.ones(steps * step * threads, np.float32))
    sums = tvm.runtime.tensor(np.zeros((threads, step), np.float32))
    kernel = module["main"]

    def run() -> None:
        if threads > 1:
            use_tvm_threads(threads)
        kernel(source, sums)

    return Peak(4.0 * steps * step * threads, run)


def _shape(machine: CpuDescription) -> tuple[int, int, int]:
    """Lanes of a vector, accumulators, threads."""
    few = machine.architecture == "x86_64" and "avx512vl" not in machine.features
    registers = 16 if few else 32
    return machine.vector_lanes("float32"), registers * 3 // 4, machine.cores


def _built(func: tirx.PrimFunc, machine: CpuDescription) -> tvm.runtime.Module:
    mod = tvm.IRModule({"main": func.with_attr("global_symbol", "main")})
    return tvm.compile(mod, target=machine.tvm_target()).mod


def _fma_kernel(threads: int, lanes: int, vectors: int) -> tirx.PrimFunc:
    """Two buffers of accumulators: one of them all is above what TVM puts on the stack."""
    half = vectors * lanes
    loop = T.parallel if threads > 1 else T.serial

    @T.prim_func
    def kernel(
        factors: T.Buffer((2, lanes), "float32"),  # type: ignore[valid-type]
        sums: T.Buffer((threads, 2, half), "float32"),  # type: ignore[valid-type]
    ) -> None:
        for t in loop(threads):
            low = T.alloc_buffer((half,), "float32")
            high = T.alloc_buffer((half,), "float32")
            for i in T.unroll(vectors):
                for v in T.vectorized(lanes):
                    low[i * lanes + v] = sums[t, 0, i * lanes + v]
                    high[i * lanes + v] = sums[t, 1, i * lanes + v]
            for _ in range(_STEPS):
                for i in T.unroll(vectors):
                    for v in T.vectorized(lanes):
                        low[i * lanes + v] = low[i * lanes + v] * factors[0, v] + factors[1, v]
                        high[i * lanes + v] = high[i * lanes + v] * factors[0, v] + factors[1, v]
            for i in T.unroll(vectors):
                for v in T.vectorized(lanes):
                    sums[t, 0, i * lanes + v] = low[i * lanes + v]
                    sums[t, 1, i * lanes + v] = high[i * lanes + v]

    return kernel


def _copy_kernel(threads: int, steps: int, lanes: int) -> tirx.PrimFunc:
    size = threads * steps * lanes
    loop = T.parallel if threads > 1 else T.serial

    @T.prim_func
    def kernel(
        source: T.Buffer((size,), "float32"),  # type: ignore[valid-type]
        copied: T.Buffer((size,), "float32"),  # type: ignore[valid-type]
    ) -> None:
        for t in loop(threads):
            for i in range(steps):
                for v in T.vectorized(lanes):
                    copied[(t * steps + i) * lanes + v] = source[(t * steps + i) * lanes + v]

    return kernel


def _read_kernel(threads: int, steps: int, step: int) -> tirx.PrimFunc:
    loop = T.parallel if threads > 1 else T.serial

    @T.prim_func
    def kernel(
        source: T.Buffer((threads * steps * step,), "float32"),  # type: ignore[valid-type]
        sums: T.Buffer((threads, step), "float32"),  # type: ignore[valid-type]
    ) -> None:
        for t in loop(threads):
            total = T.alloc_buffer((step,), "float32")
            for v in T.vectorized(step):
                total[v] = 0.0
            for i in range(steps):
                for v in T.vectorized(step):
                    total[v] = total[v] + source[(t * steps + i) * step + v]
            for v in T.vectorized(step):
                sums[t, v] = total[v]

    return kernel

"""The emulator of CUDA code: what it computes, and every fault that it must find."""

import re

import numpy as np
import pytest
from cuda_emulation import CudaEmulationError, missing, set_seed
from cuda_emulation.sources import run_source
from emulated_faults import FAULTS, REVERSED, SOURCE

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def floats(count: int = 64) -> np.ndarray:
    return np.arange(count, dtype="float32")


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_barrier_orders_writes_and_reads(seed: int) -> None:
    set_seed(seed)
    x = floats()
    run_source(SOURCE, "reversed", [x], (64, 1, 1))
    np.testing.assert_array_equal(x, floats()[::-1])


def test_asynchronous_copies_arrive_when_they_were_waited_for() -> None:
    x, y = floats(128), floats(32)
    run_source(SOURCE, "copied", [x, y], shared_bytes=512)
    np.testing.assert_array_equal(y, 127 - floats(32))


def test_shuffles_and_votes() -> None:
    x = floats(32)
    run_source(SOURCE, "shuffled", [x])
    pairs = floats(32) + np.roll(floats(32), 16)
    expected = [pairs[i // 8 * 8] + pairs[i // 8 * 8 + 1] + 16 for i in range(32)]
    np.testing.assert_array_equal(x, np.array(expected, "float32"))


def test_bulk_copies_and_barriers_in_shared_memory() -> None:
    x, y = floats(128), floats(128)
    run_source(SOURCE, "bulk", [x, y], (64, 1, 1), shared_bytes=1024)
    np.testing.assert_array_equal(y[:64], x[:64] + x[64:])


@pytest.mark.parametrize("name", FAULTS)
def test_faults_end_the_run(name: str) -> None:
    fault = FAULTS[name]
    set_seed(0)
    arrays = [floats(128), floats(32)] if fault.arrays == 2 else [floats()]
    threads, blocks = (fault.threads, 1, 1), (2 if "blocks" in name else 1, 1, 1)
    with pytest.raises(CudaEmulationError, match=fault.message) as caught:
        run_source(SOURCE, fault.kernel, arrays, threads, blocks, fault.shared_bytes)
    assert str(caught.value).startswith(f"kernel {fault.kernel}")


def test_the_line_is_that_of_the_source() -> None:
    fault = FAULTS["read behind the end"]
    with pytest.raises(CudaEmulationError) as caught:
        run_source(SOURCE, fault.kernel, [floats()])
    (line,) = re.findall(r"line (\d+)", str(caught.value))
    assert "x[i + 33]" in SOURCE.splitlines()[int(line) - 1]


def test_unknown_assembly_is_refused() -> None:
    from cuda_emulation.assembly import AssemblyError

    source = REVERSED.format(name="k", barrier='asm volatile("barrier.cta.red;");')
    with pytest.raises(AssemblyError, match="barrier"):
        run_source(source, "k", [floats()])

"""Clusters in the emulator: blocks that arrive at each other's barriers, and rules they break."""

import numpy as np
import pytest
from cuda_emulation import CudaEmulationError, missing, set_seed
from cuda_emulation.sources import run_source

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

_SYNCHRONISED = """asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");"""

# The first thread of each block tells the other block of what it wrote to global memory.
_EXCHANGE = """
extern "C" __global__ void __launch_bounds__(128) {name}(float* __restrict__ x) {{
  extern __shared__ __align__(128) int buf[];
  unsigned bar = __cvta_generic_to_shared(buf), rank, there;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank) :);
  if ((int)threadIdx.x == 0) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(1) : "memory");
  }}
  {initialised}
  if ((int)threadIdx.x == 0) {{
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(bar), "r"(1 - rank));
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
      :: "r"(there) : "memory");
  }}
  {wait}
  x[(int)blockIdx.x * 128 + (int)threadIdx.x] = (int)rank * 1000 + (int)threadIdx.x;
  {end}
}}
"""
_WAIT = """unsigned done = 0;
  do {
    asm volatile("{ .reg .pred p; "
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(done) : "r"(bar), "r"(0) : "memory");
  } while (!done);"""


def exchange(
    blocks: int = 4,
    cluster: int = 2,
    initialised: str = _SYNCHRONISED,
    wait: str = _WAIT,
    end: str = _SYNCHRONISED,
) -> np.ndarray:
    x = np.zeros(blocks * 128, "float32")
    source = _EXCHANGE.format(name="exchange", initialised=initialised, wait=wait, end=end)
    run_source(source, "exchange", [x], (128, 1, 1), (blocks, 1, 1), 64, cluster)
    return x.reshape(blocks, 128)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocks_arrive_at_each_others_barriers(seed: int) -> None:
    set_seed(seed)
    expected = np.arange(128) + np.array([[0], [1000], [0], [1000]])
    np.testing.assert_array_equal(exchange(), expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"initialised": "__syncthreads();"}, "nothing to order|no mbarrier was initialised"),
        ({"wait": "", "end": ""}, "of the cluster that has ended"),
        ({"cluster": 1}, "of a cluster of 1"),
        ({"blocks": 3}, "divide the grid"),
    ],
    ids=["barriers not known", "gone", "no cluster", "half a cluster"],
)
def test_faults_of_clusters(changed: dict, message: str) -> None:
    set_seed(0)
    with pytest.raises(CudaEmulationError, match=message):
        exchange(**changed)

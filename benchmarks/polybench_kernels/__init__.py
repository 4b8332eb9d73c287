"""The kernels of PolyBench/C 4.2.1 as loops of TIR, each with a reference in NumPy.

Names and definitions are PolyBench's (L.-N. Pouchet and T. Yuki). Scalars that PolyBench declares
for the whole kernel and that each iteration writes before it reads them are allocated in the
loop. The loops are those of PolyBench, without blocks.
"""

from polybench_kernels.blas import BLAS
from polybench_kernels.catalogue import PolybenchKernel
from polybench_kernels.dynamic_programming import DYNAMIC_PROGRAMMING
from polybench_kernels.matrix_chains import MATRIX_CHAINS
from polybench_kernels.solvers import SOLVERS
from polybench_kernels.statistics import STATISTICS
from polybench_kernels.stencils import STENCILS

__all__ = ["KERNELS", "PolybenchKernel"]

KERNELS: dict[str, PolybenchKernel] = {
    kernel.name: kernel
    for kernel in (
        *STATISTICS,
        *BLAS,
        *MATRIX_CHAINS,
        *SOLVERS,
        *DYNAMIC_PROGRAMMING,
        *STENCILS,
    )
}

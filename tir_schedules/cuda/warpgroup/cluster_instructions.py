"""Instructions of blocks in a cluster, which reach each other's shared memory, as calls in TIR.

Names in brackets are chapters of the PTX ISA 8.5: [barrier.cluster], [mapa], [mbarrier].
"""

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.cuda.warp_instructions import call_statement


def meet(*, barriers_are_new: bool = False) -> tirx.Stmt:
    """Waits for all threads of the cluster that have not ended; [barrier.cluster].

    ``barriers_are_new``: barriers that a thread has initialised are then known to all blocks, and
    to TMA copies.
    """
    asm = (
        'asm volatile("barrier.cluster.arrive.release;" ::: "memory");\n'
        '  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");'
    )
    if not barriers_are_new:
        return call_statement("tvm_ext_cluster_meet", "", asm)
    fences = (
        'asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");\n'
        '  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n  '
    )
    return call_statement("tvm_ext_cluster_begin", "", fences + asm)


def barrier_wait(address: tvm.ir.Expr, parity: tvm.ir.Expr) -> tirx.Stmt:
    """As ``warpgroup_instructions.barrier_wait``, for arrivals of all blocks of the cluster."""
    asm = (
        "unsigned done = 0;\n"
        "  do {\n"
        '    asm volatile("{ .reg .pred p; "\n'
        '      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; "\n'
        '      "selp.u32 %0, 1, 0, p; }"\n'
        '      : "=r"(done) : "r"(a), "r"(parity) : "memory");\n'
        "  } while (!done);"
    )
    params = "unsigned a, unsigned parity"
    return call_statement("tvm_ext_cluster_wait", params, asm, address, parity)


def barrier_arrive(address: tvm.ir.Expr, block: tvm.ir.Expr, wanted: tvm.ir.Expr) -> tirx.Stmt:
    """An arrival of the threads with ``wanted`` at the barrier of a ``block`` of the cluster.

    ``address``: of the barrier at the same place in this block.
    """
    asm = (
        'asm volatile("{ .reg .pred p; .reg .b32 there; setp.ne.u32 p, %2, 0; "\n'
        '    "@p mapa.shared::cluster.u32 there, %0, %1; "\n'
        '    "@p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there]; }"\n'
        '    :: "r"(a), "r"(block), "r"(wanted) : "memory");'
    )
    params = "unsigned a, unsigned block, unsigned wanted"
    return call_statement("tvm_ext_cluster_arrive", params, asm, address, block, wanted)

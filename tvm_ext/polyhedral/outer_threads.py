"""Loops as they were written, the outermost ones on threads."""

from collections.abc import Sequence, Set

from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.polyhedral.dependences import Dependence
from tvm_ext.polyhedral.iteration_domains import KernelDomain
from tvm_ext.polyhedral.legality import carried_by
from tvm_ext.tir_schedules.statements import in_root_block


def with_outer_threads(
    kernel: KernelDomain, dependences: Sequence[Dependence], parallel: Set[str]
) -> tirx.PrimFunc | None:
    """The kernel with the outermost loop of each of these statements parallel.

    Nothing else changes. Where no tiles and no vectors were found, another order of the loops is of
    no use, and LLVM makes the best of the one that was written, as of short loops that it unrolls.
    None where one of these loops carries a dependence: only another order has a parallel loop then.
    """
    outermost = [one.loops[0] for one in kernel.statements if one.name in parallel and one.loops]
    loops = {hash(loop.loop_var): loop for loop in outermost}
    for loop in loops.values():
        if any(not carried_by(kernel, one, loop).is_empty() for one in dependences):
            return None

    def on_threads(loop: tirx.For) -> tirx.Stmt:
        if hash(loop.loop_var) not in loops:
            return loop
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.PARALLEL, loop.body)

    body = structural_map(kernel.func.body, (tirx.For, on_threads))
    return kernel.func.with_body(in_root_block(body))

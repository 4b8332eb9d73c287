"""Loops that no other template takes: parallel and tiled, as isl's scheduler finds them."""

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.polyhedral import has_isl
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Lengths of tiles that are worth trying; 1 is none.
_TILES = (1, 8, 16, 32, 64)
_INNER_TILES = (32, 64, 128, 256)


class CpuLoopNest:
    """Kernels without blocks, and those whose loops depend on each other.

    Stencils over time, recurrences, solves and dynamic programming: whatever is affine.
    """

    name = "loop nest"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        scheduled, _ = self.scheduled(func, machine, decisions)
        return s_tir.Schedule(scheduled)

    def scheduled(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> tuple[tirx.PrimFunc, object]:
        """The kernel with other loops, and what was found; ``str`` of that says it in words.

        Raises
        ------
        NotApplicable
            isl is not installed, the loops are not affine, or there is nothing to gain.
        """
        if not has_isl():
            raise NotApplicable("islpy, which schedules such loops, is not installed")
        from tvm_ext.polyhedral.affine_expressions import NotAffine
        from tvm_ext.polyhedral.dependences import dependences_of
        from tvm_ext.polyhedral.generate_loops import CodeOptions, generated_kernel
        from tvm_ext.polyhedral.kernel_domain import kernel_domain
        from tvm_ext.polyhedral.loop_scheduler import NoSchedule, SchedulerOptions, schedule_loops
        from tvm_ext.polyhedral.outer_threads import with_outer_threads

        lanes = machine.vector_lanes(_widest(func))
        options = SchedulerOptions(
            lanes=lanes,
            tile=decisions.pick("tile", _TILES, 32),
            inner_tile=decisions.pick("inner_tile", _INNER_TILES, 64),
            fuses=bool(decisions.pick("fusion", (0, 1), 0)),
            # The rest is for what is accessed once.
            cache_bytes=int(machine.l2_bytes) // 2,
            threads=machine.cores,
        )
        try:
            kernel = kernel_domain(func)
            if kernel.not_rewritable:
                raise NotApplicable(kernel.not_rewritable[0])
            dependences = dependences_of(kernel)
            found = schedule_loops(kernel, dependences, options)
        except (NotAffine, NoSchedule) as error:
            raise NotApplicable(error.reason) from None
        if not found.gains:
            raise NotApplicable("none of its loops may be tiled, or run in parallel")
        if not found.tiled and not found.vectors:
            as_written = with_outer_threads(kernel, dependences, found.parallel)
            if as_written is not None:
                return as_written, found
        code = CodeOptions(machine.cores, lanes)
        return generated_kernel(kernel, found.tree, code), found


def _widest(func: tirx.PrimFunc) -> str:
    """The type of the widest elements among the arguments."""
    found = [str(param.dtype) for param in func.params if hasattr(param, "shape")]
    return max(found, key=lambda name: int("".join(c for c in name if c.isdigit()) or 8))

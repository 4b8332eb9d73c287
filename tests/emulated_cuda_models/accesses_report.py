"""Where the kernels of a model spend time by what they ask of a GPU's memories and units.

Times are what each part would take alone at the rates of the machine's description: estimates to
compare kernels with, not predictions.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cuda_emulation.accesses import KernelAccesses, Site

from tvm_ext.hardware.cuda.description import CudaDescription

# Exponentials a cycle of a multiprocessor: CUDA C++ Programming Guide, "Arithmetic Instructions".
_FUNCTIONS_PER_CYCLE = 16
# Bytes a cycle that L2 sends to one multiprocessor: C. Wei et al., "Dissecting the NVIDIA Hopper
# Architecture through Microbenchmarking", 2024, and NVIDIA's whitepapers since Volta.
_L2_BYTES_PER_CYCLE = 64
WORST_SITES = 3


@dataclass(frozen=True)
class KernelTimes:
    """Seconds of a launch's parts.

    Attributes
    ----------
    kernel : KernelAccesses
        What was counted.
    floor : float
        Its arrays, each moved once, or its matrix instructions if they take longer.
    sectors, wavefronts, functions : float
        Sectors at the rate of L2; they, wavefronts and exponentials at one multiprocessor's rate,
        for as many of them as there are blocks.
    """

    kernel: KernelAccesses
    floor: float
    sectors: float
    wavefronts: float
    functions: float

    @property
    def lost(self) -> float:
        """Seconds beyond the floor."""
        return max(self.sectors, self.wavefronts, self.functions) - self.floor


def kernel_times(kernel: KernelAccesses, machine: CudaDescription) -> KernelTimes:
    """The times of a launch that was counted."""
    hertz = machine.clock_ghz * 1e9
    busy = min(kernel.blocks, machine.sms) * hertz * kernel.share
    flops = 2 * kernel.multiply_adds / kernel.share
    floor = max(
        kernel.operand_bytes / machine.bandwidth(kernel.operand_bytes),
        flops / machine.peak_flops("float16"),
    )
    return KernelTimes(
        kernel,
        floor,
        sectors=max(
            kernel.moved_bytes / (machine.l2_gbs * 1e9),
            kernel.moved_bytes * kernel.share / (_L2_BYTES_PER_CYCLE * busy),
        ),
        wavefronts=kernel.wavefronts / busy,
        functions=kernel.functions / _FUNCTIONS_PER_CYCLE / busy,
    )


def report(kernels: Sequence[KernelAccesses], machine: CudaDescription, sites: int = 0) -> str:
    """A table with a line for every kernel, those that lose most in all launches first."""
    launches = Counter((kernel.name, kernel.grid) for kernel in kernels)
    first = {(kernel.name, kernel.grid): kernel for kernel in reversed(kernels)}
    found = [(launches[key], kernel_times(kernel, machine)) for key, kernel in first.items()]
    lines = [
        f"{len(kernels)} launches; microseconds if each part were alone",
        "   lost  floor  sectors  banks    exp  sectors/ideal  banks/ideal  bytes/operands  "
        "blocks  kernel",
    ]
    for count, time in sorted(found, key=lambda pair: -pair[0] * pair[1].lost):
        lines.append(_line(time, count))
        worst = sorted(time.kernel.sites, key=lambda site: -(site.cost - site.ideal))
        lines += [_site(time.kernel, s) for s in worst[:sites] if s.cost > s.ideal]
    return "\n".join(lines)


def _line(time: KernelTimes, launches: int) -> str:
    kernel = time.kernel
    parts = (time.lost, time.floor, time.sectors, time.wavefronts, time.functions)
    seconds = " ".join(f"{1e6 * part:7.2f}" for part in parts)
    moved = kernel.moved_bytes / max(1, kernel.operand_bytes)
    shown = f"{kernel.sectors_over_ideal:13.2f} {kernel.wavefronts_over_ideal:12.2f} {moved:15.2f}"
    threads = kernel.threads[0] * kernel.threads[1] * kernel.threads[2]
    failed = " FAILED" if kernel.failed else ""
    often = f" x {launches}" if launches > 1 else ""
    return f"{seconds} {shown} {kernel.blocks:7} {kernel.name} of {threads} threads{often}{failed}"


def _site(kernel: KernelAccesses, site: Site) -> str:
    """The line of a site in the CUDA code, and what it costs."""
    try:
        text = kernel.source.read_text().splitlines()[site.line - 1].strip()
    except (OSError, IndexError):
        text = ""
    kind = f"{site.memory} {'write' if site.write else 'read'} of {site.width}"
    return (
        f"        {site.cost / max(1, site.ideal):6.1f} x  {kind}, line {site.line}: {text[:150]}"
    )

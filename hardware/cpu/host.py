"""This machine as the target "cpu": what the system says of its CPU, and estimates for the rest.
And the CPU that a TVM target of kind llvm stands for.

The CPU name LLVM finds is used only if it stands for exactly the instructions that the CPU's own
flags name.
"""

import functools
import platform

import psutil
import tvm

from tvm_ext.configs.errors import TargetError
from tvm_ext.configs.loader import check_config
from tvm_ext.hardware.cpu.description import CpuDescription, llvm_features
from tvm_ext.hardware.cpu.features import architecture_of, vector_bits
from tvm_ext.hardware.cpu.system import (
    CpuFacts,
    cache_sizes,
    cpu_facts,
    host_cpu_name,
    usable_cores,
    usable_cpus,
)
from tvm_ext.hardware.targets import plain_attributes, presets_of
from tvm_ext.hardware.tvm_compat import llvm_codegen

# Names for "any CPU of this architecture with at least these features", the most demanding first.
_FEATURE_LEVELS = {
    "x86_64": ("x86-64-v4", "x86-64-v3", "x86-64-v2", "x86-64"),
    "aarch64": ("generic",),
}

# Estimates for what the system does not tell.
_CLOCK_GHZ = 2.5
_L1D_BYTES = 32 * 1024
_L2_BYTES = 512 * 1024
_CORE_MEMORY_GBS = 12.0
_MEMORY_GBS = 200.0
_CORE_L3_GBS = 24.0


@functools.cache
def host_description() -> CpuDescription:
    """This machine as the target "cpu"; the same object at every call.

    Instructions, caches and cores are read from the system. Clock (unless the system reports one),
    multiply-add units and bandwidths are estimates, and overheads are those measured on one other
    machine: no benchmark runs here. ``cores`` counts the processors this process may use, hardware
    threads included.
    """
    facts = cpu_facts()
    mtriple = host_triple(facts.architecture)
    mcpu, mattr = choose_cpu(mtriple, facts.features, str(llvm_codegen.llvm_get_system_cpu()))
    return describe_host(mtriple, mcpu, mattr)


def describe_host(mtriple: str, mcpu: str, mattr: tuple[str, ...]) -> CpuDescription:
    """This machine, running code built for the given CPU, whose features it must have.

    Raises :class:`TargetError` for names that LLVM does not know.
    """
    facts = cpu_facts()
    bits = vector_bits(facts.architecture, llvm_features(mtriple, mcpu, mattr))
    caches = cache_sizes(usable_cpus())
    cores = usable_cores()
    clock = clock_ghz() or _CLOCK_GHZ
    return CpuDescription(
        kind="cpu",
        name="cpu",
        summary=f"this machine: {host_cpu_name()}",
        mtriple=mtriple,
        mcpu=mcpu,
        mattr=mattr,
        cores=cores,
        clock_ghz=clock,
        vector_bits=bits,
        fma_units=fma_units(facts, bits),
        l1d_bytes=caches.l1d or _L1D_BYTES,
        l2_bytes=caches.l2 or _L2_BYTES,
        l3_bytes=caches.l3 or 0,
        memory_gbs=min(_MEMORY_GBS, cores * _CORE_MEMORY_GBS),
        core_memory_gbs=_CORE_MEMORY_GBS,
        # Half of one vector register a cycle.
        core_l2_gbs=max(_CORE_L3_GBS, bits / 8 * clock / 2),
        core_l3_gbs=_CORE_L3_GBS,
        kernel_overhead_us=0.26,
        # Waking takes 2; the rest is data that one core wrote and another reads.
        parallel_overhead_us=5.0,
    )


def clock_ghz() -> float | None:
    """The clock the system reports, the highest one if it knows it; None if it reports none."""
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError, RuntimeError):
        return None
    megahertz = (frequency.max or frequency.current) if frequency else 0
    # Apple silicon reports gigahertz in some releases of psutil.
    return megahertz / 1000 if megahertz > 100 else None


def choose_cpu(
    mtriple: str, features: frozenset[str], llvm_name: str
) -> tuple[str, tuple[str, ...]]:
    """The LLVM CPU name and ``mattr`` that together stand for exactly ``features``.

    ``llvm_name``, the name LLVM gives this machine, is taken if it fits; else the most demanding
    feature level that ``features`` cover, with the rest of them as ``mattr``.
    """
    known = llvm_codegen.llvm_is_valid_cpu(llvm_name, mtriple)
    if known and llvm_features(mtriple, llvm_name) == features:
        return llvm_name, ()
    for level in _FEATURE_LEVELS.get(mtriple.split("-")[0], ()):
        implied = llvm_features(mtriple, level)
        if implied <= features:
            return level, tuple(f"+{feature}" for feature in sorted(features - implied))
    return "generic", ()


def fma_units(facts: CpuFacts, bits: int) -> int:
    """Estimate of the full-width multiply-add instructions a core starts in a cycle.

    Two on most cores. One where there is no multiply-add and a multiply and an add start together,
    and for 512-bit vectors on AMD's Zen 3 and 4 family (25), which takes two cycles for them.
    A. Fog, "Instruction tables".
    """
    if facts.architecture == "x86_64" and "fma" not in facts.features:
        return 1
    if bits == 512 and facts.vendor == "AuthenticAMD" and facts.family == 25:
        return 1
    return 2


def host_triple(architecture: str) -> str:
    """The LLVM triple of this system; the wheel's own default names the toolchain it came from."""
    systems = {"Linux": "linux-gnu", "Darwin": "apple-darwin", "Windows": "pc-windows-msvc"}
    system = systems.get(platform.system())
    return f"{architecture}-{system}" if system else str(llvm_codegen.llvm_get_system_triple())


# Presets whose numbers stand in for a CPU known only by its features, the most demanding first.
_PRESETS = ("avx512-amx", "avx512", "avx2", "x86-64", "aarch64-neon")


def cpu_of_tvm_target(target: tvm.target.Target) -> CpuDescription:
    """Its own numbers, others of this machine or of the nearest preset.

    Raises TargetError for an architecture nothing is known of.
    """
    options = plain_attributes(target)
    mtriple = options.pop("mtriple", host_description().mtriple)
    mcpu = options.pop("mcpu", "generic")
    mattr = tuple(options.pop("mattr", ()))
    base = _closest(mtriple, mcpu, mattr)
    given = {
        "name": mcpu,
        "summary": f"given as a TVM target; numbers of '{base.name}'",
        "mtriple": mtriple,
        "mcpu": mcpu,
        "mattr": mattr,
        "vector_bits": vector_bits(base.architecture, llvm_features(mtriple, mcpu, mattr)),
        "cores": options.pop("num-cores", usable_cores()),
        "target_options": options,
    }
    return check_config(base.model_dump() | given, CpuDescription, "the TVM target")


def _closest(mtriple: str, mcpu: str, mattr: tuple[str, ...]) -> CpuDescription:
    """This machine if it can run such code, else the preset closest below the code's features."""
    architecture = architecture_of(mtriple)
    features = llvm_features(mtriple, mcpu, mattr)
    host = host_description()
    if host.architecture == architecture and features <= set(host.features):
        return describe_host(mtriple, mcpu, mattr)
    presets = {item.name: item for item in presets_of(CpuDescription)}
    for machine in map(presets.__getitem__, _PRESETS):
        if machine.architecture == architecture and features >= set(machine.features):
            return machine
    raise TargetError(
        f"nothing is known about CPU '{mcpu}' of architecture '{architecture}'; "
        f"expected x86_64 or aarch64, or describe the CPU in a .toml file"
    )

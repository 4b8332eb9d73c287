"""What the operating system says of this machine's CPU: flags, caches and usable cores.

Nothing is measured, and TVM is not imported: loading a saved model asks here. Every question has an
answer: what cannot be found out is None.
"""

import ctypes
import functools
import math
import os
import pathlib
import platform
import re
import subprocess
from dataclasses import dataclass, replace

from tvm_ext.hardware.cpu.features import architecture_of, features_from_flags

_CPUINFO = pathlib.Path("/proc/cpuinfo")
_SYSTEM_CPUS = pathlib.Path("/sys/devices/system/cpu")
_CGROUP = pathlib.Path("/sys/fs/cgroup")
_OWN_CGROUPS = pathlib.Path("/proc/self/cgroup")

# Where users say how many threads to use; the first that does counts, as in TVM.
_THREADS = ("TVM_NUM_THREADS", "OMP_NUM_THREADS")

# Flags of macOS: `sysctl machdep.cpu` on Intel, `sysctl hw.optional.arm` on Apple silicon, by the
# names Linux gives them.
_MACOS_X86_FLAGS = {
    "SSE3": "pni",
    "SSSE3": "ssse3",
    "SSE4.1": "sse4_1",
    "SSE4.2": "sse4_2",
    "AVX1.0": "avx",
    "BMI1": "bmi1",
    "BMI2": "bmi2",
    "LZCNT": "abm",
    "LAHF": "lahf_lm",
}
_MACOS_ARM_FLAGS = {
    "FEAT_AES": "aes",
    "FEAT_SHA256": "sha2",
    "FEAT_SHA3": "sha3",
    "FEAT_CRC32": "crc32",
    "FEAT_LSE": "atomics",
    "FEAT_RDM": "asimdrdm",
    "FEAT_FP16": "asimdhp",
    "FEAT_FHM": "asimdfhm",
    "FEAT_DotProd": "asimddp",
    "FEAT_JSCVT": "jscvt",
    "FEAT_FCMA": "fcma",
    "FEAT_LRCPC": "lrcpc",
    "FEAT_I8MM": "i8mm",
    "FEAT_BF16": "bf16",
}
# What every CPU of the architecture has, listed by macOS or not.
BASELINE_FLAGS = {
    "x86_64": {"cx8", "cmov", "sse", "sse2"},
    "aarch64": {"fp", "asimd"},
}


@dataclass(frozen=True)
class CpuFacts:
    """What /proc/cpuinfo, or its like, says about the CPU."""

    architecture: str
    features: frozenset[str]
    """LLVM feature names."""
    vendor: str = ""
    family: int = 0
    model_name: str = ""


@dataclass(frozen=True)
class CacheSizes:
    """Data caches in bytes, None where unknown: L1 and L2 of one core, L3 of all usable cores."""

    l1d: int | None = None
    l2: int | None = None
    l3: int | None = None


@functools.cache
def cpu_facts() -> CpuFacts:
    """Facts about this machine's CPU; no feature beyond the baseline where none can be read."""
    architecture = architecture_of(platform.machine())
    if platform.system() == "Darwin":
        return _macos_facts(architecture)
    facts = parse_cpuinfo(_read(_CPUINFO), architecture)
    tiles = {name for name in facts.features if name.startswith("amx-")}
    if tiles and not _may_use_tiles():
        return replace(facts, features=facts.features - tiles)
    return facts


# System call arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) of Linux on x86-64: a process asks
# once for the registers; asking again does nothing, in a seventh of a microsecond.
TILE_PERMISSION = (158, 0x1023, 18)


def _may_use_tiles() -> bool:
    """Whether the system lets this process use the tile registers of AMX: some sandboxes do not."""
    return int(ctypes.CDLL(None).syscall(*TILE_PERMISSION)) == 0


def host_cpu_features() -> frozenset[str]:
    """LLVM names of the instruction features this machine's CPU shows, such as "avx512f"."""
    return cpu_facts().features


def host_cpu_name() -> str:
    """The processor's name as the system gives it, else its architecture."""
    facts = cpu_facts()
    return facts.model_name or facts.architecture


def parse_cpuinfo(text: str, architecture: str) -> CpuFacts:
    """Facts from the text of /proc/cpuinfo; of features, those that every processor in it has."""
    values: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        values.setdefault(key.strip(), []).append(value.strip())
    baseline = BASELINE_FLAGS.get(architecture, set())
    lists = [set(value.split()) for value in values.get("flags", []) + values.get("Features", [])]
    flags = set.intersection(*lists) if lists else set()
    family = values.get("cpu family", ["0"])[0]
    return CpuFacts(
        architecture=architecture,
        features=features_from_flags(architecture, flags | baseline),
        vendor=values.get("vendor_id", [""])[0],
        family=int(family) if family.isdigit() else 0,
        model_name=values.get("model name", [""])[0],
    )


def cache_sizes(cpus: frozenset[int]) -> CacheSizes:
    """Data caches of the given processors, from sysfs on Linux and sysctl on macOS."""
    if platform.system() == "Darwin":
        names = ("hw.l1dcachesize", "hw.l2cachesize", "hw.l3cachesize")
        return CacheSizes(*(_positive(_sysctl(name)) for name in names))
    return read_sysfs_caches(_SYSTEM_CPUS, cpus)


def read_sysfs_caches(root: pathlib.Path, cpus: frozenset[int]) -> CacheSizes:
    """Data caches below ``root``; each distinct L3 that one of ``cpus`` uses counts once."""
    private: dict[str, int] = {}
    shared: dict[str, int] = {}
    for cpu in sorted(cpus):
        for index in (root / f"cpu{cpu}" / "cache").glob("index*"):
            size = _parse_size(_read(index / "size"))
            if size is None or _read(index / "type") == "Instruction":
                continue
            level = _read(index / "level")
            if level == "3":
                shared[_read(index / "shared_cpu_list")] = size
            else:
                private.setdefault(level, size)
    return CacheSizes(private.get("1"), private.get("2"), sum(shared.values()) or None)


def usable_cpus() -> frozenset[int]:
    """Numbers of the processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many processors this process may keep busy.

    Those of its affinity, or fewer by a cgroup's CPU quota and by what users of TVM and OpenMP set.
    """
    counts = [len(usable_cpus())]
    quota = read_cgroup_quota(_CGROUP, _read(_OWN_CGROUPS))
    if quota is not None:
        counts.append(math.ceil(quota))
    for variable in _THREADS:
        # OpenMP's may have a count for each level of nesting; TVM's goes before it.
        first = os.environ.get(variable, "").split(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            counts.append(int(first))
            break
    return max(1, min(counts))


def read_cgroup_quota(root: pathlib.Path, memberships: str) -> float | None:
    """The CPU quota, in processors, of a process's control groups; None if it is unlimited.

    Parameters
    ----------
    root : Path
        Where control groups are mounted; in a container, its own group.
    memberships : str
        ``/proc/self/cgroup``: a line ``number:controllers:path`` for each hierarchy.
    """
    groups = [(root, pathlib.PurePosixPath("/")), (root / "cpu", pathlib.PurePosixPath("/"))]
    for line in memberships.splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers or "cpu" in controllers.split(","):
            groups.append((root / "cpu" if controllers else root, pathlib.PurePosixPath(path)))
    quotas = [
        _quota_of(mount / str(group).lstrip("/"))
        for mount, own in groups
        for group in (own, *own.parents)
    ]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_of(group: pathlib.Path) -> float | None:
    v2 = _read(group / "cpu.max").split()
    v1 = [_read(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    for quota, period in (part for part in (v2, v1) if len(part) == 2):
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            return int(quota) / int(period)
    return None


def _macos_facts(architecture: str) -> CpuFacts:
    flags = set(BASELINE_FLAGS.get(architecture, set()))
    if architecture == "aarch64":
        flags |= {
            flag
            for name, flag in _MACOS_ARM_FLAGS.items()
            if _sysctl(f"hw.optional.arm.{name}") == "1"
        }
    else:
        keys = ("features", "leaf7_features", "extfeatures")
        words = " ".join(_sysctl(f"machdep.cpu.{key}") for key in keys).split()
        flags |= {_MACOS_X86_FLAGS.get(word, word.lower()) for word in words}
    features = features_from_flags(architecture, flags)
    return CpuFacts(architecture, features, model_name=_sysctl("machdep.cpu.brand_string"))


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _positive(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) > 0 else None


def _parse_size(text: str) -> int | None:
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    if not match:
        return None
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]

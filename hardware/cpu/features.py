"""Instruction-set features: from the names an operating system uses to LLVM's.

Only features whose instructions a compiler emits by itself or through intrinsics are of interest.
System instructions (cache write-back, protection keys, ...) are left out: a virtual machine hides
them freely, and compiled kernels never contain them.
"""

from typing import Literal

VectorBits = Literal[128, 256, 512]

# Flag in Linux's /proc/cpuinfo -> LLVM features it stands for (arch/x86/include/asm/cpufeatures.h
# and LLVM's X86.td).
X86_FLAGS: dict[str, tuple[str, ...]] = {
    "cx8": ("cx8",),
    "cmov": ("cmov",),
    "sse": ("sse",),
    "sse2": ("sse2",),
    "pni": ("sse3",),
    "ssse3": ("ssse3",),
    "sse4_1": ("sse4.1",),
    "sse4_2": ("sse4.2", "crc32"),
    "sse4a": ("sse4a",),
    "cx16": ("cx16",),
    "lahf_lm": ("sahf",),
    "popcnt": ("popcnt",),
    "abm": ("lzcnt",),
    "movbe": ("movbe",),
    "bmi1": ("bmi",),
    "bmi2": ("bmi2",),
    "tbm": ("tbm",),
    "adx": ("adx",),
    "aes": ("aes",),
    "pclmulqdq": ("pclmul",),
    "sha_ni": ("sha",),
    "gfni": ("gfni",),
    "vaes": ("vaes",),
    "vpclmulqdq": ("vpclmulqdq",),
    "avx": ("avx",),
    "f16c": ("f16c",),
    "fma": ("fma",),
    "fma4": ("fma4",),
    "xop": ("xop",),
    "avx2": ("avx2",),
    "avx_vnni": ("avxvnni",),
    "avx_ifma": ("avxifma",),
    "avx_vnni_int8": ("avxvnniint8",),
    "avx_vnni_int16": ("avxvnniint16",),
    "avx_ne_convert": ("avxneconvert",),
    "avx512f": ("avx512f",),
    "avx512cd": ("avx512cd",),
    "avx512bw": ("avx512bw",),
    "avx512dq": ("avx512dq",),
    "avx512vl": ("avx512vl",),
    "avx512ifma": ("avx512ifma",),
    "avx512vbmi": ("avx512vbmi",),
    "avx512_vbmi2": ("avx512vbmi2",),
    "avx512_vnni": ("avx512vnni",),
    "avx512_bitalg": ("avx512bitalg",),
    "avx512_vpopcntdq": ("avx512vpopcntdq",),
    "avx512_vp2intersect": ("avx512vp2intersect",),
    "avx512_bf16": ("avx512bf16",),
    "avx512_fp16": ("avx512fp16",),
    "amx_tile": ("amx-tile",),
    "amx_int8": ("amx-int8",),
    "amx_bf16": ("amx-bf16",),
    "amx_fp16": ("amx-fp16",),
    "amx_complex": ("amx-complex",),
}

# The same for AArch64: Linux's "Features" line (Documentation/arch/arm64/elf_hwcaps.rst).
AARCH64_FLAGS: dict[str, tuple[str, ...]] = {
    "fp": ("fp-armv8",),
    "asimd": ("neon",),
    "aes": ("aes",),
    "sha2": ("sha2",),
    "sha3": ("sha3",),
    "crc32": ("crc",),
    "atomics": ("lse",),
    "asimdrdm": ("rdm",),
    "asimdhp": ("fullfp16",),
    "asimdfhm": ("fp16fml",),
    "asimddp": ("dotprod",),
    "jscvt": ("jsconv",),
    "fcma": ("complxnum",),
    "lrcpc": ("rcpc",),
    "i8mm": ("i8mm",),
    "bf16": ("bf16",),
    "sve": ("sve",),
    "sve2": ("sve2",),
}

FLAGS = {"x86_64": X86_FLAGS, "aarch64": AARCH64_FLAGS}

_ARCHITECTURE_NAMES = {"amd64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


def architecture_of(name: str) -> str:
    """The architecture of a machine name or LLVM triple: "arm64-apple-darwin" is "aarch64"."""
    architecture = name.split("-")[0].lower()
    return _ARCHITECTURE_NAMES.get(architecture, architecture)


def features_from_flags(architecture: str, flags: set[str]) -> frozenset[str]:
    """LLVM feature names for the operating system's ``flags``; unknown flags are passed over."""
    table = FLAGS.get(architecture, {})
    return frozenset(feature for flag in flags for feature in table.get(flag, ()))


def vector_bits(architecture: str, features: frozenset[str]) -> VectorBits:
    """Width in bits of the vector registers that ``features`` give.

    Scalable vectors (SVE) count as 128: their width is unknown until run time.
    """
    if architecture == "x86_64" and "avx512f" in features:
        return 512
    if architecture == "x86_64" and "avx" in features:
        return 256
    return 128

"""CUDA code as C++ that a host compiler takes: same lines, other words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cuda_emulation.assembly import without_assembly

_SIZES = {
    "char": 1, "signed char": 1, "uchar": 1, "unsigned char": 1, "int8_t": 1, "uint8_t": 1,
    "bool": 1, "half": 2, "nv_bfloat16": 2, "short": 2, "ushort": 2, "unsigned short": 2,
    "int16_t": 2, "uint16_t": 2, "int": 4, "uint": 4, "unsigned int": 4, "unsigned": 4,
    "int32_t": 4, "uint32_t": 4, "float": 4, "double": 8, "int64_t": 8, "uint64_t": 8,
    "half2": 4, "half4": 8, "float2": 8, "float4": 16, "int2": 8, "int4": 16, "uint2": 8,
    "uint4": 16, "nv_bfloat162": 4, "nv_bfloat164": 8,
}  # fmt: skip

_ALIGNED = r"(?:alignas\((?P<alignas>\d+)\)|__align__\((?P<align>\d+)\))?\s*"
_STATIC = re.compile(rf"__shared__ {_ALIGNED}(?P<type>[\w ]+?) (?P<name>\w+)\[(?P<count>\d+)\];")
_DYNAMIC = re.compile(rf"extern __shared__ {_ALIGNED}(?P<type>[\w ]+?) (?P<name>\w+)\[\];")
_KERNEL = re.compile(
    r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) |__maxnreg__\(\d+\) )?'
    r"(?P<name>\w+)\((?P<parameters>[^)]*)\) \{"
)


@dataclass(frozen=True)
class Kernel:
    """A kernel of CUDA code.

    Attributes
    ----------
    name : str
        The function.
    parameters : tuple[str, ...]
        C++ types.
    static_shared : int
        Bytes of shared memory of fixed size.
    dynamic_alignment : int
        Alignment in bytes of the shared memory that the launch sizes.
    """

    name: str
    parameters: tuple[str, ...]
    static_shared: int
    dynamic_alignment: int


def rewritten(source: str) -> tuple[str, list[Kernel]]:
    """C++ with the lines of ``source``, and its kernels.

    Raises
    ------
    AssemblyError
        Inline assembly that the emulator does not know.
    """
    source = without_assembly(source)
    heads = list(_KERNEL.finditer(source))
    parts = [source[: heads[0].start()] if heads else source]
    kernels = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        end = following.start() if following is not None else len(source)
        body, kernel = _kernel(head, source[head.start() : end])
        parts.append(body)
        kernels.append(kernel)
    return "".join(parts), kernels


def _kernel(head: re.Match[str], text: str) -> tuple[str, Kernel]:
    used, alignment = 0, 16

    def static(match: re.Match[str]) -> str:
        nonlocal used
        size = _SIZES[match["type"]]
        aligned = int(match["alignas"] or match["align"] or size)
        offset = -(-used // aligned) * aligned
        used = offset + size * int(match["count"])
        array = f"{match['type']} (&{match['name']})[{match['count']}]"
        pointer = f"({match['type']} (*)[{match['count']}])"
        return f"{array} = *{pointer}emu::static_shared({offset}, {used - offset});"

    def dynamic(match: re.Match[str]) -> str:
        nonlocal alignment
        alignment = int(match["alignas"] or match["align"] or 16)
        return f"{match['type']}* {match['name']} = ({match['type']}*)emu::dynamic_shared();"

    text = _STATIC.sub(static, _DYNAMIC.sub(dynamic, text))
    parameters = tuple(_type_of(p) for p in head["parameters"].split(",") if p.strip())
    return text, Kernel(head["name"], parameters, used, alignment)


def _type_of(parameter: str) -> str:
    without_name = re.sub(r"\w+\s*$", "", parameter.strip())
    return re.sub(r"__restrict__|__grid_constant__", "", without_name).strip()


# A function of TVM's calling convention for each kernel: arguments, then launch parameters.
_GLUE_HEAD = r"""
struct EmuAny { int32_t type; uint32_t padding; union { int64_t i; double f; void* p; }; };
extern "C" void TVMFFIErrorSetRaisedFromCStr(const char*, const char*);
struct EmuArguments { void** pointers; const EmuAny* all; };
// A tensor map of the copy of an array that kernels get.
__attribute__((no_sanitize("thread"))) static CUtensorMap emu_placed(const void* map, void* base) {
  CUtensorMap found = *(const CUtensorMap*)map;
  found.base = (uint64_t)base;
  return found;
}
"""


def glue(kernels: Sequence[Kernel], launch_tags: Mapping[str, Sequence[str]]) -> str:
    """C++ that exports the kernels as functions of a TVM module."""
    return _GLUE_HEAD + "".join(_glue(kernel, launch_tags[kernel.name]) for kernel in kernels)


def _glue(kernel: Kernel, tags: Sequence[str]) -> str:
    pointers = [
        i for i, kind in enumerate(kernel.parameters) if kind.endswith("*") or _is_map(kind)
    ]
    values = []
    for i, kind in enumerate(kernel.parameters):
        if _is_map(kind):
            values.append(f"emu_placed(a.all[{i}].p, a.pointers[{pointers.index(i)}])")
        elif i in pointers:
            values.append(f"({kind})a.pointers[{pointers.index(i)}]")
        else:
            values.append(f"({kind})a.all[{i}].{'f' if kind in ('float', 'double') else 'i'}")
    settings, at = [], len(kernel.parameters)
    for tag in tags:
        place = _launch_place(tag)
        if place is not None:
            settings.append(f"what.{place} = args[{at}].i;")
            at += 1
    listed = ", ".join(
        f"(void*)((const CUtensorMap*)args[{i}].p)->base"
        if _is_map(kernel.parameters[i])
        else f"args[{i}].p"
        for i in pointers
    )
    listed = listed or "nullptr"
    return f"""
extern "C" __attribute__((visibility("default"), no_sanitize("thread")))
int __tvm_ffi_{kernel.name}(void*, const EmuAny* args, int32_t, EmuAny*) {{
  void* pointers[] = {{{listed}}};
  EmuArguments arguments{{pointers, args}};
  emu::Launch what{{"{kernel.name}", (const void*)&{kernel.name}, {{1, 1, 1}}, {{1, 1, 1}},
                   {kernel.static_shared}, 0, {kernel.dynamic_alignment},
                   pointers, {len(pointers)}}};
  {" ".join(settings)}
  auto body = [](void* data) __attribute__((no_sanitize("thread"))) {{
    EmuArguments& a = *(EmuArguments*)data;
    {kernel.name}({", ".join(values)});
  }};
  if (emu::launch(what, body, &arguments) == 0) return 0;
  TVMFFIErrorSetRaisedFromCStr("CudaEmulationError", emu::error());
  return -1;
}}
"""


def _is_map(kind: str) -> bool:
    return kind.endswith("CUtensorMap")


def _launch_place(tag: str) -> str | None:
    """Where a launch parameter goes; None for those that are only flags."""
    if tag == "tirx.use_dyn_shared_memory":
        return "dynamic_shared"
    kind, _, axis = tag.partition(".")
    fields = {"blockIdx": "grid", "threadIdx": "block", "clusterCtaIdx": "cluster"}
    if kind in fields and axis in ("x", "y", "z"):
        return f"{fields[kind]}[{'xyz'.index(axis)}]"
    if tag.startswith("tirx.use_"):
        return None
    raise ValueError(f"launch parameter {tag} is not known to the emulator")

"""Results that what follows takes in 16 bits: rounded first, two to a register, then exchanged."""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.device_functions import call_statement

_C_TYPES = {"float16": ("half", "__half"), "bfloat16": ("nv_bfloat16", "__bfloat16")}

DTYPES = tuple(_C_TYPES)
"""Types that results can be packed in."""


def pack_columns(results: Any, packed: Any, columns: int, dtype: str) -> tirx.Stmt:
    """Writes ``results``, rounded to ``dtype``, to ``packed`` with 8 neighbouring columns a thread.

    The exchange of ``warp_group_instructions.gather_columns``, with half as many shuffles: both of
    the neighbours that a thread has are in one register. Places are those of ``position``.

    Parameters
    ----------
    results, packed : pointer
        ``columns / 2`` float32, and as many of ``dtype``.
    columns : int
        Of the tile.
    dtype : str
        One of ``DTYPES``.
    """
    c_type, prefix = _C_TYPES[dtype]
    body = (
        "const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;\n"
        "  auto swap = [](unsigned& first, unsigned& second, bool upper, int distance) {\n"
        "    const unsigned given = upper ? first : second;\n"
        "    const unsigned taken = __shfl_xor_sync(0xffffffffu, given, distance);\n"
        "    first = upper ? taken : first;\n"
        "    second = upper ? second : taken;\n"
        "  };\n"
        "  #pragma unroll\n"
        f"  for (int i = 0; i < {columns // 2}; i += 16) {{\n"
        "    unsigned p[8];\n"
        "    #pragma unroll\n"
        "    for (int e = 0; e < 8; ++e) {\n"
        f"      const unsigned low = {prefix}_as_ushort(({c_type})d[i + 2 * e]);\n"
        f"      p[e] = low | (unsigned){prefix}_as_ushort(({c_type})d[i + 2 * e + 1]) << 16;\n"
        "    }\n"
        "    #pragma unroll\n"
        "    for (int e = 0; e < 2; ++e) {\n"
        "      swap(p[e], p[2 + e], odd, 1);\n"
        "      swap(p[4 + e], p[6 + e], odd, 1);\n"
        "      swap(p[e], p[4 + e], high, 2);\n"
        "      swap(p[2 + e], p[6 + e], high, 2);\n"
        "    }\n"
        "    #pragma unroll\n"
        "    for (int e = 0; e < 8; ++e) {\n"
        f"      h[i + 2 * e] = __ushort_as{prefix[1:]}((unsigned short)p[e]);\n"
        f"      h[i + 2 * e + 1] = __ushort_as{prefix[1:]}((unsigned short)(p[e] >> 16));\n"
        "    }\n"
        "  }"
    )
    name = f"tvm_ext_pack_columns_{columns}_{dtype}"
    return call_statement(name, f"float* d, {c_type}* h", body, results, packed)

"""float32 rounded to tf32, the 10 bits of mantissa that tensor cores take of it."""

from typing import Any

from tvm.backend.cuda.op import cuda_func_call

_NAME = "tvm_ext_rounded_to_tf32"

# No ``volatile``: what is rounded twice may be rounded once.
_SOURCE = f"""static __device__ __forceinline__ float {_NAME}(float x) {{
  unsigned rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return __uint_as_float(rounded);
}}
"""


def rounded_to_tf32(value: Any) -> Any:
    """The tf32 nearest to ``value``, float32, and of two as near the larger: PTX ISA, "cvt".

    Matrix instructions do not look at the last 13 bits. Left to them, products would be of operands
    that are too small by half a step on average, with twice the error and always to one side.
    """
    return cuda_func_call(_NAME, value, source_code=_SOURCE, return_type="float32")

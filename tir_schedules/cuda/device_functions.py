"""Calls of device functions whose CUDA code the kernel brings along."""

from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call


def call_statement(name: str, params: str, body: str, *args: Any) -> tirx.Stmt:
    """A call of a function that returns nothing; see ``call_device_function``."""
    return tirx.Evaluate(call_device_function(name, "void", params, body, *args, dtype="void"))


def call_device_function(
    name: str, returned: str, params: str, body: str, *args: Any, dtype: str
) -> Any:
    """A call of the function ``name``, which is always inlined.

    Parameters
    ----------
    name : str
        Functions of one name are one: other code needs another name.
    returned, params, body : str
        CUDA C++: the type of the result, parameters, and statements.
    args : expressions
        Arguments.
    dtype : str
        Of the result in TIR.
    """
    source = f"static __device__ __forceinline__ {returned} {name}({params}) {{\n  {body}\n}}\n"
    return cuda_func_call(name, *args, source_code=source, return_type=dtype)


def in_use(pointer: Any) -> tirx.Stmt:
    """Says that a kernel uses an array of which it is only given a tensor map.

    Without it TVM 0.27 has the array end where its map is made, and puts another one there.
    """
    body = 'asm volatile("" :: "l"(p));'
    return call_statement("tvm_ext_in_use", "const void* p", body, pointer)

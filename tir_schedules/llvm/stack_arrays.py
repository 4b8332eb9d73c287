"""Small arrays that LLVM keeps in registers."""

from typing import Any

from tvm import tirx

# The name that TVM gives to "leave this small array on the stack".
_ON_STACK = {"disable_lower_tvm_builtin": True}


def stack_array(size: Any, dtype: str, name: str) -> tuple[Any, tirx.Stmt]:
    """An array of ``size`` elements, and the statement that declares it for what follows."""
    array = tirx.decl_buffer((size,), dtype, name)
    return array, tirx.AllocBuffer(array, annotations=_ON_STACK)

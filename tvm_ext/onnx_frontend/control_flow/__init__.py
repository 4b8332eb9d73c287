"""If and Loop as private functions of the Relax module, one for each body."""

from collections.abc import Callable
from typing import Any

from tvm_ext.onnx_frontend.control_flow.convert_if import convert_if
from tvm_ext.onnx_frontend.control_flow.convert_loop import convert_loop

# Called with the importer, the node's name, its inputs and its attributes.
CONTROL_FLOW: dict[str, Callable[..., Any]] = {"If": convert_if, "Loop": convert_loop}

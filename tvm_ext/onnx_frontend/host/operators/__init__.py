"""Our host operators: one file a family. What is not here the onnx package's reference computes.

The keys are those of ``operator_key``. Ours are there where the reference gives something else than
ONNX Runtime, or takes long for what every classifier ends with.
"""

from tvm_ext.onnx_frontend.host.operators.containers import CONTAINER_OPERATORS
from tvm_ext.onnx_frontend.host.operators.images import IMAGE_OPERATORS
from tvm_ext.onnx_frontend.host.operators.labels import LABEL_OPERATORS
from tvm_ext.onnx_frontend.host.operators.operator import HostOperator
from tvm_ext.onnx_frontend.host.operators.strings import HASHES, STRING_OPERATORS, TOKENIZERS

HOST_OPERATORS: dict[str, HostOperator] = {
    **CONTAINER_OPERATORS,
    **HASHES,
    **IMAGE_OPERATORS,
    **LABEL_OPERATORS,
    **STRING_OPERATORS,
    **TOKENIZERS,
}

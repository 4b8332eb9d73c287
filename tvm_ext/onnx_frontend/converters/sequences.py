"""TVM's converters that give sequences."""

from typing import Any

from tvm_ext.onnx_frontend.converters.traits import of_tvm

SEQUENCE_CONVERTERS: dict[str, Any] = {
    "ConcatFromSequence": of_tvm("ConcatFromSequence", sequence=True),
    "Optional": of_tvm("Optional", sequence=True),
    "OptionalGetElement": of_tvm("OptionalGetElement", sequence=True),
    "SequenceConstruct": of_tvm("SequenceConstruct", sequence=True),
    "SequenceEmpty": of_tvm("SequenceEmpty", sequence=True),
    "SequenceErase": of_tvm("SequenceErase", sequence=True),
    "SequenceInsert": of_tvm("SequenceInsert", sequence=True),
    "SplitToSequence": of_tvm("SplitToSequence", sequence=True),
}

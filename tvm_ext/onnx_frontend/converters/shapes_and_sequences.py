"""TVM's converters that read shapes or give sequences, as they are, and said of each."""

from typing import Any

from tvm_ext.onnx_frontend.converters.traits import Shapes, of_tvm

SHAPE_AND_SEQUENCE_CONVERTERS: dict[str, Any] = {
    "Concat": of_tvm("Concat", shapes=Shapes.AMONG_THEMSELVES),
    "ConcatFromSequence": of_tvm("ConcatFromSequence", sequence=True),
    "Identity": of_tvm("Identity", shapes=Shapes.AS_THEY_ARE),
    "Optional": of_tvm("Optional", sequence=True),
    "OptionalGetElement": of_tvm("OptionalGetElement", sequence=True),
    "SequenceConstruct": of_tvm("SequenceConstruct", sequence=True),
    "SequenceEmpty": of_tvm("SequenceEmpty", sequence=True),
    "SequenceErase": of_tvm("SequenceErase", sequence=True),
    "SequenceInsert": of_tvm("SequenceInsert", sequence=True),
    "Shape": of_tvm("Shape", shapes=Shapes.AS_THEY_ARE),
    "SplitToSequence": of_tvm("SplitToSequence", sequence=True),
    "Where": of_tvm("Where", shapes=Shapes.AMONG_THEMSELVES),
}

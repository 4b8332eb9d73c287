"""Our converters, asked before TVM's: one file an operator family.

Each says in its docstring what TVM's converter lacks or gets wrong. The keys are those of
``operator_key``: ``Name`` in the default domain, ``domain::Name`` in every other.
"""

from typing import Any

from tvm_ext.onnx_frontend.converters.activations import (
    SMOOTH_ACTIVATIONS,
    HardSwish,
    Sign,
    ThresholdedRelu,
)
from tvm_ext.onnx_frontend.converters.arguments import of_tvm
from tvm_ext.onnx_frontend.converters.cast import Cast, CastLike
from tvm_ext.onnx_frontend.converters.col2im import Col2Im
from tvm_ext.onnx_frontend.converters.convolution_and_pooling import (
    AveragePool,
    Conv,
    ConvTranspose,
    LpPool,
    MaxPool,
    MaxUnpool,
)
from tvm_ext.onnx_frontend.converters.deformable_convolution import DeformConv
from tvm_ext.onnx_frontend.converters.determinant import Det
from tvm_ext.onnx_frontend.converters.elementwise import (
    CONDITIONS,
    ELEMENTARY,
    ROUNDED_CONVERTERS,
    Clip,
    Div,
    IsInf,
    MatMul,
    Max,
    Mean,
    Min,
    Mod,
    Sum,
)
from tvm_ext.onnx_frontend.converters.gather_scatter import (
    AppendRows,
    Gather,
    GatherElements,
    GatherND,
    OneHot,
    ReverseSequence,
    ScatterElements,
    ScatterND,
    TensorScatter,
)
from tvm_ext.onnx_frontend.converters.grid_sample import GridSample
from tvm_ext.onnx_frontend.converters.mixture_of_experts import EXPERT_CONVERTERS
from tvm_ext.onnx_frontend.converters.ml import ML_CONVERTERS
from tvm_ext.onnx_frontend.converters.non_max_suppression import NonMaxSuppression
from tvm_ext.onnx_frontend.converters.nonzero import Compress, NonZero
from tvm_ext.onnx_frontend.converters.pad_and_split import CenterCropPad, Pad, Split
from tvm_ext.onnx_frontend.converters.quantization import QUANTIZE_CONVERTERS
from tvm_ext.onnx_frontend.converters.random import RANDOM_CONVERTERS, Dropout
from tvm_ext.onnx_frontend.converters.recurrent import GRU, LSTM, RNN
from tvm_ext.onnx_frontend.converters.reductions import (
    ARG_EXTREMES,
    REDUCTIONS,
    CumProd,
    CumSum,
    LayerNormalization,
)
from tvm_ext.onnx_frontend.converters.resize import Resize
from tvm_ext.onnx_frontend.converters.sampling import AffineGrid, RoiAlign
from tvm_ext.onnx_frontend.converters.shape_operators import (
    ConstantOfShape,
    Expand,
    EyeLike,
    Range,
    Reshape,
    SpaceToDepth,
    Squeeze,
    Tile,
)
from tvm_ext.onnx_frontend.converters.signal import (
    DFT,
    STFT,
    BlackmanWindow,
    HammingWindow,
    HannWindow,
    MelWeightMatrix,
)
from tvm_ext.onnx_frontend.converters.slice import Slice
from tvm_ext.onnx_frontend.converters.tfidf import TfIdfVectorizer
from tvm_ext.onnx_frontend.converters.top_k import TopK
from tvm_ext.onnx_frontend.converters.training import TRAINING_CONVERTERS, BatchNormalization
from tvm_ext.onnx_frontend.onnx_graph import INTERNAL

# The table of the shape, index, image and detection operators; see the files of the families.


SHAPE_AND_DETECTION_CONVERTERS: dict[str, Any] = {
    "AveragePool": AveragePool,
    "CenterCropPad": CenterCropPad,
    "ConstantOfShape": ConstantOfShape,
    "Conv": Conv,
    "ConvTranspose": ConvTranspose,
    "CumProd": CumProd,
    "CumSum": CumSum,
    "Expand": Expand,
    "EyeLike": EyeLike,
    "Pad": Pad,
    "Range": Range,
    "Reshape": Reshape,
    "Resize": Resize,
    "Slice": Slice,
    "Split": Split,
    "Tile": Tile,
    "NonMaxSuppression": NonMaxSuppression,
    "NonZero": NonZero,
    "TopK": TopK,
    "Div": Div,
    "Mod": Mod,
    "IsInf": IsInf,
    "BatchNormalization": BatchNormalization,
    "SpaceToDepth": SpaceToDepth,
    "Col2Im": Col2Im,
    "LpPool": LpPool,
    "MaxPool": MaxPool,
    "MaxUnpool": MaxUnpool,
    "ReverseSequence": ReverseSequence,
    "TensorScatter": TensorScatter,
    f"{INTERNAL}::AppendRows": AppendRows,
    "Det": Det,
    "AffineGrid": AffineGrid,
    "DeformConv": DeformConv,
    "GridSample": GridSample,
    "RoiAlign": RoiAlign,
}


# TVM's converters that give sequences.


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


CONVERTERS: dict[str, Any] = {
    **ARG_EXTREMES,
    **CONDITIONS,
    **ELEMENTARY,
    **EXPERT_CONVERTERS,
    **ML_CONVERTERS,
    **QUANTIZE_CONVERTERS,
    **ROUNDED_CONVERTERS,
    **REDUCTIONS,
    **RANDOM_CONVERTERS,
    **SHAPE_AND_DETECTION_CONVERTERS,
    **SEQUENCE_CONVERTERS,
    **TRAINING_CONVERTERS,
    **SMOOTH_ACTIVATIONS,
    "BlackmanWindow": BlackmanWindow,
    "Cast": Cast,
    "CastLike": CastLike,
    "Clip": Clip,
    "Compress": Compress,
    "DFT": DFT,
    "Dropout": Dropout,
    "GRU": GRU,
    "Gather": Gather,
    "GatherElements": GatherElements,
    "GatherND": GatherND,
    "HammingWindow": HammingWindow,
    "HannWindow": HannWindow,
    "HardSwish": HardSwish,
    "LSTM": LSTM,
    "LayerNormalization": LayerNormalization,
    "MatMul": MatMul,
    "Max": Max,
    "Mean": Mean,
    "MelWeightMatrix": MelWeightMatrix,
    "Min": Min,
    "OneHot": OneHot,
    "RNN": RNN,
    "STFT": STFT,
    "ScatterElements": ScatterElements,
    "ScatterND": ScatterND,
    "Sign": Sign,
    "Squeeze": Squeeze,
    "Sum": Sum,
    "ThresholdedRelu": ThresholdedRelu,
    "TfIdfVectorizer": TfIdfVectorizer,
}

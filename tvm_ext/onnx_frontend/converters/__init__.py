"""Our converters, asked before TVM's: one file an operator family.

Each says in its docstring what TVM's converter lacks or gets wrong. The keys are those of
``operator_key``: ``Name`` in the default domain, ``domain::Name`` in every other.
"""

from typing import Any

from tvm_ext.onnx_frontend.converters.arg_extremes import ARG_EXTREMES
from tvm_ext.onnx_frontend.converters.cast import Cast, CastLike
from tvm_ext.onnx_frontend.converters.clip import Clip
from tvm_ext.onnx_frontend.converters.conditions import CONDITIONS
from tvm_ext.onnx_frontend.converters.dropout import Dropout
from tvm_ext.onnx_frontend.converters.elementary import ELEMENTARY
from tvm_ext.onnx_frontend.converters.gather import Gather
from tvm_ext.onnx_frontend.converters.hard_activations import HardSwish, Sign, ThresholdedRelu
from tvm_ext.onnx_frontend.converters.indexed import (
    GatherElements,
    GatherND,
    ScatterElements,
    ScatterND,
)
from tvm_ext.onnx_frontend.converters.ml import ML_CONVERTERS
from tvm_ext.onnx_frontend.converters.one_hot import OneHot
from tvm_ext.onnx_frontend.converters.quantize_products import QUANTIZE_CONVERTERS
from tvm_ext.onnx_frontend.converters.random import RANDOM_CONVERTERS
from tvm_ext.onnx_frontend.converters.recurrent import GRU, LSTM, RNN
from tvm_ext.onnx_frontend.converters.reductions import REDUCTIONS
from tvm_ext.onnx_frontend.converters.rounded import ROUNDED_CONVERTERS
from tvm_ext.onnx_frontend.converters.sequences import SEQUENCE_CONVERTERS
from tvm_ext.onnx_frontend.converters.shapes_and_detection import (
    SHAPE_AND_DETECTION_CONVERTERS,
)
from tvm_ext.onnx_frontend.converters.signal import DFT, STFT
from tvm_ext.onnx_frontend.converters.smooth_activations import SMOOTH_ACTIVATIONS
from tvm_ext.onnx_frontend.converters.squeeze import Squeeze
from tvm_ext.onnx_frontend.converters.tfidf import TfIdfVectorizer
from tvm_ext.onnx_frontend.converters.training import TRAINING_CONVERTERS
from tvm_ext.onnx_frontend.converters.variadic import Max, Mean, Min, Sum
from tvm_ext.onnx_frontend.converters.windows import (
    BlackmanWindow,
    HammingWindow,
    HannWindow,
    MelWeightMatrix,
)

CONVERTERS: dict[str, Any] = {
    **ARG_EXTREMES,
    **CONDITIONS,
    **ELEMENTARY,
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

"""The table of the shape, index, image and detection operators; see the files of the families."""

from typing import Any

from tvm_ext.onnx_frontend.converters.cumulative import CumProd, CumSum
from tvm_ext.onnx_frontend.converters.depth_space import SpaceToDepth
from tvm_ext.onnx_frontend.converters.determinant import Det
from tvm_ext.onnx_frontend.converters.elementwise_edges import IsInf, Mod
from tvm_ext.onnx_frontend.converters.non_max_suppression import NonMaxSuppression
from tvm_ext.onnx_frontend.converters.normalization import BatchNormalization
from tvm_ext.onnx_frontend.converters.pad_and_slice import CenterCropPad, Pad
from tvm_ext.onnx_frontend.converters.pooling import Col2Im, MaxPool, MaxUnpool
from tvm_ext.onnx_frontend.converters.range import Range
from tvm_ext.onnx_frontend.converters.range_and_expand import (
    ConstantOfShape,
    Expand,
    EyeLike,
    Reshape,
    Tile,
)
from tvm_ext.onnx_frontend.converters.resize import Resize
from tvm_ext.onnx_frontend.converters.reverse_sequence import ReverseSequence, TensorScatter
from tvm_ext.onnx_frontend.converters.same_padding import AveragePool, Conv, LpPool
from tvm_ext.onnx_frontend.converters.sampling import (
    AffineGrid,
    DeformConv,
    GridSample,
    RoiAlign,
)
from tvm_ext.onnx_frontend.converters.slice import Slice
from tvm_ext.onnx_frontend.converters.split import Split
from tvm_ext.onnx_frontend.converters.top_k import TopK

SHAPE_AND_DETECTION_CONVERTERS: dict[str, Any] = {
    "AveragePool": AveragePool,
    "CenterCropPad": CenterCropPad,
    "ConstantOfShape": ConstantOfShape,
    "Conv": Conv,
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
    "TopK": TopK,
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
    "Det": Det,
    "AffineGrid": AffineGrid,
    "DeformConv": DeformConv,
    "GridSample": GridSample,
    "RoiAlign": RoiAlign,
}

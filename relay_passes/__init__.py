"""Graph-to-graph passes over Relax, one pass a file.

Relay is the old name of TVM's graph level; since TVM 0.20 that level is called Relax.
"""

if __name__ != "tvm_ext.relay_passes":
    raise ImportError("import this package as tvm_ext.relay_passes, not as " + __name__)

from typing import Any

from tvm_ext.relay_passes.cancel_transposes import CancelTransposes
from tvm_ext.relay_passes.conv_bn_relu_fold import ConvBnReluFold
from tvm_ext.relay_passes.conv_transpose_to_conv import ConvTransposeToConv
from tvm_ext.relay_passes.delay_reshapes import DelayReshapes
from tvm_ext.relay_passes.drop_padded_taps import DropPaddedTaps
from tvm_ext.relay_passes.flatten_pointwise import FlattenPointwise
from tvm_ext.relay_passes.fold_constant_calls import FoldConstantCalls
from tvm_ext.relay_passes.fuse_operators import FuseOperators
from tvm_ext.relay_passes.gemm_fusion import GemmFusion
from tvm_ext.relay_passes.grouped_convolution import GroupedConvolution
from tvm_ext.relay_passes.inherit_origins import InheritOrigins
from tvm_ext.relay_passes.layer_norm_fusion import LayerNormFusion
from tvm_ext.relay_passes.layout_planning import LayoutPlanning
from tvm_ext.relay_passes.name_symbolic_sizes import NameSymbolicSizes
from tvm_ext.relay_passes.pad_output_channels import PadOutputChannels
from tvm_ext.relay_passes.pad_output_columns import PadOutputColumns
from tvm_ext.relay_passes.pointwise_before_resize import PointwiseBeforeResize
from tvm_ext.relay_passes.products_in_own_type import ProductsInOwnType
from tvm_ext.relay_passes.softmax_of_narrow import SoftmaxOfNarrow
from tvm_ext.relay_passes.winograd_convolution import WinogradConvolution

# A class under @graph_pass is a factory of passes, which a type checker cannot see.
BUILTIN_PASSES: tuple[Any, ...] = (
    FoldConstantCalls,
    ProductsInOwnType,
    ConvBnReluFold,
    DropPaddedTaps,
    ConvTransposeToConv,
    PointwiseBeforeResize,
    GemmFusion,
    LayoutPlanning,
    CancelTransposes,
    LayerNormFusion,
    SoftmaxOfNarrow,
    GroupedConvolution,
    FlattenPointwise,
    DelayReshapes,
    WinogradConvolution,
    PadOutputChannels,
    PadOutputColumns,
    InheritOrigins,
    FuseOperators,
    NameSymbolicSizes,
)

__all__ = [
    "BUILTIN_PASSES",
    "CancelTransposes",
    "ConvBnReluFold",
    "ConvTransposeToConv",
    "DelayReshapes",
    "DropPaddedTaps",
    "FlattenPointwise",
    "FoldConstantCalls",
    "FuseOperators",
    "GemmFusion",
    "GroupedConvolution",
    "InheritOrigins",
    "LayerNormFusion",
    "LayoutPlanning",
    "NameSymbolicSizes",
    "PadOutputChannels",
    "PadOutputColumns",
    "PointwiseBeforeResize",
    "ProductsInOwnType",
    "SoftmaxOfNarrow",
    "WinogradConvolution",
]

"""Graph-to-graph passes over Relax, one pass a file.

Relay is the old name of TVM's graph level; since TVM 0.20 that level is called Relax.
"""

if __name__ != "tvm_ext.relay_passes":
    raise ImportError("import this package as tvm_ext.relay_passes, not as " + __name__)

from typing import Any

from tvm_ext.relay_passes.accumulate_in_float32 import AccumulateInFloat32
from tvm_ext.relay_passes.activation_lookup_tables import ActivationLookupTables
from tvm_ext.relay_passes.algebraic_simplification import AlgebraicSimplification
from tvm_ext.relay_passes.cancel_transposes import CancelTransposes
from tvm_ext.relay_passes.combine_parallel_matmul import CombineParallelMatmul
from tvm_ext.relay_passes.compress_weights import CompressWeights
from tvm_ext.relay_passes.conv_bn_relu_fold import ConvBnReluFold
from tvm_ext.relay_passes.conv_transpose_to_conv import ConvTransposeToConv
from tvm_ext.relay_passes.correlated_value_propagation import CorrelatedValuePropagation
from tvm_ext.relay_passes.drop_padded_taps import DropPaddedTaps
from tvm_ext.relay_passes.empty_constants import EmptyConstants
from tvm_ext.relay_passes.fake_quantization_to_integer import FakeQuantizationToInteger
from tvm_ext.relay_passes.flatten_pointwise import FlattenPointwise
from tvm_ext.relay_passes.fold_constant_calls import FoldConstantCalls
from tvm_ext.relay_passes.fresh_outputs import FreshOutputs
from tvm_ext.relay_passes.fuse_cast_into_softmax import FuseCastIntoSoftmax
from tvm_ext.relay_passes.fuse_dequantize_matmul import FuseDequantizeMatmul
from tvm_ext.relay_passes.fuse_operators import FuseOperators
from tvm_ext.relay_passes.gemm_fusion import GemmFusion
from tvm_ext.relay_passes.grouped_convolution import GroupedConvolution
from tvm_ext.relay_passes.last_position_only import LastPositionOnly
from tvm_ext.relay_passes.layout_planning import LayoutPlanning
from tvm_ext.relay_passes.min_max_fusion import MinMaxFusion
from tvm_ext.relay_passes.mixed_precision import MixedPrecision
from tvm_ext.relay_passes.name_symbolic_sizes import NameSymbolicSizes
from tvm_ext.relay_passes.normalization_fusion import NormalizationFusion
from tvm_ext.relay_passes.pad_output_channels import PadOutputChannels
from tvm_ext.relay_passes.pad_output_width import PadOutputWidth
from tvm_ext.relay_passes.pointwise_before_resize import PointwiseBeforeResize
from tvm_ext.relay_passes.propagate_spans import PropagateSpans
from tvm_ext.relay_passes.sink_reshapes import SinkReshapes
from tvm_ext.relay_passes.sink_transposes import SinkTransposes
from tvm_ext.relay_passes.softmax_fusion import SoftmaxFusion
from tvm_ext.relay_passes.split_to_slices import SplitToSlices
from tvm_ext.relay_passes.spmd_partition import SpmdPartition
from tvm_ext.relay_passes.winograd_convolution import WinogradConvolution
from tvm_ext.relay_passes.zero_point_compensation import ZeroPointCompensation

# A class under @graph_pass is a factory of passes, which a type checker cannot see.
BUILTIN_PASSES: tuple[Any, ...] = (
    LastPositionOnly,
    FakeQuantizationToInteger,
    FuseDequantizeMatmul,
    FoldConstantCalls,
    AlgebraicSimplification,
    AccumulateInFloat32,
    ConvBnReluFold,
    CorrelatedValuePropagation,
    SpmdPartition,
    DropPaddedTaps,
    ConvTransposeToConv,
    PointwiseBeforeResize,
    SoftmaxFusion,
    GemmFusion,
    CombineParallelMatmul,
    LayoutPlanning,
    SinkTransposes,
    CancelTransposes,
    ActivationLookupTables,
    NormalizationFusion,
    FuseCastIntoSoftmax,
    MinMaxFusion,
    GroupedConvolution,
    ZeroPointCompensation,
    FlattenPointwise,
    SinkReshapes,
    SplitToSlices,
    MixedPrecision,
    CompressWeights,
    WinogradConvolution,
    PadOutputChannels,
    PadOutputWidth,
    PropagateSpans,
    FuseOperators,
    NameSymbolicSizes,
    FreshOutputs,
    EmptyConstants,
)

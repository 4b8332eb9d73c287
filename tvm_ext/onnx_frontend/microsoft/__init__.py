"""Contrib operators of ONNX Runtime (com.microsoft) in operators of the default domain.

So everything behind, from shape inference to graph passes, knows them. What cannot be
rewritten is left as it is.
"""

from collections.abc import Callable
from functools import partial

import onnx_ir as ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.microsoft import (
    attention,
    fused,
    linear_attention,
    mixture_of_experts,
    older_forms,
    quantized,
    residual_streams,
    windows_and_tokens,
)
from tvm_ext.onnx_frontend.microsoft.attention import group_query_attention, rotary_embedding
from tvm_ext.onnx_frontend.microsoft.builder import Builder
from tvm_ext.onnx_frontend.microsoft.experimental import EXPERIMENTAL_REWRITES
from tvm_ext.onnx_frontend.microsoft.nchwc import NCHWC, NCHWC_REWRITES
from tvm_ext.onnx_frontend.microsoft.packed_weights import (
    check_gather_block_quantized,
    check_matmul_bnb4,
    check_matmul_n_bits,
    checked,
)
from tvm_ext.onnx_frontend.onnx_graph import INTERNAL, MICROSOFT, WHY_NOT

_MICROSOFT_REWRITES: dict[str, Callable[[Builder], list[ir.Value | None]]] = {
    "Attention": attention.attention,
    "BiasGelu": fused.bias_gelu,
    "BranchwiseRMSNorm": residual_streams.branchwise_rms_norm,
    "CDist": fused.distances,
    "CausalConvWithState": older_forms.causal_conv_with_state,
    "ConvTransposeWithDynamicPads": windows_and_tokens.conv_transpose_with_dynamic_pads,
    "CropAndResize": windows_and_tokens.crop_and_resize,
    "DynamicQuantizeLSTM": quantized.dynamic_quantize_lstm,
    "DynamicQuantizeMatMul": quantized.dynamic_quantize_matmul,
    "EmbedLayerNormalization": fused.embed_layer_normalization,
    "EngramGate": residual_streams.engram_gate,
    "ExpandDims": older_forms.expand_dims,
    "FastGelu": fused.fast_gelu,
    "FusedConv": fused.fused_conv,
    "FusedGemm": fused.fused_gemm,
    "FusedMatMul": fused.fused_matmul,
    "GatherBlockQuantized": checked(check_gather_block_quantized, quantized.gather_block_quantized),
    "GatherND": older_forms.gather_nd,
    "GatedAdd": residual_streams.gated_add,
    "GatedDeltaNet": linear_attention.gated_delta_net,
    "GatedRMSNorm": linear_attention.gated_rms_norm,
    "Gelu": fused.gelu,
    "GridSample": older_forms.grid_sample,
    "GroupQueryAttention": group_query_attention,
    "HyperConnectionPostMix": residual_streams.hyper_connection_post_mix,
    "HyperConnectionPreMix": residual_streams.hyper_connection_pre_mix,
    "Inverse": older_forms.inverse,
    "LayerNormalization": fused.layer_normalization,
    "LinearAttention": linear_attention.linear_attention,
    "LinearAttentionGate": linear_attention.linear_attention_gate,
    "MRotaryEmbedding": attention.multimodal_rotary_embedding,
    "MatMulBnb4": checked(check_matmul_bnb4, quantized.matmul_bnb4),
    "MatMulInteger16": older_forms.matmul_integer16,
    "MatMulIntegerToFloat": quantized.matmul_integer_to_float,
    "MatMulNBits": checked(check_matmul_n_bits, quantized.matmul_n_bits),
    "MoE": mixture_of_experts.moe,
    "MoEGroupRouter": mixture_of_experts.group_router,
    "MultiHeadAttention": attention.multi_head_attention,
    "NGramRepeatBlock": windows_and_tokens.n_gram_repeat_block,
    "NhwcMaxPool": quantized.nhwc_max_pool,
    "Pad": older_forms.pad,
    "QAttention": quantized.q_attention,
    "QEmbedLayerNormalization": quantized.q_embed_layer_normalization,
    "QGemm": quantized.qgemm,
    "QLinearAdd": partial(quantized.qlinear_pair, "Add"),
    "QLinearAveragePool": quantized.qlinear_average_pool,
    "QLinearConcat": quantized.qlinear_concat,
    "QLinearConv": quantized.qlinear_conv,
    "QLinearGlobalAveragePool": quantized.qlinear_global_average_pool,
    "QLinearLeakyRelu": quantized.qlinear_leaky_relu,
    "QLinearMul": partial(quantized.qlinear_pair, "Mul"),
    "QLinearSigmoid": quantized.qlinear_sigmoid,
    "QLinearSoftmax": quantized.qlinear_softmax,
    "QLinearWhere": quantized.qlinear_where,
    "QMoE": mixture_of_experts.qmoe,
    "QuickGelu": fused.quick_gelu,
    "Range": older_forms.number_range,
    "RotaryEmbedding": rotary_embedding,
    "ScaledSiLU": residual_streams.scaled_silu,
    "SimplifiedLayerNormalization": fused.simplified_layer_normalization,
    "SkipLayerNormalization": fused.skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": fused.skip_simplified_layer_normalization,
    "TransposeMatMul": fused.fused_matmul,
    "UnfoldTensor": windows_and_tokens.unfold_tensor,
    "Unique": older_forms.unique,
}

# By domain and operator.
REWRITES = {
    **{(MICROSOFT, name): rewrite for name, rewrite in _MICROSOFT_REWRITES.items()},
    **{("", name): rewrite for name, rewrite in EXPERIMENTAL_REWRITES.items()},
    **{(NCHWC, name): rewrite for name, rewrite in NCHWC_REWRITES.items()},
}

# The same in com.microsoft and the default domain.
SAME = ("DequantizeLinear", "QuantizeLinear", "Trilu")

_OWN_LOOP = (
    "it runs a decoder inside of itself until a text ends, where a compiled model is run once for "
    "each token: export the decoder alone, and continue texts with tvm_ext.generate"
)
_TABLES = (
    "it chooses keys by tables of blocks or of beams: export the model with GroupQueryAttention"
)

# Operators that no other operators stand for, and why.
WITHOUT_FORM = {
    "BeamSearch": _OWN_LOOP,
    "DecoderMaskedMultiHeadAttention": _TABLES,
    "GreedySearch": _OWN_LOOP,
    "Sampling": _OWN_LOOP,
    "SparseAttention": _TABLES,
    "WhisperBeamSearch": _OWN_LOOP,
}

# Each round infers the shapes behind what the one before it rewrote.
_ROUNDS = 100


def to_default_domain(model: ir.Model) -> None:
    """Changes the model in place; model-local functions must have been inlined."""
    for node in model.graph.all_nodes():
        if node.domain == MICROSOFT and node.op_type in SAME:
            node.domain = ""
        elif node.domain == MICROSOFT and node.op_type in WITHOUT_FORM:
            node.metadata_props[WHY_NOT] = WITHOUT_FORM[node.op_type]
    for _ in range(_ROUNDS):
        nodes = [n for n in model.graph.all_nodes() if (n.domain, n.op_type) in REWRITES]
        if not nodes:
            return
        ir.passes.common.ShapeInferencePass()(model)
        model.opset_imports.setdefault(INTERNAL, 1)
        opset = model.opset_imports.get("", 1)
        if not sum([_rewritten(node, opset) for node in nodes]):
            return


def _rewritten(node: ir.Node, opset: int) -> bool:
    """Whether the node could be replaced."""
    builder = Builder(node, opset, _float_type(node))
    try:
        results = REWRITES[node.domain, node.op_type](builder)
    except NotApplicable as refusal:
        node.metadata_props[WHY_NOT] = refusal.reason
        return False
    results += [None] * (len(node.outputs) - len(results))
    pairs = [
        pair for pair in zip(node.outputs, results, strict=False) if builder.used(pair[0].index())
    ]
    if any(new is None for _, new in pairs) or node.graph is None:
        return False
    # Of the first output; quantised operators are left to shape inference.
    is_quantized = node.op_type.startswith("Q") and node.op_type != "QuickGelu"
    dtype = None if is_quantized else builder.dtype
    for old, new in pairs:
        if new is not None and new.dtype is None and dtype is not None and old is node.outputs[0]:
            new.type = ir.TensorType(dtype)
    old_values = [old for old, _ in pairs]
    new_values = [new for _, new in pairs if new is not None]
    ir.convenience.replace_nodes_and_values(
        node.graph, node, [node], builder.nodes, old_values, new_values
    )
    return True


def _float_type(node: ir.Node) -> ir.DataType | None:
    """The floating-point type of the inputs: operators take one such type only."""
    for value in node.inputs:
        if value is not None and value.dtype is not None and value.dtype.is_floating_point():
            return value.dtype
    return None

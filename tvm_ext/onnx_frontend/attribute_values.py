"""Refuses attributes whose values ONNX does not define, and which its checker lets through."""

import onnx

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.operator_key import DEFAULT_DOMAINS
from tvm_ext.onnx_frontend.scopes import nodes_within

# Attributes of type int that mean yes or no: some converters ask for 1, others for anything but 0.
FLAGS = frozenset(
    {
        *("align_corners", "allowzero", "antialias", "ceil_mode", "center_point_box"),
        *("count_include_pad", "detect_negative", "detect_positive", "exclude_outside"),
        *("exclusive", "fmod", "input_forget", "inverse", "is_causal", "keepdims", "largest"),
        *("layout", "linear_before_reset", "new_axis", "noop_with_empty_axes", "onesided"),
        *("periodic", "reverse", "saturate", "select_last_index", "sorted", "storage_order"),
        *("training_mode", "transA", "transB", "upper"),
    }
)


def require_flags(graph: onnx.GraphProto, label: str) -> None:
    """Checks the nodes of the default domain, bodies included.

    Raises
    ------
    ModelError
        An attribute that is a flag is neither 0 nor 1.
    """
    for node in nodes_within(graph):
        for attribute in node.attribute if node.domain in DEFAULT_DOMAINS else ():
            if attribute.type != onnx.AttributeProto.INT or attribute.ref_attr_name:
                continue
            if attribute.name in FLAGS and attribute.i not in (0, 1):
                raise ModelError(
                    f"{label}: {node.op_type} node '{node.name}' has {attribute.name} "
                    f"{attribute.i}; expected 0 or 1: export it again"
                )

"""Attributes of nodes: defaults that are left out, and values that ONNX does not define."""

import onnx

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.operator_key import DEFAULT_DOMAINS, opset_of
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


def write_out_defaults(model: onnx.ModelProto) -> None:
    """Gives operators that ONNX spells out as functions the attributes they leave out.

    Its inference takes these bodies as they are: MeanVarianceNormalization without axes holds a
    Constant without a value.
    """
    opset = opset_of(model, "")
    for node in nodes_within(model.graph):
        if node.domain not in DEFAULT_DOMAINS or not onnx.defs.has(node.op_type):
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, opset)
        except onnx.defs.SchemaError:
            continue
        if not schema.has_function:
            continue
        given = {attribute.name for attribute in node.attribute}
        defaults = (attribute.default_value for attribute in schema.attributes.values())
        node.attribute.extend(value for value in defaults if value.name and value.name not in given)

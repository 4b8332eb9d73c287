"""Operator names with their domain, by which converters are found."""

import onnx

DEFAULT_DOMAINS = ("", "ai.onnx")


def operator_key(node: onnx.NodeProto) -> str:
    """``Name`` in the default domain, ``domain::Name`` in every other."""
    return node.op_type if node.domain in DEFAULT_DOMAINS else f"{node.domain}::{node.op_type}"


def split_key(key: str) -> tuple[str, str]:
    """The domain ("" for the default one) and the operator's own name."""
    domain, _, name = key.rpartition("::")
    return domain, name


def opset_of(model: onnx.ModelProto, domain: str) -> int:
    """The opset version that the model imports for a domain; 1 where it imports none."""
    same = DEFAULT_DOMAINS if domain in DEFAULT_DOMAINS else (domain,)
    return next((o.version for o in model.opset_import if o.domain in same), 1)

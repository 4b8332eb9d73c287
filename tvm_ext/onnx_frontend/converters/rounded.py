"""Operators whose results are rounded to their type, whatever reads them."""

from typing import Any

from tvm import relax, topi

from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend.exact_tree_inputs import ROUNDED
from tvm_ext.relay_passes.graph_pass import OPAQUE


class Mul(OnnxOpConverter):
    """A kernel of its own: in one with a sum, LLVM would multiply and add in one instruction."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return bb.emit_te(
            topi.multiply,
            inputs[0],
            inputs[1],
            primfunc_name_hint="multiply",
            primfunc_attrs={"op_pattern": OPAQUE},
        )


ROUNDED_CONVERTERS: dict[str, Any] = {f"{ROUNDED}::Mul": Mul}

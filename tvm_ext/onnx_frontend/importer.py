"""Runs TVM's ONNX importer and keeps which node each Relax binding came from."""

import contextlib
import threading
import warnings
from typing import Any

import onnx
import tvm
from tvm import relax

from tvm_ext.errors import ModelError, reason_of
from tvm_ext.hardware.tvm_compat import ONNXGraphImporter
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.support import DEFAULT_DOMAINS
from tvm_ext.relay_passes import InheritOrigins
from tvm_ext.relay_passes.origin_writer import write_origins

# TVM's stack of builders and Python's filters of warnings are the process's: two imports that
# change them in turn, not nested, would fail, and leave warnings silent for good.
_one_at_a_time = threading.Lock()


def import_graph(model: onnx.ModelProto, label: str) -> tvm.IRModule:
    """The Relax module of a prepared model; every binding carries the node it came from.

    Raises
    ------
    ModelError
        A converter fails; the message names the node.
    """
    opset = next((o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS), 1)
    importer = _OriginImporter()
    # The importer warns; what matters is in the error we raise.
    with _one_at_a_time, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mod = importer.from_onnx(model.graph, opset)
            importer.note_branches(model.graph)
        except _NodeFailed as failed:
            importer.end_blocks()
            raise conversion_error(label, failed.place, failed.reason) from failed.reason
        except Exception as error:
            importer.end_blocks()
            raise conversion_error(label, "the graph", error) from error
    mod = write_origins(mod, {var: (node,) for var, node in importer.node_of.items()})
    return tvm.transform.Sequential([InheritOrigins()])(mod)


def conversion_error(label: str, place: str, error: Exception) -> ModelError:
    """One line for whatever an importer or a lowering raised at ``place``."""
    return ModelError(
        f"{label}: {place} cannot be converted ({reason_of(error)}); expected static shapes and "
        "constant shape arguments: give input shapes, or export the model without this form"
    )


class _NodeFailed(BaseException):
    """A converter's error on its way through TVM's importer, which prints every Exception."""

    def __init__(self, place: str, reason: Exception) -> None:
        super().__init__(place)
        self.place = place
        self.reason = reason


class _OriginImporter(ONNXGraphImporter):
    """TVM's importer, with each node's result bound to a variable that is noted down."""

    def __init__(self) -> None:
        super().__init__(shape_dict={}, dtype_dict="float32", sanitize=True)
        self.node_of: dict[relax.Var, str] = {}

    def end_blocks(self) -> None:
        """Ends what an error left open; TVM would print a warning of it."""
        with contextlib.suppress(tvm.error.InternalError):
            while True:
                self.bb._end_block()

    def note_branches(self, graph: onnx.GraphProto) -> None:
        """Notes the results of If nodes of a graph that was converted; TVM binds them itself."""
        for node in graph.node:
            result = self._nodes.get(node.output[0]) if node.op_type == "If" else None
            if isinstance(result, relax.Var):
                self.node_of.setdefault(result, node.name)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict, opset: int) -> Any:
        node = attrs["tvm_custom"]["name"]
        try:
            result = self._converted(op_name, inputs, attrs, opset)
        except Exception as error:
            raise _NodeFailed(f"{op_name} node '{node}'", error) from error
        return self._bound(node, result)

    def _converted(self, op_name: str, inputs: Any, attrs: dict, opset: int) -> Any:
        if op_name not in CONVERTERS:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        convert = CONVERTERS[op_name].get_converter(opset)
        result = convert(self.bb, inputs, attrs, [self._nodes, self._params])
        return self.bb.normalize(result) if isinstance(result, relax.Expr) else result

    def _convert_subgraph(self, bb: relax.BlockBuilder, graph: onnx.GraphProto) -> relax.Expr:
        """The branch of an If, with a block of its own.

        TVM's importer binds what converters emit ahead of the If, where both branches always run.
        """
        bb._begin_binding_block()
        try:
            result = super()._convert_subgraph(bb, graph)
        finally:
            block = bb._end_block()
        return relax.SeqExpr([block], result)

    def _bound(self, node: str, result: Any) -> Any:
        if isinstance(result, relax.Tuple):
            return relax.Tuple([self._bound(node, field) for field in result.fields])
        if isinstance(result, relax.Call | relax.TupleGetItem) and isinstance(
            result.ty, relax.TensorType | relax.TupleType
        ):
            result = self.bb.emit(result)
        if isinstance(result, relax.Var):
            self.node_of.setdefault(result, node)
        return result

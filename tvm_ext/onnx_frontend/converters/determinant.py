"""Det, which TVM's importer lacks."""

from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter


class Det(OnnxOpConverter):
    """Determinants of matrices by elimination with partial pivoting (Golub and Van Loan, 3.4)."""

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, sizes = inputs[0], sizes_of(inputs[0])
        dtype = str(data.ty.dtype)
        kind = dtype if dtype == "float64" else "float32"
        lead, size = sizes[:-2], sizes[-1]
        count: Any = 1
        for extent in lead:
            count = count * extent
        flat = bb.emit(relax.op.reshape(relax.op.astype(data, kind), (count, size, size)))
        found, _ = emit_loops(
            bb,
            "determinant",
            [flat],
            [((count,), kind), ((count, size, size), kind)],
            _elimination(count, size, kind),
        )
        found = bb.emit(relax.op.reshape(found, tuple(lead)))
        return relax.op.astype(found, dtype)


def _elimination(count: Any, size: Any, kind: str) -> Any:
    def body(read: Any, found: Any, work: Any) -> None:
        zero = tirx.const(0.0, kind)
        with T.serial(0, count) as item:
            pivot = local_array(1, "int64")
            held = local_array(1, kind)
            found[item] = tirx.const(1.0, kind)
            with T.grid(size, size) as (row, column):
                work[item, row, column] = read[item, row, column]
            with T.serial(0, size) as step:
                pivot[0] = tirx.Cast("int64", step)
                with T.serial(0, size) as row:
                    larger = tirx.abs(work[item, row, step]) > tirx.abs(work[item, pivot[0], step])
                    with T.If(tirx.all(row > step, larger)), T.Then():
                        pivot[0] = tirx.Cast("int64", row)
                with T.If(pivot[0] != step), T.Then():
                    found[item] = zero - found[item]
                    with T.serial(0, size) as column:
                        held[0] = work[item, step, column]
                        work[item, step, column] = work[item, pivot[0], column]
                        work[item, pivot[0], column] = held[0]
                found[item] = found[item] * work[item, step, step]
                with T.serial(0, size) as row:
                    below = tirx.all(row > step, work[item, step, step] != zero)
                    with T.If(below), T.Then():
                        held[0] = work[item, row, step] / work[item, step, step]
                        with T.serial(0, size) as column:
                            work[item, row, column] = (
                                work[item, row, column] - held[0] * work[item, step, column]
                            )

    return body

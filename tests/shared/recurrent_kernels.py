"""Kernels of recurrent layers as the importer writes them."""

from typing import Any

from tvm import te, tirx

from tvm_ext.tir_schedules.cpu.recurrent_layer import recurrence_code
from tvm_ext.tir_schedules.operators.recurrence import (
    ANNOTATION,
    Activation,
    Recurrence,
    RecurrenceLoops,
    RecurrenceOperands,
)

SIGMOID, TANH = Activation("sigmoid"), Activation("tanh")


def recurrence(cell: Any = "LSTM", hidden: int = 128, directions: int = 1, **fields: Any) -> Any:
    functions = {"LSTM": (SIGMOID, TANH, TANH), "GRU": (SIGMOID, TANH), "RNN": (TANH,)}[cell]
    reverse = (False, True)[:directions]
    return Recurrence(cell, hidden, reverse, (functions,) * directions, **fields)


def recurrent_kernel(layer: Recurrence, steps: Any = 8, batch: Any = 1) -> tirx.PrimFunc:
    """As the importer writes it."""
    steps, batch = (tirx.const(n, "int64") if isinstance(n, int) else n for n in (steps, batch))
    directions, padded, hidden = layer.directions, layer.padded, layer.hidden
    first = layer.batch_first
    state = (batch, directions, hidden) if first else (directions, batch, hidden)
    width = directions * layer.gates * padded
    shapes: dict[str, Any] = {
        "x": (batch, steps, width) if first else (steps, batch, width),
        "b_candidate": (directions, padded),
        "peepholes": (directions, 3, padded),
        "lengths": (batch,),
        "initial_h": state,
        "initial_c": state,
    }
    for product in layer.products():
        gates = len(product.gates)
        shapes[product.weights] = (directions, layer.blocks, gates, layer.summed, layer.units)
    columns = (directions, layer.blocks, layer.gates, layer.units)
    shapes |= {"r_scale": columns, "r_sums": columns}
    names = layer.operands()[: -len(layer.results())]
    dtypes = {"lengths": "int32", "r_sums": "int32"}
    if layer.integer_weights:
        dtypes["r"] = "int8"
    inputs = [te.placeholder(shapes[n], dtypes.get(n, "float32"), name=n) for n in names]
    y = (batch, steps, directions, hidden) if first else (steps, directions, batch, hidden)
    outputs = [y] + [state] * (len(layer.results()) - 1)

    def body(ins: Any, outs: Any) -> tirx.Stmt:
        arrays = dict(zip(layer.operands(), [*ins, *outs], strict=True))
        return recurrence_code(RecurrenceOperands(layer, arrays), RecurrenceLoops())

    found = te.extern(
        outputs,
        inputs,
        body,
        dtype=["float32"] * len(outputs),
        attrs={ANNOTATION: layer.annotation()},
    )
    return te.create_prim_func([*inputs, *found])

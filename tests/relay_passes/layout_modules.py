"""Modules with convolutions, and a machine on which layouts have simple costs."""

from collections.abc import Callable

import numpy as np
import tvm
from random_numbers import RANDOM
from tvm import relax
from unoptimised import machine_of

from tvm_ext.configs.decision import Decision
from tvm_ext.hardware.cost_model import Work
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.layout_planning import LayoutPlanning
from tvm_ext.relay_passes.spans import span_of


class LayoutCostMachine:
    """Eight lanes, one second per useless operation; conversions cost what the test says."""

    def __init__(self, per_byte: float = 1e-6, each: float = 1e-3) -> None:
        self.per_byte, self.each = per_byte, each

    def seconds(self, work: Work) -> float:
        return work.flops * (1.0 / work.vector_fraction - 1.0) * 1e-6

    def conversion_seconds(self, nbytes: float) -> float:
        return self.each + self.per_byte * nbytes

    def vector_lanes(self, dtype: str) -> int:
        return 8


CHEAP = LayoutCostMachine(0.0, 1e-9)


def constant(*shape: int) -> relax.Expr:
    return relax.const(RANDOM.standard_normal(shape).astype("float32"))


def conv(x: relax.Expr, out: int = 8, side: int = 3, **attrs: object) -> relax.Expr:
    groups = int(attrs.get("groups", 1))  # type: ignore[call-overload]
    weight = constant(out, int(x.ty.shape[1]) // groups, side, side)
    return relax.op.nn.conv2d(x, weight, padding=side // 2, **attrs)


Emit = Callable[..., relax.Var]


def module(
    body: Callable[[Emit, relax.Var], relax.Expr],
    shape: tuple = (1, 8, 7, 7),
    dtype: str = "float32",
) -> tvm.IRModule:
    """One function whose bindings carry their names op0, op1, ... as origin."""
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    counter = iter(range(1000))

    def emit(value: relax.Expr) -> relax.Var:
        value = builder.normalize(value)
        var = relax.DataflowVar("v", value.ty, span_of([f"op{next(counter)}"]))
        builder.emit_normalized(relax.VarBinding(var, value))
        return var

    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(body(emit, x))
        builder.emit_func_output(result)
    return builder.get()


def bindings(mod: tvm.IRModule, name: str) -> list[relax.VarBinding]:
    return [
        binding
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if operator_name(binding.value) == name
    ]


def layouts(mod: tvm.IRModule) -> list[str]:
    return [str(item.value.attrs.data_layout) for item in bindings(mod, "relax.nn.conv2d")]


def transposes(mod: tvm.IRModule) -> int:
    return len(bindings(mod, "relax.permute_dims"))


def plan(
    mod: tvm.IRModule, machine: LayoutCostMachine = CHEAP
) -> tuple[tvm.IRModule, list[Decision]]:
    """The planned module, checked for what holds of every pass, and the log."""
    script = mod.script(show_meta=True)
    with recording() as log:
        planned = LayoutPlanning(machine=machine)(mod)
    relax.analysis.well_formed(planned)
    assert mod.script(show_meta=True) == script
    tvm.ir.assert_structural_equal(LayoutPlanning(machine=machine)(planned), planned)
    return planned, log


def assert_same_numbers(before: tvm.IRModule, after: tvm.IRModule, *shape: int) -> None:
    x = RANDOM.standard_normal(shape).astype("float32")
    results = []
    for mod in (before, after):
        mod = relax.transform.LegalizeOps()(relax.transform.DecomposeOpsForInference()(mod))
        machine = machine_of(mod)
        results.append(machine["main"](tvm.runtime.tensor(x)).numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-4)

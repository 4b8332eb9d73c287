"""LayoutPlanning: what it leaves alone, and why."""

import pytest
import tvm
from layout_modules import (
    CHEAP,
    Emit,
    LayoutCostMachine,
    assert_same_numbers,
    bindings,
    constant,
    conv,
    layouts,
    module,
    plan,
)
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.configs.decision import Decision
from tvm_ext.relay_passes import layout_planning
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.layout_planning import LayoutPlanning
from tvm_ext.relay_passes.spans import bindings_of


def test_gain_below_the_conversions_is_refused_with_both_numbers() -> None:
    mod = module(lambda emit, x: conv(x))

    planned, log = plan(mod, LayoutCostMachine(0.0, 1e3))

    assert planned.same_as(mod)
    assert len(log) == 1
    assert log[0].reason.startswith("NHWC/HWIO would save ")
    assert "conversions would cost 2000000000.0 us" in log[0].reason


def test_one_convolution_stays_where_its_conversions_are_too_dear() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        wide = emit(conv(x, 8, 3))
        opaque = emit(relax.op.reshape(wide, (1, 49, 8, 1)))
        return conv(opaque, 1, 1)  # one output channel: channels last gain nothing

    planned, log = plan(module(body), LayoutCostMachine(1e-9, 1e-6))

    assert layouts(planned) == ["NHWC", "NCHW"]
    assert sum(entry.applied for entry in log) == 2


def test_transposed_convolution_stays_and_is_named() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        up = emit(relax.op.nn.conv2d_transpose(emit(conv(x)), constant(8, 8, 2, 2), strides=2))
        return conv(up)

    planned, log = plan(module(body))

    (call,) = (item.value for item in bindings(planned, "relax.nn.conv2d_transpose"))
    assert (call.attrs.data_layout, call.attrs.kernel_layout) == ("NCHW", "IOHW")
    assert layouts(planned) == ["NHWC", "NHWC"]
    refusal = Decision(
        "LayoutPlanning", False, "op1", "transposed convolution has no channels-last lowering"
    )
    assert refusal in log


def test_symbolic_channels_are_refused() -> None:
    channels = tvm.tirx.Var("c", "int64")
    weight = relax.Var("w", relax.TensorType((8, channels, 1, 1), "float32"))
    x = relax.Var("x", relax.TensorType((1, channels, 7, 7), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weight]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.conv2d(x, weight))
        builder.emit_func_output(result)
    mod = builder.get()

    planned, log = plan(mod)

    assert planned.same_as(mod)
    assert [entry.reason for entry in log] == ["symbolic channels or kernel"]


def test_convolution_outside_of_a_dataflow_block_is_refused() -> None:
    @I.ir_module
    class Branches:
        @R.function
        def main(
            x: R.Tensor((1, 8, 7, 7), "float32"),
            w: R.Tensor((8, 8, 3, 3), "float32"),
            c: R.Tensor((), "bool"),
        ):
            with R.dataflow():
                y = R.nn.conv2d(x, w, padding=1)
                R.output(y)
            if c:
                z = R.nn.conv2d(y, w)
            else:
                v = R.nn.relu(x)
                z = R.nn.conv2d(v, w)
            return z

    planned, log = plan(Branches)

    assert layouts(planned) == ["NHWC"]
    reason = "outside of a dataflow block, where layouts are not converted"
    assert [entry.reason for entry in log if not entry.applied] == [reason] * 2


def test_failure_of_convert_layout_leaves_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise tvm.error.InternalError("Check failed: no such layout")

    monkeypatch.setattr(layout_planning.relax.transform, "ConvertLayout", fail)
    mod = module(lambda emit, x: conv(x))
    with recording() as log:
        planned = LayoutPlanning(machine=CHEAP)(mod)

    assert planned.same_as(mod)
    assert "layouts cannot be changed around it" in log[0].reason


def test_plan_that_turns_out_dearer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = layout_planning.convert_layouts

    def with_more_transposes(*args: object) -> tvm.IRModule:
        converted = real(*args)  # type: ignore[arg-type]
        machine.each = 1e3
        return converted

    machine = LayoutCostMachine(0.0, 1e-9)
    monkeypatch.setattr(layout_planning, "convert_layouts", with_more_transposes)
    mod = module(lambda emit, x: conv(x))
    with recording() as log:
        planned = LayoutPlanning(machine=machine)(mod)

    assert planned.same_as(mod)
    assert log[0].reason.startswith("conversion does not pay: ")


def test_fused_function_is_left_alone() -> None:
    mod = module(lambda emit, x: conv(x))
    mod = tvm.IRModule({"main": mod["main"].with_attr("Primitive", True)})
    assert plan(mod)[0].same_as(mod)


def test_module_without_convolutions_is_left_alone() -> None:
    mod = module(lambda emit, x: relax.op.nn.relu(x))
    assert LayoutPlanning()(mod).same_as(mod)


@pytest.mark.extended
def test_what_never_has_channels_last_is_not_given_to_convert_layout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes time that grows with the square of a block's length."""
    given: list[int] = []
    convert = relax.transform.ConvertLayout

    def counting(*args: object) -> object:
        def run(mod: tvm.IRModule) -> tvm.IRModule:
            given.extend(len(bindings_of(func)) for func in mod.functions.values())
            return convert(*args)(mod)

        return run

    monkeypatch.setattr(layout_planning.relax.transform, "ConvertLayout", counting)

    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        for _ in range(20):
            x = emit(relax.op.exp(x))
        y = emit(relax.op.nn.relu(emit(conv(x, 8, 3))))
        y = emit(relax.op.reshape(y, (1, 49, 8, 1)))
        for _ in range(20):
            y = emit(relax.op.exp(y))
        return relax.op.add(y, y)

    mod = module(body)
    planned, _ = plan(mod)

    assert layouts(planned) == ["NHWC"]
    assert sum(given) <= 5
    assert_same_numbers(mod, planned, 1, 8, 7, 7)

"""LayoutPlanning: what it converts, what it leaves alone and why, and what stays as it was."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.hardware.cost import Work
from tvm_ext.relay_passes import layout_conversion, layout_planning
from tvm_ext.relay_passes.layout_planning import LayoutPlanning
from tvm_ext.relay_passes.layout_roles import operator_name
from tvm_ext.relay_passes.origin import origins_of, span_of
from tvm_ext.relay_passes.pass_log import PassDecision, recording

RNG = np.random.default_rng(5)


class Machine:
    """Eight lanes, one second per useless operation; conversions cost what the test says."""

    def __init__(self, per_byte: float = 1e-6, each: float = 1e-3) -> None:
        self.per_byte, self.each = per_byte, each

    def seconds(self, work: Work) -> float:
        return work.flops * (1.0 / work.vector_fraction - 1.0) * 1e-6

    def conversion_seconds(self, nbytes: float) -> float:
        return self.each + self.per_byte * nbytes

    def vector_lanes(self, dtype: str) -> int:
        return 8


CHEAP = Machine(0.0, 1e-9)


def constant(*shape: int) -> relax.Expr:
    return relax.const(RNG.standard_normal(shape).astype("float32"))


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


def plan(mod: tvm.IRModule, machine: Machine = CHEAP) -> tuple[tvm.IRModule, list[PassDecision]]:
    """The planned module, checked for what holds of every pass, and the log."""
    script = mod.script(show_meta=True)
    with recording() as log:
        planned = LayoutPlanning(machine=machine)(mod)
    relax.analysis.well_formed(planned)
    assert mod.script(show_meta=True) == script
    tvm.ir.assert_structural_equal(LayoutPlanning(machine=machine)(planned), planned)
    return planned, log


def assert_same_numbers(before: tvm.IRModule, after: tvm.IRModule, *shape: int) -> None:
    x = RNG.standard_normal(shape).astype("float32")
    results = []
    for mod in (before, after):
        mod = relax.transform.LegalizeOps()(relax.transform.DecomposeOpsForInference()(mod))
        machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
        results.append(machine["main"](tvm.runtime.tensor(x)).numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4, atol=1e-4)


def test_before_and_after() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor((1, 8, 7, 7), "float32"), w: R.Tensor((8, 8, 3, 3), "float32")
        ) -> R.Tensor((1, 8, 5, 5), "float32"):
            with R.dataflow():
                y = R.nn.conv2d(x, w)
                z = R.nn.max_pool2d(y, (1, 1))
                v = R.nn.conv2d(z, w, padding=1)
                R.output(v)
            return v

    @I.ir_module
    class Expected:
        @R.function
        def main(
            x: R.Tensor((1, 8, 7, 7), "float32"), w: R.Tensor((8, 8, 3, 3), "float32")
        ) -> R.Tensor((1, 8, 5, 5), "float32"):
            with R.dataflow():
                a = R.permute_dims(x, [0, 2, 3, 1])
                b = R.permute_dims(w, [2, 3, 1, 0])
                y = R.nn.conv2d(a, b, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC")
                z = R.nn.max_pool2d(y, (1, 1), layout="NHWC", out_layout="NHWC")
                c = R.nn.conv2d(
                    z, b, padding=1, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC"
                )
                v = R.permute_dims(c, [0, 3, 1, 2])
                R.output(v)
            return v

    planned, log = plan(Before)

    tvm.ir.assert_structural_equal(planned, Expected)
    assert [entry.applied for entry in log] == [True, True, True]
    assert "NHWC/HWIO" in log[0].reason
    assert "2 of 2 convolutions have channels last, with 2 conversions" in log[2].reason
    assert all("modelled" in entry.reason for entry in log)


def test_branching_graph_converts_its_input_and_its_result_once() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        left = emit(relax.op.nn.relu(emit(conv(x))))
        right = emit(relax.op.add(constant(8, 1, 1), emit(conv(x, 8, groups=8))))
        pointwise = emit(conv(x, 16, 1, strides=2))
        down = emit(relax.op.nn.max_pool2d(emit(relax.op.subtract(right, left)), 1, strides=2))
        joined = emit(relax.op.concat([down, pointwise], 1))
        return conv(joined, 32, 3, groups=4)

    mod = module(body)
    planned, log = plan(mod)

    assert layouts(planned) == ["NHWC"] * 4
    assert transposes(planned) == 2
    assert "with 2 conversions" in log[-1].reason
    assert_same_numbers(mod, planned, 1, 8, 7, 7)


def test_weights_are_constants_and_a_shared_one_is_transposed_once() -> None:
    weight = constant(8, 8, 3, 3)

    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        once = emit(relax.op.nn.conv2d(x, weight, padding=1))
        return relax.op.nn.conv2d(once, weight, padding=1)

    planned, _ = plan(module(body))

    first, second = (item.value.args[1] for item in bindings(planned, "relax.nn.conv2d"))
    assert first.same_as(second)
    np.testing.assert_array_equal(first.value.numpy(), weight.value.numpy().transpose(2, 3, 1, 0))


def test_origins_survive_and_conversions_have_none() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        return emit(relax.op.sigmoid(emit(conv(emit(relax.op.nn.relu(x))))))

    planned, log = plan(module(body))

    (convolution,) = bindings(planned, "relax.nn.conv2d")
    assert origins_of(convolution.var) == ("op1",)
    assert origins_of(bindings(planned, "relax.nn.relu")[0].var) == ("op0",)
    assert origins_of(bindings(planned, "relax.sigmoid")[0].var) == ("op2",)
    assert log[0].where == "op1"
    inner = [i.var for i in bindings(planned, "relax.permute_dims") if "v" not in i.var.name]
    assert all(origins_of(var) == () for var in inner)


def test_gain_below_the_conversions_is_refused_with_both_numbers() -> None:
    mod = module(lambda emit, x: conv(x))

    planned, log = plan(mod, Machine(0.0, 1e3))

    assert planned.same_as(mod)
    assert len(log) == 1
    assert log[0].reason.startswith("NHWC/HWIO would save ")
    assert "conversions would cost 2000000000.0 us" in log[0].reason


def test_one_convolution_stays_where_its_conversions_are_too_dear() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        wide = emit(conv(x, 8, 3))
        opaque = emit(relax.op.reshape(wide, (1, 49, 8, 1)))
        return conv(opaque, 1, 1)  # one output channel: channels last gain nothing

    planned, log = plan(module(body), Machine(1e-9, 1e-6))

    assert layouts(planned) == ["NHWC", "NCHW"]
    assert sum(entry.applied for entry in log) == 2


def test_existing_transposes_become_the_conversions() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        first = emit(relax.op.permute_dims(x, [0, 3, 1, 2]))
        convolved = emit(conv(first))
        return emit(relax.op.permute_dims(convolved, [0, 2, 3, 1]))

    mod = module(body, (1, 7, 7, 8))
    planned, _ = plan(mod, Machine(0.0, 1e3))

    assert layouts(planned) == ["NHWC"]
    assert transposes(planned) == 0
    assert_same_numbers(mod, planned, 1, 7, 7, 8)


def test_transposed_convolution_stays_and_is_named() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        up = emit(relax.op.nn.conv2d_transpose(emit(conv(x)), constant(8, 8, 2, 2), strides=2))
        return conv(up)

    planned, log = plan(module(body))

    (call,) = (item.value for item in bindings(planned, "relax.nn.conv2d_transpose"))
    assert (call.attrs.data_layout, call.attrs.kernel_layout) == ("NCHW", "IOHW")
    assert layouts(planned) == ["NHWC", "NHWC"]
    refusal = PassDecision(
        "LayoutPlanning", False, "op1", "transposed convolution has no channels-last lowering"
    )
    assert refusal in log


def test_symbolic_batch_and_sides_are_planned() -> None:
    n, h = tvm.tirx.Var("n", "int64"), tvm.tirx.Var("h", "int64")
    mod = module(lambda emit, x: conv(emit(relax.op.nn.relu(emit(conv(x))))), (n, 8, h, 7))

    planned, _ = plan(mod)

    assert layouts(planned) == ["NHWC", "NHWC"]
    assert transposes(planned) == 2
    assert_same_numbers(mod, planned, 2, 8, 5, 7)


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


def test_two_functions_with_other_shapes_and_types() -> None:
    one = module(lambda emit, x: conv(x))["main"]
    weight = relax.const(np.ones((8, 4, 1, 1), "float16"))
    two = module(lambda emit, x: relax.op.nn.conv2d(x, weight), (2, 4, 5, 5), "float16")["main"]
    mod = tvm.IRModule(
        {"one": one.with_attr("global_symbol", "one"), "two": two.with_attr("global_symbol", "two")}
    )

    planned, log = plan(mod)

    assert planned.script().count('data_layout="NHWC"') == 2
    assert [entry.where for entry in log if "conversions" in entry.reason] == ["one", "two"]


def test_tuple_of_an_operator_and_a_negative_axis() -> None:
    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        parts = emit(relax.op.split(emit(conv(x)), 2, 1))
        joined = emit(relax.op.concat(parts, 1))
        pooled = emit(relax.op.mean(emit(conv(joined)), [2, 3], keepdims=True))
        return relax.op.squeeze(pooled, [-1, -2])

    mod = module(body)
    planned, _ = plan(mod)

    assert transposes(planned) == 1
    assert_same_numbers(mod, planned, 1, 8, 7, 7)


def test_failure_of_convert_layout_leaves_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise tvm.error.InternalError("Check failed: no such layout")

    monkeypatch.setattr(layout_conversion.relax.transform, "ConvertLayout", fail)
    mod = module(lambda emit, x: conv(x))
    with recording() as log:
        planned = LayoutPlanning(machine=CHEAP)(mod)

    assert planned.same_as(mod)
    assert "ConvertLayout failed: Check failed: no such layout" in log[0].reason


def test_plan_that_turns_out_dearer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    real = layout_planning.convert_layouts

    def with_more_transposes(*args: object) -> tvm.IRModule:
        converted = real(*args)  # type: ignore[arg-type]
        machine.each = 1e3
        return converted

    machine = Machine(0.0, 1e-9)
    monkeypatch.setattr(layout_planning, "convert_layouts", with_more_transposes)
    mod = module(lambda emit, x: conv(x))
    with recording() as log:
        planned = LayoutPlanning(machine=machine)(mod)

    assert planned.same_as(mod)
    assert log[0].reason.startswith("conversion does not pay: ")


def test_machine_of_the_current_target_is_the_default() -> None:
    mod = module(lambda emit, x: conv(emit(conv(x, 64)), 64), (1, 64, 13, 13))
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v4", "num-cores": 1}
    with tvm.target.Target(target), recording() as log:
        LayoutPlanning()(mod)
    assert log


def test_fused_function_is_left_alone() -> None:
    mod = module(lambda emit, x: conv(x))
    mod = tvm.IRModule({"main": mod["main"].with_attr("Primitive", True)})
    assert plan(mod)[0].same_as(mod)


def test_module_without_convolutions_is_left_alone() -> None:
    mod = module(lambda emit, x: relax.op.nn.relu(x))
    assert LayoutPlanning()(mod).same_as(mod)

"""The fixed point: straight code, If, Loop, calls, tuples, closures, and what is unknown."""

import numpy as np
from analysed_models import if_model, loop_model
from small_models import node
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tvm_ext.onnx_frontend import import_model
from tvm_ext.relay_passes.dataflow.constants import UNKNOWN, Known, constants
from tvm_ext.relay_passes.dataflow.value_ranges import ValueRanges, value_ranges
from tvm_ext.relay_passes.spans import bindings_of


def test_an_if_joins_its_branches():
    mod = import_model(if_model("Sigmoid", "Relu")).mod
    assert value_ranges(mod).results(mod.get_global_var("main")).low == 0
    mod = import_model(if_model("Sigmoid", "Tanh")).mod
    found = value_ranges(mod).results(mod.get_global_var("main"))
    assert -1.1 < found.low < -0.9
    assert 0.9 < found.high < 1.1


def test_a_loop_gets_a_fixed_point_by_widening():
    mod = import_model(loop_model([node("Abs", ["a"], ["s"]), node("Add", ["s", "x"], ["b"])])).mod
    found = value_ranges(mod, inputs={"x": (0.0, 1.0)}).results(mod.get_global_var("main"))
    assert (found[0].low, found[0].high) == (0.0, np.inf)


def test_a_loop_that_stays_inside_keeps_its_bounds():
    mod = import_model(loop_model([node("Mul", ["a", "x"], ["b"])])).mod
    found = value_ranges(mod, inputs={"x": (-1.0, 1.0)}).results(mod.get_global_var("main"))
    assert (found[0].low, found[0].high) == (-1.0, 1.0)


def test_a_branch_that_no_run_takes_decides_nothing():
    @I.ir_module
    class Module:
        @R.function(private=True)
        def choose(c: R.Tensor((), "bool"), x: R.Tensor((2,), "float32")) -> R.Tensor(
            (2,), "float32"
        ):
            if c:
                y = R.nn.relu(x)
                z = y
            else:
                w = R.negative(x)
                z = w
            return z

        @R.function
        def main(x: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
            cls = Module
            y = cls.choose(R.const(True, "bool"), x)
            return y

    solution = value_ranges(Module)
    assert solution.results(Module.get_global_var("main")).low == 0
    (negated,) = [
        binding.var
        for binding in bindings_of(Module["choose"])
        if getattr(getattr(binding.value, "op", None), "name", "") == "relax.negative"
    ]
    assert solution.of(negated) is None


def test_what_is_unknown_may_be_anything():
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2,), "float32")) -> R.Tuple(R.Tensor((2,), "float32")):
            @R.function
            def inner(y: R.Tensor((2,), "float32")) -> R.Tensor((2,), "float32"):
                z = R.nn.relu(y)
                return z

            a = R.call_pure_packed("f", x, ty_args=R.Tensor((2,), "float32"))
            b = inner(a)
            c = (b,)
            return c

    found = value_ranges(Module)
    (result,) = found.results(Module.get_global_var("main"))
    assert result.may_be_nan
    assert result.low == -np.inf


def test_constants_pass_through_calls_where_all_agree():
    @I.ir_module
    class Module:
        @R.function(private=True)
        def after(a: R.Tensor((), "int64"), b: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
            c = R.add(a, R.const(1, "int64"))
            d = R.multiply(c, b)
            e = (c, d)
            f = e[0]
            return f

        @R.function
        def main(x: R.Tensor((), "int64")) -> R.Tensor((), "int64"):
            cls = Module
            y = cls.after(R.const(2, "int64"), x)
            z = cls.after(R.const(2, "int64"), y)
            return z

    found = constants(Module)
    assert found.results(Module.get_global_var("main")) == Known(
        np.int64(3) + np.zeros((), "int64")
    )
    states = [found.of(binding.var) for binding in bindings_of(Module["after"])]
    assert states[1] is UNKNOWN


def test_constants_of_a_module_without_any():
    mod = import_model(if_model("Relu", "Abs")).mod
    assert constants(mod).results(mod.get_global_var("main")) is UNKNOWN


def test_straight_code_takes_one_walk(monkeypatch):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = x
            for _ in range(1000):
                y = builder.emit(relax.op.nn.relu(y))
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    mod = builder.get()
    calls = []

    def traced(*arguments):
        calls.append(arguments)
        return original(*arguments)

    original = ValueRanges.transfer
    monkeypatch.setattr(ValueRanges, "transfer", traced)
    value_ranges(mod)
    assert len(calls) == 1000

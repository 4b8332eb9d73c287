"""CorrelatedValuePropagation: what goes, what stays, and that numbers keep their bits."""

import numpy as np
import pytest
import tvm
from small_models import model, node, value
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R

import tvm_ext
from tvm_ext.compiler.graph_analysis import operator_counts
from tvm_ext.relay_passes import CorrelatedValuePropagation
from tvm_ext.relay_passes.graph_pass import recording

op, nn = relax.op, relax.op.nn
N = tirx.Var("n", "int64")


def module(body, *types: relax.Type) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{place}", ty) for place, ty in enumerate(types)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(result)
    return builder.get()


def counts(body, *types: relax.Type) -> dict[str, int]:
    """Operators that are left; the pass is pure, and a second run changes nothing."""
    mod = module(body, *(types or [FLOATS]))
    before = mod.script()
    after = CorrelatedValuePropagation()(mod)
    assert mod.script() == before
    assert relax.analysis.check_well_formed(after)
    assert CorrelatedValuePropagation()(after).same_as(after)
    return operator_counts(after)


def tensor(*shape, dtype="float32"):
    return relax.TensorType(shape, dtype)


FLOATS = tensor(N, 3)
BYTES = tensor(N, 3, dtype="uint8")


def scalar(number, dtype="float32"):
    return relax.const(number, dtype)


REMOVED = {
    "relu of softmax": (lambda emit, x: nn.relu(emit(nn.softmax(x))), "nn.relu"),
    "relu of abs": (lambda emit, x: nn.relu(emit(op.abs(x))), "nn.relu"),
    "clip of sigmoid": (lambda emit, x: op.clip(emit(op.sigmoid(x)), -1, 2), "clip"),
    "abs of a square": (
        lambda emit, x: op.abs(emit(op.add(emit(op.clip(x, 0, 6)), scalar(1.0)))),
        "none",
    ),
    "rounding": (lambda emit, x: op.round(emit(op.floor(x))), "round"),
    "mask": (
        lambda emit, x: op.where(emit(op.less(emit(op.abs(x)), scalar(-1.0))), x, emit(op.exp(x))),
        "where",
    ),
}


@pytest.mark.parametrize("name", REMOVED)
def test_superfluous_operators_go(name):
    body, gone = REMOVED[name]
    assert gone not in counts(body)


def test_relu_of_relu_goes_although_it_may_be_a_negative_zero():
    assert counts(lambda emit, x: nn.relu(emit(nn.relu(x)))) == {"nn.relu": 1}


def test_casts_that_lose_nothing_go():
    def there_and_back(emit, x, dtype="float32", back="uint8"):
        return op.astype(emit(op.astype(x, dtype)), back)

    assert counts(there_and_back, BYTES) == {}
    narrow = counts(lambda emit, x: there_and_back(emit, x, "float16", "float32"))
    assert narrow == {"astype": 2}
    assert counts(lambda emit, x: there_and_back(emit, x, "int32", "float32")) == {"astype": 2}


def test_the_larger_of_bytes_and_zero_is_the_byte():
    wide = {"astype": 1}
    assert (
        counts(lambda emit, x: op.maximum(emit(op.astype(x, "int32")), scalar(0, "int32")), BYTES)
        == wide
    )
    assert (
        counts(lambda emit, x: op.minimum(emit(op.astype(x, "int32")), scalar(255, "int32")), BYTES)
        == wide
    )
    assert "maximum" in counts(lambda emit, x: op.maximum(x, scalar(0.0)))


STAYS = {
    "relu of an input": lambda emit, x: nn.relu(x),
    "clip that is reached": lambda emit, x: op.clip(emit(op.exp(x)), 0, 6),
    "relu that may be -0": lambda emit, x: nn.relu(emit(op.multiply(emit(nn.relu(x)), x))),
    "abs that may be NaN": lambda emit, x: op.abs(emit(op.exp(x))),
    "comparison with NaN": lambda emit, x: op.less(emit(op.exp(x)), scalar(np.inf)),
    "larger of broadcast": lambda emit, x: op.maximum(emit(op.sum(x)), x),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_may_matter_stays(name):
    mod = module(STAYS[name], FLOATS)
    assert CorrelatedValuePropagation()(mod).same_as(mod)


def test_a_place_that_may_lie_outside_is_brought_inside():
    """TVM's argmax gives -1 where all numbers are -inf, and the importer puts this behind it."""

    def places(emit, x):
        return op.maximum(emit(op.argmax(x, axis=1)), scalar(0, "int64"))

    assert counts(places) == {"argmax": 1, "maximum": 1}


def test_the_same_sum_is_computed_once():
    def body(emit, x, y):
        return op.multiply(emit(op.add(x, y)), emit(op.add(y, x)))

    assert counts(body, FLOATS, tensor(N, 3)) == {"add": 1, "multiply": 1}

    def different(emit, x, y):
        return op.multiply(emit(op.subtract(x, y)), emit(op.subtract(y, x)))

    assert counts(different, FLOATS, tensor(N, 3)) == {"subtract": 2, "multiply": 1}


def test_an_if_with_a_known_condition_goes():
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2,), "int32")) -> R.Tensor((2,), "float32"):
            size = R.sum(R.clip(x, 0, 3))
            c = R.less(size, R.const(0, "int32"))
            y = R.astype(x, "float32")
            if c:
                a = R.exp(y)
                z = a
            else:
                b = R.abs(y)
                z = b
            return z

    with recording() as decisions:
        after = CorrelatedValuePropagation()(relax.transform.Normalize()(Module))
    assert "exp" not in operator_counts(after)
    assert "abs" in operator_counts(after)
    assert any("always takes one branch" in one.reason for one in decisions)


@pytest.mark.extended
def test_numbers_keep_their_bits():
    nodes = [
        node("Softmax", ["x"], ["s"]),
        node("Relu", ["s"], ["r"]),
        node("Clip", ["r", "low", "high"], ["c"]),
        node("Add", ["c", "x"], ["a"]),
        node("Add", ["x", "c"], ["b"]),
        node("Mul", ["a", "b"], ["y"]),
    ]
    bounds = {"low": np.float32(-1), "high": np.float32(4)}
    proto = model(nodes, [value("x", ["N", 5])], [value("y", ["N", 5])], **bounds)
    x = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")
    x[1, 2], x[2, 3] = np.nan, np.inf
    with_pass = tvm_ext.compile(proto, opt_level="O1")
    without = tvm_ext.compile(proto, opt_level="O1", disabled_passes=[NAME])
    assert any(one.name == NAME and one.changed for one in with_pass.report.passes)
    given = with_pass.run({"x": x})["y"], without.run({"x": x})["y"]
    np.testing.assert_array_equal(*given)


NAME = "CorrelatedValuePropagation"

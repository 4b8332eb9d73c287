"""VectorMath in a compilation: which kernels it takes, what it records, the error of operators."""

import numpy as np
import onnx
import pytest
import scipy.special
import tvm
from small_models import model, node, rand, value
from tvm import relax, tirx
from tvm_ffi import structural_equal
from unoptimised import HOST, machine_of

import tvm_ext
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.passes.vector_math import VectorMath
from tvm_ext.relay_passes.graph_pass import recording

nn = relax.op.nn

# Operators made of functions: the exact result, and how far arguments reach.
OPERATORS = {
    "silu": (nn.silu, lambda x: x * scipy.special.expit(x), 30),
    "gelu": (nn.gelu, lambda x: x * scipy.special.ndtr(x), 4),
    "gelu_tanh": (
        nn.gelu_tanh,
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        3,
    ),
    "softplus": (
        lambda x: relax.op.log(relax.op.add(relax.op.exp(x), relax.const(1.0))),
        lambda x: np.logaddexp(0, x),
        20,
    ),
    "softmax": (lambda x: nn.softmax(x, -1), scipy.special.softmax, 20),
    "log_softmax": (lambda x: nn.log_softmax(x, -1), scipy.special.log_softmax, 20),
}


def kernels(operator, shape=(3, 40), dtype="float32"):
    """The module of one operator, lowered to kernels."""
    x = relax.Var("x", relax.TensorType(shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(operator(x))
        builder.emit_func_output(result)
    return relax.transform.LegalizeOps()(builder.get())


def rewritten(mod):
    return tvm.transform.Sequential([VectorMath()])(mod)


def run(mod, x):
    machine = machine_of(mod)
    return machine["main"](tvm.runtime.tensor(x)).numpy()


def scripts(mod):
    return [func.script() for func in mod.functions.values() if isinstance(func, tirx.PrimFunc)]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_made_of_functions(name):
    operator, exact, end = OPERATORS[name]
    x = np.linspace(-end, end, 120).astype("float32").reshape(3, 40)
    axis = {"axis": -1} if "softmax" in name else {}
    after = rewritten(kernels(operator))
    assert not any("T.exp" in text or "T.erf" in text or "T.log" in text for text in scripts(after))
    wanted = exact(x.astype("float64"), **axis)
    # Where a definition cancels, the error is that of the argument.
    scale = np.maximum(np.maximum(np.abs(x), np.abs(wanted)), 1)
    assert np.max(np.abs(run(after, x) - wanted) / scale) < 3e-7


def test_softmax_of_masks_and_of_nan():
    x = np.array([[0, -np.inf, 1], [-np.inf] * 3, [0, np.nan, 1]], "float32")
    after = rewritten(kernels(lambda v: nn.softmax(v, -1), x.shape))
    wanted = scipy.special.softmax(x[:1].astype("float64"), -1)
    result = run(after, x)
    np.testing.assert_allclose(result[:1], wanted, rtol=1e-6)
    assert np.all(np.isnan(result[1:]))


def test_the_input_stays_and_a_second_run_changes_nothing():
    before = kernels(relax.op.tanh)
    text = before.script()
    after = rewritten(before)
    assert before.script() == text
    assert not structural_equal(after, before)
    assert rewritten(after).same_as(after)


def test_a_module_without_functions_is_returned_itself():
    before = kernels(nn.relu)
    assert rewritten(before).same_as(before)


def test_decisions_name_functions_and_what_stays():
    with recording() as decisions:
        rewritten(kernels(relax.op.erf))
        rewritten(kernels(relax.op.exp, dtype="float64"))
    assert [(d.pass_name, d.applied, d.reason) for d in decisions] == [
        ("VectorMath", True, "erf in vectors"),
        ("VectorMath", False, "exp of float64 stays a call for each element"),
    ]


@pytest.mark.extended
def test_a_report_names_the_nodes():
    nodes = [node("Relu", ["x"], ["r"], name="cut"), node("Tanh", ["r"], ["y"], name="bend")]
    source = model(nodes, [value("x", [3, 40])], [value("y", [3, 40])])
    compiled = tvm_ext.compile(source)
    (record,) = [r for r in compiled.report.passes if r.name == "VectorMath"]
    assert [(d.where, d.reason) for d in record.decisions] == [("cut + bend", "tanh in vectors")]
    x = rand(3, 40)
    found = compiled.run({"x": x})["y"]
    np.testing.assert_allclose(found, np.tanh(np.maximum(x, 0)), rtol=5e-7)


def test_kernels_for_gpus_keep_their_calls():
    before = kernels(relax.op.exp)
    with compiling_for(resolve_target("cuda")):
        assert VectorMath()(before).same_as(before)
    with compiling_for(resolve_target("avx2")):
        assert not VectorMath()(before).same_as(before)


def test_it_runs_behind_the_schedules_at_the_highest_level_and_can_be_left_out():
    entry = registry.get("VectorMath")
    assert (entry.level, entry.source) == ("tile", "built-in")
    assert "VectorMath" in [step.entry.name for step in build_pipeline("O3").tile]
    assert "VectorMath" not in [step.entry.name for step in build_pipeline("O2").tile]
    tile = build_pipeline("O3", disabled_passes=["VectorMath"]).tile
    step = next(one for one in tile if one.entry.name == "VectorMath")
    assert step.skipped == "disabled"


@pytest.mark.extended
@pytest.mark.parametrize(("last", "sign"), [("Relu (f)", 0), ("Identity (f)", -1)])
def test_a_negated_function_of_dequantised_values_gets_code(last, sign):
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]> g (float[64, 7] x) => (float[64, 7] y)
        <float s = {{0.03}}, uint8 z = {{0}}> {{
            q = QuantizeLinear (x, s, z)
            d = DequantizeLinear (q, s, z)
            e = Sigmoid (d)
            f = Neg (e)
            y = {last}
        }}"""
    )
    x = np.linspace(-1, 3, 64 * 7, dtype=np.float32).reshape(64, 7)
    steps = np.clip(np.rint(x / np.float32(0.03)), 0, 255)
    found = tvm_ext.compile(proto, HOST).run({"x": x})["y"]
    np.testing.assert_allclose(found, sign * scipy.special.expit(steps * 0.03), rtol=1e-5)

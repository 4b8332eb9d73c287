"""``precision="auto"``: switches, what stays wide and why, and errors within the limit."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.check import automatic_mixed_precision as automatic
from tvm_ext.check.check import check_model
from tvm_ext.cli.options import CompileOptions
from tvm_ext.errors import InputError, PrecisionError
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.onnx_frontend import read_model
from tvm_ext.onnx_frontend.submodel import typed_model, value_types
from tvm_ext.report.compile_report import CompileReport

RANDOM = np.random.default_rng(0)
MULTIPLIES = host_description().multiplies_bfloat16
needs_bfloat16 = pytest.mark.skipif(not MULTIPLIES, reason="this CPU widens bfloat16")


def weights(*shape):
    array = RANDOM.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))
    return array.astype("float32")


def model(nodes, shape, outputs, **stored):
    """``x`` and the nodes ``(operator, inputs, output)``, each called as its output."""
    made = [helper.make_node(op, ins, [out], name=out, **more) for op, ins, out, more in nodes]
    graph = helper.make_graph(
        made,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def layers(*after, outputs=None, opset=17):
    """Two products, ReLU between them."""
    nodes = [
        ("MatMul", ["x", "w1"], "first", {}),
        ("Relu", ["first"], "positive", {}),
        ("Gemm", ["positive", "w2", "b"], "second", {"transB": 1}),
        *after,
    ]
    stored = {"w1": weights(64, 256), "w2": weights(96, 256), "b": weights(96)}
    made = model(nodes, [64, 64], outputs or {"second": TensorProto.FLOAT}, **stored)
    made.opset_import[0].version = opset
    return made


def rounded(array):
    return array.astype(ml_dtypes.bfloat16).astype("float32")


def switched(proto, *names):
    changed = typed_model(read_model(proto))
    automatic._insert_switches(changed, names)
    onnx.checker.check_model(changed)
    return tvm_ext.compile(changed)


@pytest.mark.extended
def test_each_switch_rounds_the_operands_of_one_product():
    proto = layers()
    stored = {one.name: numpy_helper.to_array(one) for one in proto.graph.initializer}
    program = switched(proto, "first", "second")
    x = RANDOM.standard_normal((64, 64)).astype("float32")
    for first in (False, True):
        for second in (False, True):
            a, w1 = (rounded(x), rounded(stored["w1"])) if first else (x, stored["w1"])
            hidden, w2 = np.maximum(a @ w1, 0), stored["w2"]
            if second:
                hidden, w2 = rounded(hidden), rounded(w2)
            wanted = hidden @ w2.T + stored["b"]
            switches = np.array([first, second])
            found = program.run({"x": x, automatic._SWITCHES: switches})["second"]
            # Sums in another order may round a number the other way.
            plain = np.maximum(x @ stored["w1"], 0) @ stored["w2"].T + stored["b"]
            change = np.abs(wanted - plain).max()
            assert np.abs(found - wanted).max() <= max(change / 8, 1e-5), (first, second)


@pytest.mark.slow
def test_a_switch_at_a_convolution():
    w, b = weights(32, 16, 3, 3), weights(32)
    proto = model(
        [("Conv", ["x", "w", "b"], "y", {"pads": [1, 1, 1, 1]})],
        [1, 16, 8, 8],
        {"y": TensorProto.FLOAT},
        w=w,
        b=b,
    )
    program = switched(proto, "y")
    x = RANDOM.standard_normal((1, 16, 8, 8)).astype("float32")
    off, on = (
        program.run({"x": x, automatic._SWITCHES: np.array([flag])})["y"] for flag in (False, True)
    )
    (plain,) = tvm_ext.compile(proto).run({"x": x}).values()
    np.testing.assert_allclose(off, plain, atol=1e-5)
    assert 1e-4 < np.abs(on - plain).max() < 2e-2


def deciding(proto, is_steep=False):
    graph = typed_model(read_model(proto)).graph
    types, producers = value_types(graph), automatic._producers(graph)

    def is_wanted(node):
        if is_steep:
            return automatic._is_steep(node, producers)
        return automatic._jumps_at(node, types)

    return automatic._deciding(graph, is_wanted)


@pytest.mark.parametrize(
    ("after", "kind", "found"),
    [
        ([("ArgMax", ["second"], "y", {})], TensorProto.INT64, "ArgMax 'y'"),
        ([("Cast", ["second"], "y", {"to": TensorProto.INT32})], TensorProto.INT32, "Cast 'y'"),
        ([("Greater", ["second", "b"], "y", {})], TensorProto.BOOL, "Greater 'y'"),
        ([("Round", ["second"], "y", {})], TensorProto.FLOAT, "Round 'y'"),
        ([("Cast", ["second"], "y", {"to": TensorProto.DOUBLE})], TensorProto.DOUBLE, None),
        ([("Shape", ["second"], "s", {}), ("Mod", ["s", "s"], "y", {})], TensorProto.INT64, None),
        ([("Softmax", ["second"], "y", {})], TensorProto.FLOAT, None),
    ],
)
def test_what_decides_a_jump_stays_wide(after, kind, found):
    reached = deciding(layers(*after, outputs={"y": kind}))
    assert (reached.get("first"), reached.get("second")) == (found, found)


def normalised(denominator):
    return layers(
        ("Mul", ["second", "second"], "squares", {}),
        ("ReduceMean", ["squares"], "mean", {"axes": [1]}),
        ("Add", ["mean", "b"], "shifted", {}),
        ("Sqrt", ["shifted"], "root", {}),
        ("Div", ["second", denominator], "y", {}),
        outputs={"y": TensorProto.FLOAT},
    )


def test_only_divisions_by_what_may_be_small_are_steep():
    assert deciding(normalised("root"), is_steep=True) == {}
    assert deciding(normalised("b"), is_steep=True) == {}
    assert deciding(normalised("shifted"), is_steep=True)["second"] == "Div 'y'"


def test_products_that_save_most_are_taken_first():
    changes = {"a": np.array([3e-3]), "b": np.array([3e-3]), "c": np.array([2e-2])}
    gains = {"a": 1.0, "b": 4.0, "c": 9.0}
    taken, reasons = automatic._within(changes, gains, 4e-3)
    assert taken == ["b"]
    assert "spent" in reasons["a"]
    assert "alone" in reasons["c"]
    taken, reasons = automatic._within(changes, gains, 1e-1)
    assert (sorted(taken), reasons) == (["a", "b", "c"], {})


@needs_bfloat16
@pytest.mark.parametrize(("limit", "narrow"), [(1e-5, 0), (1e-1, 2)])
def test_the_error_stays_within_the_limit(limit, narrow):
    proto = layers()
    compiled = tvm_ext.compile(proto, precision="auto", max_error=limit)
    record = compiled.report.precision
    assert len(record.narrow) == narrow
    assert record.measured <= record.bound <= limit
    assert all(node.bound > 1e-5 for node in record.nodes)
    x = RANDOM.standard_normal((64, 64)).astype("float32")
    found, wanted = (one.run({"x": x})["second"] for one in (compiled, tvm_ext.compile(proto)))
    error = np.abs(found - wanted).max() / np.abs(wanted).max()
    assert error <= (record.bound or 1e-6)
    assert bool(error > 1e-5) is bool(narrow)


@needs_bfloat16
def test_a_model_of_an_older_opset():
    record = tvm_ext.compile(layers(opset=11), precision="auto", max_error=0.1).report.precision
    assert len(record.narrow) == 2


@needs_bfloat16
def test_an_output_that_becomes_infinite_has_no_bound(tmp_path):
    proto = layers(
        ("Relu", ["second"], "part", {}),
        ("Log", ["part"], "y", {}),
        outputs={"y": TensorProto.FLOAT},
    )
    compiled = tvm_ext.compile(proto, precision="auto", max_error=0.1)
    compiled.save(tmp_path / "model.tvmx")
    nodes = tvm_ext.load(tmp_path / "model.tvmx").report.precision.nodes
    assert any(node.bound is None and "finite" in node.reason for node in nodes)


@needs_bfloat16
def test_nodes_of_one_name_stay_wide():
    proto = layers()
    proto.graph.node[2].name = "first"
    record = tvm_ext.compile(proto, precision="auto", max_error=0.1).report.precision
    assert record.narrow == []


@needs_bfloat16
def test_some_products_are_narrow_and_the_report_keeps_them(tmp_path):
    proto = layers(
        ("Mul", ["second", "large"], "y", {}),
        ("Softmax", ["y"], "z", {}),
        ("MatMul", ["z", "w3"], "third", {}),
        outputs={"third": TensorProto.FLOAT},
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.float32(20), "large"))
    proto.graph.initializer.append(numpy_helper.from_array(weights(96, 256), "w3"))
    compiled = tvm_ext.compile(proto, precision="auto", max_error=2.5e-2)
    record = compiled.report.precision
    assert 0 < len(record.narrow) < len(record.nodes) == 3
    compiled.save(tmp_path / "model.tvmx")
    loaded = tvm_ext.load(tmp_path / "model.tvmx").report
    assert loaded.precision == record
    assert CompileReport.from_json(loaded.to_json()) == loaded
    assert check_model(proto, precision="auto", max_error=2.5e-2).ok


@pytest.mark.slow
@needs_bfloat16
def test_samples_decide_what_is_measured(tmp_path):
    x = RANDOM.standard_normal((64, 64)).astype("float32")
    np.savez(tmp_path / "samples.npz", x=x)
    for samples in (tmp_path / "samples.npz", {"x": x}, [{"x": x}, {"x": 2 * x}]):
        compiled = tvm_ext.compile(layers(), precision="auto", samples=samples)
        assert compiled.report.precision.samples == (2 if isinstance(samples, list) else 1)


@needs_bfloat16
def test_a_program_beyond_the_limit_is_an_error(monkeypatch):
    monkeypatch.setattr(
        automatic,
        "_choice",
        lambda trial, samples, limit, _: automatic._Choice(
            trial.products,
            set(trial.products),
            {},
            {},
            limit,
            [{"second": np.full((64, 96), 9.0)}] * 3,
        ),
    )
    with pytest.raises(PrecisionError, match=r"differs from float32 by .* expected at most"):
        tvm_ext.compile(layers(), precision="auto")


@pytest.mark.extended
def test_a_cpu_without_the_instruction_has_wide_products():
    compiled = tvm_ext.compile(layers(), "avx2", precision="auto")
    assert compiled.report.precision.nodes == []
    assert "no instruction" in compiled.report.precision.figure


@pytest.mark.parametrize(
    ("keywords", "what"),
    [
        ({"max_error": 0.1}, "max_error or samples were given with precision 'model'"),
        ({"precision": "auto", "max_error": 0.0}, "expected a number above 0"),
        ({"precision": "auto", "max_error": float("nan")}, "expected a number above 0"),
        ({"precision": "auto", "max_error": "0.1"}, "expected a number above 0"),
        ({"precision": "auto", "samples": []}, "samples is empty"),
        ({"precision": "auto", "samples": 5}, "samples is of type int"),
        ({"precision": "auto", "samples": {"z": 1}}, "the model has no input 'z'"),
        ({"precision": "auto", "specialize": "auto"}, "expected one of them"),
    ],
)
def test_refusals(keywords, what):
    if "samples" in keywords and not MULTIPLIES:
        pytest.skip("this CPU has no tile registers")
    with pytest.raises(InputError, match=what):
        tvm_ext.compile(layers(), **keywords)


def test_options_of_the_command_line():
    chosen = CompileOptions.parsed(precision="auto", max_error=0.5)
    assert chosen.keywords()["max_error"] == 0.5
    with pytest.raises(InputError, match="without --precision auto"):
        CompileOptions.parsed(max_error=0.5)
    with pytest.raises(InputError, match="cannot be used with this command"):
        chosen.require_stated_precision()

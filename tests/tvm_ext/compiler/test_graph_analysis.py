"""Which kernel computes which ONNX nodes, from the model to the report, at every level."""

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from unoptimised import HOST

import tvm_ext
from tvm_ext.compiler.graph_analysis import FusionObserver, kernel_calls
from tvm_ext.report.records import KernelCall

LEVELS = ("O0", "O3")


def value(name: str, shape: list | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name: str, *shape: int, seed: int = 0, low: float = -0.5) -> onnx.TensorProto:
    draw = np.random.default_rng([seed, *shape])
    return numpy_helper.from_array(draw.uniform(low, 1, shape).astype(np.float32), name)


def model(nodes, inputs, outputs, weights=()) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "model", inputs, outputs, list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


node = helper.make_node


def conv_net() -> onnx.ModelProto:
    """Conv, BN, ReLU, pool, flatten, Gemm."""
    batch_norm = ["scale", "shift", "mean", "variance"]
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", *batch_norm], ["b"], name="bn"),
        node("Relu", ["b"], ["r"], name="relu"),
        node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p"], ["f"], name="flat"),
        node("Gemm", ["f", "g", "h"], ["y"], name="gemm", transB=1),
    ]
    weights = [
        weight("w", 4, 3, 3, 3),
        *(weight(name, 4, seed=i, low=0.5) for i, name in enumerate(batch_norm)),
        weight("g", 5, 4 * 3 * 4),
        weight("h", 5),
    ]
    return model(nodes, [value("x", [1, 3, 6, 8])], [value("y", [1, 5])], weights)


def origins(proto: onnx.ModelProto, level: str) -> list[tuple[str, ...]]:
    return [call.origins for call in tvm_ext.compile(proto, HOST, opt_level=level).kernel_calls()]


def named(found: list[tuple[str, ...]]) -> list[str]:
    return [name for names in found for name in names]


@pytest.mark.extended
def test_without_optimisation_every_kernel_names_its_one_node():
    found = origins(conv_net(), "O0")
    assert all(len(names) == 1 for names in found)
    assert {"conv", "bn", "relu", "pool", "gemm"} <= set(named(found))
    order = [name for i, name in enumerate(named(found)) if name not in named(found)[:i]]
    assert [name for name in order if name != "flat"] == ["conv", "bn", "relu", "pool", "gemm"]


@pytest.mark.extended
def test_optimised_kernels_name_all_that_they_took_in():
    found = origins(conv_net(), "O3")
    (conv,) = [names for names in found if "conv" in names]
    assert set(conv) == {"conv", "bn", "relu"}
    (gemm,) = [names for names in found if "gemm" in names]
    assert "conv" not in gemm
    assert "pool" in named(found)
    assert all(found)


@pytest.mark.extended
@pytest.mark.parametrize("level", LEVELS)
def test_two_layers_that_share_a_kernel_have_their_own_names(level):
    nodes, weights, last = [], [], "x"
    for layer in ("one", "two", "three"):
        nodes.append(node("MatMul", [last, f"w_{layer}"], [f"m_{layer}"], name=f"mm {layer}"))
        nodes.append(node("Relu", [f"m_{layer}"], [f"r_{layer}"], name=f"relu {layer}"))
        weights.append(weight(f"w_{layer}", 6, 6, seed=len(layer) + len(weights)))
        last = f"r_{layer}"
    proto = model(nodes, [value("x", [2, 6])], [value(last, [2, 6])], weights)
    compiled = tvm_ext.compile(proto, HOST, opt_level=level)
    found = {}
    for call in compiled.kernel_calls():
        found.setdefault(call.kernel, []).append(call.origins)
    if level == "O0":
        assert [len(calls) for calls in found.values()] == [3, 3]
    else:
        (calls,) = found.values()
        assert calls == [(f"mm {n}", f"relu {n}") for n in ("one", "two", "three")]
    assert sorted(named([c for calls in found.values() for c in calls])) == sorted(
        f"{kind} {n}" for kind in ("mm", "relu") for n in ("one", "two", "three")
    )
    assert [kernel.calls for kernel in compiled.report.kernels] == [
        len(calls) for calls in found.values()
    ]


@pytest.mark.extended
@pytest.mark.parametrize("level", LEVELS)
def test_same_layers_with_another_epsilon_share_no_kernel(level):
    nodes = [
        node("LayerNormalization", ["x", "s"], ["a"], name="exact", epsilon=1e-5),
        node("LayerNormalization", ["a", "s"], ["y"], name="coarse", epsilon=0.5),
    ]
    proto = model(nodes, [value("x", [3, 4])], [value("y", [3, 4])], [weight("s", 4)])
    compiled = tvm_ext.compile(proto, HOST, opt_level=level)
    kernels = {call.kernel for call in compiled.kernel_calls()}
    assert len(kernels) == len(compiled.kernel_calls())
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    scale = numpy_helper.to_array(proto.graph.initializer[0])
    wanted = x.astype(np.float64)
    for epsilon in (1e-5, 0.5):
        centred = wanted - wanted.mean(1, keepdims=True)
        wanted = centred / np.sqrt((centred**2).mean(1, keepdims=True) + epsilon) * scale
    np.testing.assert_allclose(compiled.run({"x": x})["y"], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@pytest.mark.parametrize("level", LEVELS)
def test_a_node_with_several_outputs_is_named(level):
    nodes = [
        node("Split", ["x"], ["a", "b", "c"], name="cut in three", axis=1),
        node("Exp", ["a"], ["ea"], name="exp a"),
        node("Tanh", ["c"], ["tc"], name="tanh c"),
    ]
    outputs = [value("ea", [2, 2]), value("b", [2, 2]), value("tc", [2, 2])]
    found = origins(model(nodes, [value("x", [2, 6])], outputs), level)
    assert all(found)
    assert {"cut in three", "exp a", "tanh c"} == set(named(found))


ODD_NAMES = ["layer 1 relu", "/model/0/Relu", "größe·层", 'quote " \\', "a.b:0"]


@pytest.mark.parametrize("level", LEVELS)
def test_odd_names_come_through_as_they_are(level):
    nodes, last = [], "x"
    for i, name in enumerate(ODD_NAMES):
        nodes.append(node("Tanh" if i % 2 else "Exp", [last], [f"v{i}"], name=name))
        last = f"v{i}"
    proto = model(nodes, [value("x", [2, 3])], [value(last, [2, 3])])
    assert sorted(named(origins(proto, level))) == sorted(ODD_NAMES)


def test_a_name_with_the_separator_in_it_stays_readable():
    nodes = [
        node("Exp", ["x"], ["e"], name="left + right"),
        node("Softmax", ["e"], ["y"], name="soft"),
    ]
    proto = model(nodes, [value("x", [2, 3])], [value("y", [2, 3])])
    compiled = tvm_ext.compile(proto, HOST)
    places = [place for kernel in compiled.report.kernels for place in kernel.origins]
    assert " + ".join(places) == "left + right + soft"
    assert [call.where for call in compiled.kernel_calls()] == places


@pytest.mark.extended
@pytest.mark.parametrize("level", LEVELS)
def test_nodes_without_names_get_some(level):
    nodes = [node("Exp", ["x"], ["e"]), node("Softmax", ["e"], ["y"])]
    proto = model(nodes, [value("x", [2, 3])], [value("y", [2, 3])])
    assert named(origins(proto, level)) == ["Exp_0", "Softmax_1"]


def branches() -> onnx.ModelProto:
    def branch(name: str, operator: str) -> onnx.GraphProto:
        nodes = [
            node("MatMul", ["a", "w"], [f"{name}_m"], name=f"{name} matmul"),
            node(operator, [f"{name}_m"], [f"{name}_y"], name=f"{name} act"),
        ]
        return helper.make_graph(nodes, name, [], [value(f"{name}_y", None)])

    nodes = [
        node("Exp", ["x"], ["a"], name="before"),
        node(
            "If",
            ["flag"],
            ["r"],
            name="choose",
            then_branch=branch("then", "Relu"),
            else_branch=branch("else", "Tanh"),
        ),
        node("Neg", ["r"], ["y"], name="after"),
    ]
    inputs = [value("x", [2, 4]), value("flag", [], TensorProto.BOOL)]
    return model(nodes, inputs, [value("y", [2, 4])], [weight("w", 4, 4)])


@pytest.mark.extended
@pytest.mark.parametrize("level", LEVELS)
def test_nodes_inside_branches_have_their_own_names(level):
    found = named(origins(branches(), level))
    assert sorted(found) == sorted(
        ["before", "then matmul", "then act", "else matmul", "else act", "after"]
    )
    assert found[0] == "before"
    assert found[-1] == "after"


def test_calls_are_described_and_listed_in_the_order_of_a_run():
    assert KernelCall("k", ("a", "b")).where == "a + b"
    assert KernelCall("k", ()).where == ""
    assert kernel_calls(tvm.IRModule()) == []


@pytest.mark.extended
def test_kernels_before_fusion_are_counted_once():
    compiled = tvm_ext.compile(conv_net(), HOST, opt_level="O3")
    graph = compiled.report.graph
    assert graph.kernels == len(compiled.kernel_calls()) < graph.kernels_before_fusion
    plain = tvm_ext.compile(conv_net(), HOST, opt_level="O0").report.graph
    assert plain.kernels == plain.kernels_before_fusion
    assert FusionObserver().kernel_calls == 0

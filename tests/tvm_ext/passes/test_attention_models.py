"""Attention in the forms of exported models: one kernel on GPUs, equal numbers, and refusals."""

from collections.abc import Callable, Sequence

import attention_models as models
import numpy as np
import onnx
import pytest
import tvm
from attention_models import BATCH, HEADS, KEYS, QUERIES, RESULT, Graph
from emulated_models import emulated_model
from memory_planning import plan_memory
from onnx import TensorProto
from side_by_side import Rewrite, assert_all_same
from thoroughness import one_in
from unoptimised import HOST, LLVM, machine_of

import tvm_ext
from tvm_ext.compiler.build import build
from tvm_ext.compiler.stages import Phases, lower_model
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.passes.runner import PassRunner
from tvm_ext.report.records import Decision

FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    "bert": models.bert,
    "bert half": lambda: models.bert("float16"),
    "one head": models.one_head,
    "torch causal": models.torch_causal,
    "torch boolean": models.torch_boolean,
    "torch dynamo": models.torch_dynamo,
    "masked fill": models.masked_fill,
    "grouped": models.grouped,
    "three axes": models.three_axes,
    "operator": models.operator,
    "operator causal": lambda: models.operator(is_causal=1),
    "microsoft": models.microsoft,
    "microsoft self": models.microsoft_self,
}


def inputs_of(model: onnx.ModelProto) -> list[np.ndarray]:
    """Numbers for every input; where keys are seen, the first always is."""
    draw, found = np.random.default_rng(4), []
    for item in model.graph.input:
        shape = [d.dim_value for d in item.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)
        if dtype.kind == "f":
            found.append(draw.standard_normal(shape).astype(dtype))
            continue
        array = (draw.random(shape) < 0.6).astype(dtype)
        array[..., 0] = item.name != "hidden"
        found.append(array)
    return found


def lowered(
    model: onnx.ModelProto, target: str, without: Sequence[str] = ()
) -> tuple[tvm.IRModule, list[Decision]]:
    """The kernels of a model for a target, and what AttentionFusion decided."""
    runner = PassRunner()
    pipeline = build_pipeline(disabled_passes=without)
    with compiling_for(resolve_target(target)):
        kernels = lower_model(model, None, pipeline, runner, Phases()).kernels
    decisions = [d for record in runner.records for d in record.decisions]
    return kernels, [d for d in decisions if d.pass_name == "AttentionFusion"]


def run(kernels: tvm.IRModule, arrays: list[np.ndarray]) -> np.ndarray:
    """Runs kernels as they are, without schedules, on the CPU."""
    machine = machine_of(build(plan_memory(kernels)[0], LLVM))
    return machine["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()


@pytest.mark.extended
@pytest.mark.parametrize(("half", "tolerance"), one_in(2, [(False, 1e-5), (True, 4e-3)]))
def test_every_form_is_one_kernel_with_the_same_numbers(half: bool, tolerance: float) -> None:
    rewrites = {}
    for name, make in FORMS.items():
        model = make()
        output = model.graph.output[0].type.tensor_type.elem_type
        if (output == TensorProto.FLOAT16) != half:
            continue
        plain, _ = lowered(model, "x86-64", without=["AttentionFusion"])
        for target in ("nvidia-h100", "avx512"):
            fused, decisions = lowered(model, target)
            assert [d.applied for d in decisions] == [True], (name, target, decisions)
            assert "softmax" not in fused.script(), (name, target)
            rewrites[f"{name}, {target}"] = Rewrite(plain, fused, [inputs_of(model)])
    assert_all_same(rewrites, rtol=tolerance, atol=tolerance)


@pytest.mark.extended
@pytest.mark.parametrize("is_first", one_in(2, [False, True]))
def test_a_sink_joins_the_softmax_of_one_kernel(is_first: bool) -> None:
    runtime = pytest.importorskip("onnxruntime")
    _, decisions = lowered(models.sink(is_first), "nvidia-h100")
    assert [d.reason for d in decisions] == ["there is no kernel for a sink of the softmax"]
    fixed = tvm_ext.compile(models.sink(is_first), HOST)
    open_sizes = tvm_ext.compile(models.sink(is_first, "bsk"), HOST)
    session = runtime.InferenceSession(models.sink(is_first).SerializeToString())
    given = dict(zip("qkv", inputs_of(models.sink(is_first)), strict=True))
    (wanted,) = session.run(None, given)
    for compiled in (fixed, open_sizes):
        assert [k.schedule for k in compiled.report.kernels] == ["attention"]
        (found,) = compiled.run(given).values()
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_sink_that_differs_by_query_stays() -> None:
    model = models.sink()
    (column,) = [w for w in model.graph.initializer if list(w.dims) == [1, HEADS, 1, 1]]
    wide = np.arange(HEADS * QUERIES, dtype="float32").reshape(1, HEADS, QUERIES, 1)
    column.CopyFrom(onnx.numpy_helper.from_array(wide, column.name))
    _, decisions = lowered(model, "avx512")
    assert [d.reason for d in decisions] == ["a sink of the softmax differs by query"]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("has_table", "has_views", "mask_first"),
    one_in(
        3,
        [
            *((True, False, True), (True, False, False), (True, True, False)),
            *((False, True, False), (False, False, False)),
        ],
    ),
)
def test_older_decoders_are_one_kernel_at_any_size(
    has_table: bool, has_views: bool, mask_first: bool
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = models.decoder(has_table, has_views, mask_first)
    compiled = tvm_ext.compile(model, HOST)
    assert "attention" in [kernel.schedule for kernel in compiled.report.kernels]
    assert not any("softmax" in kernel.name for kernel in compiled.report.kernels)
    session = runtime.InferenceSession(model.SerializeToString())
    draw = np.random.default_rng(2)
    # The last masks have one column for all keys.
    for batch, new, past, columns in [(1, 3, 0, 3), (2, 1, 9, 10), (1, 5, 4, 9), (2, 3, 4, 1)]:
        shape = {
            "mask": (batch, columns),
            **{name: (batch, HEADS, new, models.DEPTH) for name in "qkv"},
            **{name: (batch, HEADS, past, models.DEPTH) for name in ("past_k", "past_v")},
        }
        given = {n: draw.standard_normal(size).astype("float32") for n, size in shape.items()}
        given["mask"] = (given["mask"] > 1).astype("float32")
        (wanted,) = session.run(None, given)
        (found,) = compiled.run(given).values()
        np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)
    for columns in (2, 8):
        given["mask"] = np.zeros((2, columns), "float32")
        with pytest.raises(tvm_ext.TvmExtError, match="do not fit together"):
            compiled.run(given)


@pytest.mark.parametrize("scale", [{}, {"scale": 0.3}])
@pytest.mark.parametrize("name", ["microsoft", "microsoft self"])
def test_microsoft_as_onnx_runtime(name: str, scale: dict[str, float]) -> None:
    runtime = pytest.importorskip("onnxruntime")
    model = {"microsoft": models.microsoft, "microsoft self": models.microsoft_self}[name](**scale)
    session = runtime.InferenceSession(model.SerializeToString())
    arrays = inputs_of(model)
    given = dict(zip([item.name for item in model.graph.input], arrays, strict=True))
    (wanted,) = session.run(None, given)
    found = run(lowered(model, "nvidia-h100")[0], arrays)
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.emulated
def test_a_model_runs_as_cuda_code() -> None:
    model = models.bert("float16")
    compiled = emulated_model(model, "nvidia-a100")
    (kernel,) = [k for k in compiled.report.kernels if k.schedule == "attention"]
    assert {"QK", "Softmax13", "MatMul14", "Transpose15"} & {
        name for origin in kernel.origins for name in origin.split(" + ")
    }
    arrays = inputs_of(model)
    names = [item.name for item in model.graph.input]
    (found,) = compiled.run(dict(zip(names, arrays, strict=True))).values()
    wanted = run(lowered(model, "x86-64")[0], arrays)
    np.testing.assert_allclose(found, wanted, atol=4e-3, rtol=4e-3)


def small(change: Callable[[Graph, str], str], after: Callable[[Graph, str], str]) -> Graph:
    """An attention with a change of its scores, and one of its weights."""
    g = Graph()
    q, k, v = g.qkv()
    scores = change(g, g.op("MatMul", q, g.turned(k)))
    weights = after(g, g.op("Softmax", scores, axis=-1))
    g.result = g.op("MatMul", weights, v)
    return g


def same(_: Graph, x: str) -> str:
    return x


def scaled_mask(g: Graph, x: str) -> str:
    mask = g.input("mask", [1, 1, QUERIES, KEYS])
    return g.op("Mul", g.op("Add", x, mask), g.const(0.5))


REFUSALS = {
    "scale behind a mask": (scaled_mask, same, "scaled after a mask"),
    "scale below zero": (lambda g, x: g.op("Mul", x, g.const(-2)), same, "one number above zero"),
    "scale of each head": (
        lambda g, x: g.op("Mul", x, g.input("s", [1, HEADS, 1, 1])),
        same,
        "one number above zero",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    change, after, reason = REFUSALS[name]
    g = small(change, after)
    _, decisions = lowered(g.model(g.result, RESULT), "nvidia-h100")
    assert [d.applied for d in decisions] == [False]
    assert reason in decisions[0].reason


def test_weights_that_are_read_elsewhere_stay() -> None:
    g = small(same, same)
    model = g.model(g.result, RESULT)
    weights = next(n.output[0] for n in g.nodes if n.op_type == "Softmax")
    shape = [BATCH, HEADS, QUERIES, KEYS]
    model.graph.output.append(onnx.helper.make_tensor_value_info(weights, TensorProto.FLOAT, shape))
    _, decisions = lowered(model, "nvidia-h100")
    assert "another user" in decisions[0].reason


@pytest.mark.extended
def test_symbolic_lengths_are_left_alone() -> None:
    compiled = tvm_ext.compile(
        models.three_axes(), "nvidia-h100", input_shapes={"q": [BATCH * HEADS, "S", 8]}
    )
    assert all(kernel.schedule != "attention" for kernel in compiled.report.kernels)

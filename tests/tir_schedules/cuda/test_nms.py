"""NMS on a GPU: the boxes that stay, in any order of the threads."""

from typing import Any

import numpy as np
from cuda_emulation import set_seed
from cuda_kernels import (
    SERIAL_TARGET,
    in_series,
    needs_nvcc,
    resources,
    scheduled,
    shared_bytes,
    whole_source,
)
from emulated_kernels import emulated
from lowering import f32, kernel_of
from machines import GPU
from tvm import IRModule, relax, runtime, tirx
from unoptimised import linked

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import compiling_for
from tvm_ext.onnx_frontend.converters.non_max_suppression import NonMaxSuppression
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.cuda.nms import NMS
from tvm_ext.tir_schedules.template import FixedDecisions

TEMPLATE = NMS()


def nms(batches: int, classes: int, count: Any, limit: int, centered: int) -> tirx.PrimFunc:
    """The kernel that the ONNX frontend makes for NonMaxSuppression."""
    builder = relax.BlockBuilder()
    boxes = relax.Var("boxes", relax.TensorType([batches, count, 4], "float32"))
    scores = relax.Var("scores", relax.TensorType([batches, classes, count], "float32"))
    most = relax.const(np.array([limit]), "int64")
    with compiling_for(GPU), builder.function("main", [boxes, scores]):
        inputs, attributes = [boxes, scores, most], {"center_point_box": centered}
        found = NonMaxSuppression._impl_v10(builder, inputs, attributes, [{}, {}])
        builder.emit_func_output(found)
    return next(f for v, f in builder.get().functions.items() if v.name_hint == "suppress_boxes")


def arrays(kernel: tirx.PrimFunc, centered: int, overlap: float, threshold: float) -> list[Any]:
    """Boxes of which many overlap, scores with ties, and the results to be filled."""
    generator = np.random.default_rng(0)
    batches, classes, count = (int(size) for size in kernel.params[1].shape)
    low, size = generator.uniform(0, 1, (2, batches, count, 2))
    high = low + size * 0.3
    transposed = generator.random(low.shape) < 0.3
    pairs = (
        [low, size]
        if centered
        else [np.where(transposed, high, low), np.where(transposed, low, high)]
    )
    scores = generator.uniform(0, 1, (batches, classes, count)).round(2).astype("float32")
    order = np.argsort(-scores, axis=-1, kind="stable").astype("int32")
    most = int(kernel.params[6].shape[-1])
    return [
        np.concatenate(pairs, axis=-1).astype("float32"),
        *(scores, order, np.array([most])),
        *(np.array([value], "float32") for value in (overlap, threshold)),
        np.zeros((batches, classes, most), "int32"),
        np.zeros((batches, classes), "int64"),
    ]


CASES = {
    "tiles": ((1, 2, 300, 50, 0), 0.4, 0.3, {}),
    "centers": ((2, 3, 150, 1000, 1), 0.4, 0.0, {"tile": 32}),
    "few stay": ((1, 2, 200, 3, 0), 0.4, 0.5, {"tile": 128}),
    "none is good enough": ((1, 1, 70, 20, 0), 0.4, 2.0, {}),
}


def test_boxes_that_stay() -> None:
    plain = {name: nms(*case[0]) for name, case in CASES.items()}
    found = {
        name: scheduled(TEMPLATE, kernel, decisions=FixedDecisions(CASES[name][3]))
        for name, kernel in plain.items()
    }
    threads = emulated(found)
    in_turn = {f"{name} in series": in_series(func) for name, func in found.items()}
    symbols = {f"k{i}": name for i, name in enumerate([*plain, *in_turn])}
    functions = {s: {**plain, **in_turn}[name] for s, name in symbols.items()}
    named = {s: func.with_attr("global_symbol", s) for s, func in functions.items()}
    library = linked(tirx.build(IRModule(named), target=SERIAL_TARGET))
    runs = {name: library[symbol] for symbol, name in symbols.items()}
    set_seed(1)
    for name, (sizes, overlap, threshold, _) in CASES.items():
        given = arrays(plain[name], sizes[-1], overlap, threshold)
        results = []
        for run in (runs[name], runs[f"{name} in series"], threads[name]):
            tensors = [runtime.tensor(array) for array in given]
            run(*tensors)
            results.append([tensor.numpy() for tensor in tensors[-2:]])
        for kept, taken in results[1:]:
            np.testing.assert_array_equal(kept, results[0][0], err_msg=name)
            np.testing.assert_array_equal(taken, results[0][1], err_msg=name)
        assert (results[0][1] > 0).all() == (threshold < 1)


@needs_nvcc
def test_no_spills() -> None:
    source = whole_source(scheduled(TEMPLATE, nms(1, 80, 8400, 100, 0)))
    assert 0 < shared_bytes(source) <= GPU.shared_memory_bytes
    assert all(found.spilled == 0 for found in resources(source, "sm_90a"))


def test_refusals() -> None:
    other = apply_template(TEMPLATE, kernel_of(relax.op.exp, f32(4, 9)), GPU)
    assert isinstance(other, NotApplicable)
    assert "is no NMS" in other.reason
    symbolic_size = nms(1, 2, tirx.Var("n", "int64"), 5, 0)
    found = apply_template(TEMPLATE, symbolic_size, GPU)
    assert isinstance(found, NotApplicable)
    assert "in the run only" in found.reason

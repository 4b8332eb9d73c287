"""NonMaxSuppression, TopK and RoiAlign with inputs that are computed in the run."""

import numpy as np
import pytest
import tvm
from combinations import pairwise
from one_model import in_one_model, run_model
from onnx import TensorProto
from operator_models import check_operator
from small_models import model, node, rand, value

import tvm_ext
from tvm_ext.check.reference import run_reference
from tvm_ext.errors import RunError
from tvm_ext.onnx_frontend import import_model
from tvm_ext.tir_schedules.analysis.buffer_access import nodes as nodes_of

BOXES = np.sort(np.random.default_rng(3).uniform(0, 1, (2, 12, 4)), axis=-1).astype(np.float32)
SCORES = np.random.default_rng(4).uniform(0, 1, (2, 3, 12)).astype(np.float32)
LIMITS = {
    "limit": np.array([4], np.int64),
    "overlap": np.array([0.3], np.float32),
    "threshold": np.array([0.2], np.float32),
}


def test_boxes_of_an_open_number_are_read_once_for_each_comparison() -> None:
    """Each read of an open size is checked; formulas that repeat reads grow with each check."""
    boxes, scores = value("boxes", [1, "n", 4]), value("scores", [1, 1, "n"])
    nodes = [node("NonMaxSuppression", ["boxes", "scores", "limit", "overlap"], ["y"])]
    weights = {"limit": np.array([9], np.int64), "overlap": LIMITS["overlap"]}
    proto = model(nodes, [boxes, scores], [value("y", None, TensorProto.INT64)], **weights)
    (kernel,) = [
        func
        for name, func in import_model(proto).mod.functions.items()
        if str(name.name_hint).startswith("suppress_boxes")
    ]
    loads = nodes_of(kernel.body, tvm.ir.TensorLoad)
    reads = [one for one in loads if one.source.same_as(kernel.params[0])]
    assert len(reads) == 8


@pytest.mark.extended
@in_one_model
@pairwise(stored=[tuple(LIMITS), ("limit",), ()], centered=[0, 1])
def test_non_max_suppression(centered: int, stored: tuple) -> None:
    (found,) = check_operator(
        "NonMaxSuppression",
        {"boxes": BOXES, "scores": SCORES, **LIMITS},
        stored=stored,
        center_point_box=centered,
    )
    assert 6 <= len(found) <= 24


@in_one_model
@pytest.mark.parametrize("given", [[], ["limit"], ["limit", "overlap"], ["limit", "threshold"]])
def test_non_max_suppression_without_some_inputs(given: list) -> None:
    optional = {name: LIMITS[name] if name in given else None for name in LIMITS}
    (found,) = check_operator("NonMaxSuppression", {"boxes": BOXES, "scores": SCORES, **optional})
    assert len(found) == 0 if not given else len(found) > 0


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("axes", [(0,), pytest.param((1,), marks=pytest.mark.slow), (0, 1, 2)])
def test_non_max_suppression_of_symbolic_sizes(axes: tuple[int, ...]) -> None:
    """Batches, classes and boxes whose numbers the run decides."""
    batches, classes, boxes = (
        name if axis in axes else size
        for axis, (name, size) in enumerate(zip("BCN", SCORES.shape, strict=True))
    )
    nodes = [node("NonMaxSuppression", ["boxes", "scores", *LIMITS], ["y"])]
    given = [value("boxes", [batches, boxes, 4]), value("scores", [batches, classes, boxes])]
    proto = model(nodes, given, [value("y", ["K", 3], TensorProto.INT64)], **LIMITS)
    fed = {"boxes": BOXES, "scores": SCORES}
    (wanted,) = run_reference(proto, fed).values()
    np.testing.assert_array_equal(run_model(proto, fed)["y"], wanted)


@pytest.mark.extended
def test_equal_scores_keep_the_order_of_the_boxes() -> None:
    scores = np.full((1, 1, 5), 0.5, np.float32)
    boxes = np.array([[[i, 0, i + 1, 1] for i in range(5)]], np.float32)
    (found,) = check_operator("NonMaxSuppression", {"boxes": boxes, "scores": scores, **LIMITS})
    np.testing.assert_array_equal(found[:, 2], [0, 1, 2, 3])


@pytest.mark.extended
@in_one_model
@pairwise(stored=[("k",), ()], largest=[0, 1], axis=[0, 1, -1])
def test_top_k(axis: int, largest: int, stored: tuple) -> None:
    arrays = {"x": rand(4, 5, 6).round(1), "k": np.array([3])}
    check_operator("TopK", arrays, 2, stored, axis=axis, largest=largest)


@pytest.mark.slow
@in_one_model
@pairwise(dtype=["float16", "float64", "int8", "uint8", "uint32", "int32"], stored=[("k",), ()])
def test_top_k_of_every_type(dtype: str, stored: tuple) -> None:
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else np.finfo(dtype)
    x = np.array([[limits.min, 3, limits.max, 0, 3, 7]]).astype(dtype)
    values, places = _top_k(x, 4, stored)
    np.testing.assert_array_equal(places, [[2, 5, 1, 4]])
    np.testing.assert_array_equal(values, x[0][places])


@pytest.mark.slow
@in_one_model
@pairwise(size=[7, 70, 71, 200], order=["rising", "falling", "few values"], largest=[0, 1])
def test_top_k_of_long_rows(size: int, order: str, largest: int) -> None:
    """Rows of which whole blocks hold nothing better, or every element is."""
    rows = np.arange(3 * size, dtype="float32").reshape(3, size)
    x = {"rising": rows, "falling": -rows, "few values": rows % 3}[order]
    check_operator("TopK", {"x": x, "k": np.array([7])}, 2, ("k",), largest=largest)


@pytest.mark.extended
@in_one_model
@pairwise(size=[1, 2, 3, 8, 37], order=["random", "falling", "few values"], axis=[0, 1])
def test_whole_rows_are_sorted(size: int, order: str, axis: int) -> None:
    rows = {
        "random": rand(3, size),
        "falling": -np.arange(3 * size, dtype="float32").reshape(3, size),
        "few values": np.arange(3 * size, dtype="float32").reshape(3, size) % 3,
    }[order]
    x, k = np.moveaxis(rows, 1, axis), np.array([size])
    check_operator("TopK", {"x": x, "k": k}, 2, ("k",), axis=axis, largest=0)


@pytest.mark.slow
@in_one_model
@pairwise(k=[1, 5, 90, 150], largest=[0, 1], dtype=["float32", "float16"])
def test_nan_is_above_all_numbers(k: int, largest: int, dtype: str) -> None:
    x = (rand(3, 150) * 3).round().astype(dtype)
    x[:, ::7] = np.nan
    x[1, 1::7], x[2] = np.inf, np.nan
    check_operator("TopK", {"x": x, "k": np.array([k])}, 2, ("k",), largest=largest)


def test_rows_of_any_length_are_sorted_without_a_loss_to_nan() -> None:
    """As ``torch.sort`` is exported: k is the size of the axis, which the run knows."""
    nodes = [node("Shape", ["x"], ["k"], start=1), node("TopK", ["x", "k"], ["v", "i"])]
    proto = model(
        nodes,
        [value("x", ["n", "size"])],
        [value("v", None), value("i", None, TensorProto.INT64)],
    )
    compiled = tvm_ext.compile(proto)
    for rows, size in ((2, 0), (0, 4), (3, 1), (2, 9), (4, 33)):
        x = rand(rows, size)
        for place, wanted in zip("vi", run_reference(proto, {"x": x}).values(), strict=True):
            np.testing.assert_array_equal(compiled.run({"x": x})[place], wanted)
    x = rand(5, 21)
    x[:, ::4] = np.nan
    found = compiled.run({"x": x})["i"]
    np.testing.assert_array_equal(np.sort(found, 1), np.tile(np.arange(21), (5, 1)))


@pytest.mark.extended
def test_top_k_of_more_than_there_are() -> None:
    nodes = [node("TopK", ["x", "k"], ["v", "i"])]
    given = [value("x", ["n", 5]), value("k", [1], TensorProto.INT64)]
    proto = model(nodes, given, [value("v", None), value("i", None, TensorProto.INT64)])
    compiled = tvm_ext.compile(proto)
    x = np.arange(10, dtype="float32").reshape(2, 5)
    for k in (0, 5):
        assert compiled.run({"x": x, "k": np.array([k])})["i"].shape == (2, k)
    with pytest.raises(RunError, match="sizes do not fit together at or right after 'TopK_0'"):
        compiled.run({"x": x, "k": np.array([6])})


def test_top_k_of_unsigned_64_bits() -> None:
    x = np.array([[5, 2**63, 2**64 - 1, 0]], np.uint64)
    _, places = _top_k(x, 2, ("k",))
    np.testing.assert_array_equal(places, [[2, 1]])


def _top_k(x: np.ndarray, k: int, stored: tuple) -> list[np.ndarray]:
    def wanted(_model: object, _feeds: object) -> list[np.ndarray]:
        places = np.argsort(-x.astype(object), axis=-1, kind="stable")[:, :k].astype(np.int64)
        return [np.take_along_axis(x, places, -1), places]

    return check_operator("TopK", {"x": x, "k": np.array([k])}, 2, stored, reference=wanted)


@pytest.mark.extended
@in_one_model
@pairwise(mode=["avg", "max"], coordinates=["half_pixel", "output_half_pixel"], ratio=[0, 2])
def test_roi_align(mode: str, coordinates: str, ratio: int) -> None:
    rois = np.array([[0.3, 1, 6.2, 7], [2, 2, 30, 25], [-4, -3, 3, 3]], np.float32)
    check_operator(
        "RoiAlign",
        {"x": rand(2, 3, 10, 12), "rois": rois, "batches": np.array([0, 1, 1])},
        mode=mode,
        coordinate_transformation_mode=coordinates,
        sampling_ratio=ratio,
        output_height=3,
        output_width=2,
        spatial_scale=0.5,
    )


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_points_that_are_no_numbers_are_read_at_the_first_border(padding: str) -> None:
    """Detectors divide by the size of their smallest map less one, which may be zero."""
    points = np.array([[np.nan, 0], [np.inf, 0.5], [-np.inf, 0.1], [0, np.nan], [3e30, 0]])
    grid = points.astype(np.float32).reshape(1, 1, 5, 2)
    check_operator("GridSample", {"x": rand(1, 2, 2, 3), "grid": grid}, padding_mode=padding)

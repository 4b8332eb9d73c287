"""Resize: every mode and coordinate transformation, with known and run-time scales and sizes."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from combinations import pairwise
from hypothesis import given, settings
from hypothesis import strategies as st
from one_model import in_one_model
from operator_models import by_reference, by_runtime, check_operator, operator_model
from small_models import rand
from thoroughness import DRAWS, one_in
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError

X = rand(1, 2, 5, 7)
NOTHING = np.array([], np.float32)
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.slow
@in_one_model
@pairwise(
    stored=[("scales",), ()],
    coordinates=[*COORDINATES, "half_pixel_symmetric"],
    mode=["nearest", "linear", "cubic"],
)
def test_scales_that_are_not_whole(mode: str, coordinates: str, stored: tuple) -> None:
    check_operator(
        "Resize",
        {"x": X, "roi": None, "scales": floats(1, 1, 0.6, 1.3)},
        stored=stored,
        reference=by_reference,
        mode=mode,
        coordinate_transformation_mode=coordinates,
    )


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("rounding", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_rounds_each_way(coordinates: str, rounding: str) -> None:
    check_operator(
        "Resize",
        {"x": X, "roi": None, "scales": None, "sizes": np.array([1, 2, 10, 4])},
        stored=("sizes",),
        reference=by_reference,
        mode="nearest",
        nearest_mode=rounding,
        coordinate_transformation_mode=coordinates,
    )


@pytest.mark.slow
@in_one_model
@pairwise(stored=[("sizes",), ()], mode=["linear", "cubic"], outside=[0, 1])
def test_antialias_of_a_smaller_image(mode: str, outside: int, stored: tuple) -> None:
    check_operator(
        "Resize",
        {"x": X, "roi": None, "scales": None, "sizes": np.array([1, 2, 2, 3])},
        stored=stored,
        reference=by_reference,
        mode=mode,
        antialias=1,
        exclude_outside=outside,
    )


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("stored", [("sizes",), ()])
def test_aspect_ratio_and_axes(policy: str, stored: tuple) -> None:
    check_operator(
        "Resize",
        {"x": X, "roi": None, "scales": None, "sizes": np.array([9, 8])},
        stored=stored,
        mode="linear",
        axes=[3, 2],
        keep_aspect_ratio_policy=policy,
        reference=by_runtime if policy == "stretch" else by_reference,
    )


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("stored", [("roi", "sizes"), ("sizes",), ()])
def test_crop_and_resize(stored: tuple) -> None:
    roi = floats(0, 0, 0.2, -0.1, 1, 1, 0.9, 1.2)
    check_operator(
        "Resize",
        {"x": X, "roi": roi, "scales": None, "sizes": np.array([1, 2, 3, 6])},
        stored=stored,
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=-3.0,
    )


@in_one_model
@pytest.mark.parametrize("shape", [(3, 6), (1, 1, 6), (1, 1, 3, 4, 5)])
def test_other_ranks_and_empty_inputs(shape: tuple) -> None:
    sizes = np.array([*shape[:-1], 9])
    arrays = {"x": rand(*shape), "roi": NOTHING, "scales": NOTHING, "sizes": sizes}
    check_operator(
        "Resize", arrays, stored=("roi", "scales", "sizes"), mode="linear", reference=by_reference
    )


def test_integers_are_rounded_and_kept_in_range() -> None:
    x = np.array([[[[0, 255, 255, 0, 3]]]], np.uint8)
    arrays = {"x": x, "roi": None, "scales": floats(1, 1, 1, 2.5)}
    (found,) = check_operator(
        "Resize", arrays, stored=("scales",), mode="cubic", reference=by_reference
    )
    assert found.max() == 255


@in_one_model
@pytest.mark.parametrize("kind", ["uint8", "int8", "int32"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
def test_integers_are_rounded_once(kind: str, coordinates: str) -> None:
    """One axis after the other, some came out a step off; no ninth is halfway between two."""
    x = np.arange(0, 120, 2).reshape(1, 1, 6, 10) ** 2 % 120
    x = x.astype(kind)
    check_operator(
        "Resize",
        {"x": x, "roi": None, "scales": floats(1, 1, 3, 3)},
        stored=("scales",),
        reference=by_reference,
        mode="linear",
        coordinate_transformation_mode=coordinates,
    )


@settings(max_examples=3 * DRAWS, deadline=None)
@given(
    st.sampled_from(["linear", "cubic"]),
    st.floats(0.25, 3.0, width=32),
    st.integers(2, 9),
)
def test_any_scale(mode: str, scale: float, size: int) -> None:
    check_operator(
        "Resize",
        {"x": rand(1, 1, size, 3), "roi": None, "scales": floats(1, 1, scale, 1)},
        stored=("scales",),
        reference=by_reference,
        mode=mode,
        tolerance=1e-4,
    )


# Around sizes of one element and of vectors.
IMAGES = ((1, 1, 1, 1), (2, 3, 1, 5), (1, 2, 7, 33), (3, 1, 3, 70))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("mode", "coordinates", "kernels"),
    [
        ("linear", "half_pixel", 1),
        ("linear", "align_corners", 1),
        ("linear", "pytorch_half_pixel", 2),
        ("nearest", "half_pixel", 1),
        ("nearest", "asymmetric", 1),
        ("cubic", "half_pixel", 2),
    ],
)
def test_images_of_any_size_twice_as_large(mode: str, coordinates: str, kernels: int) -> None:
    """In one kernel, or one for each axis that grows, for those that keep their size none."""
    arrays = {"x": X, "roi": None, "scales": floats(1, 1, 2, 2)}
    rounding = "floor" if coordinates == "asymmetric" else "round_prefer_floor"
    model, _ = operator_model(
        "Resize",
        arrays,
        stored=("scales",),
        mode=mode,
        nearest_mode=rounding,
        coordinate_transformation_mode=coordinates,
    )
    check_any_size(model, kernels)


@pytest.mark.extended
@pytest.mark.parametrize("mode", one_in(2, ["linear", "nearest", "cubic"]))
def test_images_of_any_size_to_a_size_of_the_run(mode: str) -> None:
    arrays = {"x": X, "roi": None, "scales": None, "sizes": np.array([1, 2, 9, 40])}
    model, _ = operator_model("Resize", arrays, mode=mode)
    check_any_size(model, None, sized=lambda image: np.array([*image[:2], 9, 40]))


def check_any_size(
    model: onnx.ModelProto,
    kernels: int | None,
    sized: Callable[[tuple[int, ...]], np.ndarray] | None = None,
) -> None:
    """As ONNX Runtime for images of several sizes, in so many kernels without scalar loops.

    ``sized`` gives the sizes of the result, where the run states them.
    """
    shape = model.graph.input[0].type.tensor_type.shape
    for place, name in enumerate("nchw"):
        shape.dim[place].dim_param = name
    del model.graph.value_info[:]
    compiled = tvm_ext.compile(model, HOST)
    assert {kernel.schedule for kernel in compiled.report.kernels} == {"elementwise"}
    assert kernels in (None, len(compiled.report.kernels))
    for size in IMAGES:
        feeds = {"x": rand(*size)} | ({"sizes": sized(size)} if sized else {})
        (found,) = compiled.run(feeds).values()
        (wanted,) = by_runtime(model, feeds)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_refusals() -> None:
    arrays = {"x": X, "roi": None, "scales": floats(1, 1, 2, 2)}
    model, _ = operator_model(
        "Resize", arrays, stored=("scales",), coordinate_transformation_mode="tf_crop_and_resize"
    )
    with pytest.raises(ModelError, match=r"Resize node 'tested' .*no region of interest"):
        tvm_ext.compile(model)

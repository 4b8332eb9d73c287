"""Windows and points of images: places of a maximum, columns put together, deformed taps."""

import numpy as np
import pytest
from operator_models import check_operator, operator_model
from small_models import model, node, rand, value

import tvm_ext
from tvm_ext.check.reference import run_reference
from tvm_ext.errors import ModelError, RunError


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.extended
@pytest.mark.parametrize("storage_order", [0, 1])
def test_places_of_the_largest_values(storage_order: int) -> None:
    check_operator(
        "MaxPool",
        {"x": rand(2, 3, 7, 6)},
        2,
        kernel_shape=[3, 2],
        strides=[2, 1],
        pads=[1, 0, 1, 1],
        dilations=[1, 2],
        storage_order=storage_order,
    )


@pytest.mark.extended
@pytest.mark.parametrize("stored", [("image", "block"), ()])
def test_columns_to_an_image(stored: tuple) -> None:
    arrays = {"x": rand(1, 2 * 6, 12), "image": ints(5, 5), "block": ints(2, 3)}
    check_operator("Col2Im", arrays, stored=stored)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("image", "block", "steps", "attributes"),
    [
        (4, 2, 4, {"strides": [2], "pads": [2, 2]}),
        (7, 3, 3, {"strides": [3], "pads": [2, 1]}),
        (1, 3, 2, {"strides": [2], "pads": [2, 2]}),
    ],
)
def test_columns_beyond_the_edges(image: int, block: int, steps: int, attributes: dict) -> None:
    arrays = {"x": rand(2, 3 * block, steps), "image": ints(image), "block": ints(block)}
    check_operator("Col2Im", arrays, stored=("image", "block"), **attributes)


def test_columns_to_an_image_on_gpus() -> None:
    arrays = {"x": rand(1, 2 * 6, 12), "image": ints(5, 5), "block": ints(2, 3)}
    compiled = tvm_ext.compile(
        operator_model("Col2Im", arrays, stored=("image", "block"))[0], "cuda"
    )
    assert [kernel.name for kernel in compiled.report.kernels] == ["col2im"]


@pytest.mark.extended
def test_columns_that_do_not_fit_an_image() -> None:
    """Blocks that do not fit would make loops of any length: a product of sizes can wrap around."""
    fitting = {"x": rand(1, 2 * 6, 12), "image": ints(5, 5), "block": ints(2, 3)}
    compiled = tvm_ext.compile(operator_model("Col2Im", fitting)[0])
    largest = np.iinfo(np.int64).max
    for image, block in (
        (ints(5, 4), ints(2, 3)),
        (ints(5, 5), ints(7, 7)),
        (ints(5, 5), ints(largest, largest)),
    ):
        with pytest.raises(RunError, match="sizes do not fit together"):
            compiled.run({**fitting, "image": image, "block": block})


@pytest.mark.extended
def test_deformed_taps_of_groups_with_a_mask() -> None:
    """Two blocks of points, the second of which is not full, in each of two offset groups."""
    inputs = {
        **{"x": rand(2, 4, 9, 11), "w": rand(6, 2, 3, 2), "at": 2 * rand(2, 24, 4, 6)},
        **{"b": rand(6), "mask": rand(2, 12, 4, 6)},
    }
    attributes = {"strides": [2, 2], "dilations": [1, 2], "pads": [1, 2, 0, 1]}
    check_operator("DeformConv", inputs, group=2, offset_group=2, **attributes)


@pytest.mark.extended
@pytest.mark.parametrize("far", [-1e30, 1e30])
def test_deformed_points_far_outside_of_the_image(far: float) -> None:
    offsets = rand(1, 8, 4, 5)
    offsets[0, ::2, 1] = far
    check_operator("DeformConv", {"x": rand(1, 2, 5, 6), "w": rand(3, 2, 2, 2), "at": offsets})


@pytest.mark.extended
@pytest.mark.parametrize(
    ("operator", "outputs", "size", "attributes"),
    [
        ("MaxPool", 1, (1, 5), {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("MaxPool", 2, (2, 5), {"kernel_shape": [3, 3], "strides": [2, 2]}),
        ("MaxPool", 1, (2, 5), {"kernel_shape": [2, 3], "strides": [3, 3], "dilations": [2, 1]}),
        ("AveragePool", 1, (2, 5), {"kernel_shape": [3, 3], "strides": [3, 3]}),
        (
            "AveragePool",
            1,
            (1, 5),
            {
                "kernel_shape": [4, 3],
                "strides": [3, 3],
                "pads": [1, 0, 1, 0],
                "count_include_pad": 1,
            },
        ),
    ],
)
def test_windows_that_an_image_does_not_fill(
    operator: str, outputs: int, size: tuple[int, int], attributes: dict
) -> None:
    check_operator(operator, {"x": rand(1, 2, *size)}, outputs, opset=18, **attributes)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("operator", "counting"),
    [
        ("AveragePool", {}),
        ("AveragePool", {"count_include_pad": 1}),
        ("LpPool", {}),
        ("MaxPool", {}),
    ],
)
@pytest.mark.parametrize(
    ("size", "attributes"),
    [
        ((2, 3), {"kernel_shape": [640, 640], "strides": [640, 640]}),
        ((2, 9), {"kernel_shape": [64, 4], "strides": [64, 2]}),
        ((2, 9), {"kernel_shape": [64, 4], "strides": [64, 2], "pads": [3, 1, 0, 0]}),
    ],
)
def test_windows_larger_than_the_image(
    operator: str, counting: dict, size: tuple[int, int], attributes: dict
) -> None:
    given = {**attributes, **counting}
    made, inputs = operator_model(operator, {"x": rand(1, 2, *size)}, ceil_mode=1, **given)
    compiled = tvm_ext.compile(made)
    np.testing.assert_allclose(
        compiled.run(inputs)["y0"], run_reference(made, inputs)["y0"], rtol=1e-6
    )
    # Windows of the given sizes take 2,500 operations and more; padding that is counted stays.
    if not (counting and "pads" in attributes):
        assert sum(kernel.flops or 0 for kernel in compiled.report.kernels) <= 400


def test_an_image_too_small_for_any_window() -> None:
    with pytest.raises(ModelError, match=r"its window of 3 does not fit in axis 2 of size 1"):
        check_operator(
            "MaxPool",
            {"x": rand(1, 2, 1, 1)},
            reference=lambda model, feeds: [],
            kernel_shape=[3, 3],
        )


@pytest.mark.slow
@pytest.mark.parametrize("front", [1, 2, 3])
def test_means_of_dilated_windows_count_what_is_inside(front: int) -> None:
    check_operator(
        "AveragePool",
        {"x": rand(1, 2, 6, 7)},
        opset=19,
        kernel_shape=[1, 4],
        pads=[0, front, 0, 1],
        dilations=[1, 2],
    )


@pytest.mark.extended
def test_a_window_of_symbolic_size() -> None:
    """Its weights are an input, of whose sizes nothing is known when the model is compiled."""
    x, w = (value(name, sizes) for name, sizes in (("x", ["N", 3, 8, 8]), ("w", [4, 3, "K", "L"])))
    made = model([node("Conv", ["x", "w"], ["y"])], [x, w], [value("y", None)])
    inputs = {"x": rand(2, 3, 8, 8), "w": rand(4, 3, 3, 2)}
    found = tvm_ext.compile(made).run(inputs)["y"]
    np.testing.assert_allclose(found, run_reference(made, inputs)["y"], rtol=1e-4, atol=1e-4)

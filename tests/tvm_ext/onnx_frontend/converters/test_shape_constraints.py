"""Dimensions of several names that have to agree, or to be 1: in the run, or refused."""

import numpy as np
import pytest
from one_model import in_one_model, program
from onnx import TensorProto
from operator_models import by_runtime
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import RunError


def compiled(operator: str, ranks: list[int], **attributes):
    """An operator whose inputs have a name of its own for every dimension."""
    names = [f"x{place}" for place in range(len(ranks))]
    inputs = [
        value(name, [f"{name}_{axis}" for axis in range(rank)])
        for name, rank in zip(names, ranks, strict=True)
    ]
    proto = model([node(operator, names, ["y"], **attributes)], inputs, [value("y", None)])
    return proto, program(proto, "O1")


def check(made, *shapes: tuple[int, ...], fits: bool = True) -> None:
    """The result is ONNX Runtime's, or both refuse these sizes."""
    proto, compiled_once = made
    feeds = {f"x{place}": rand(*shape, seed=place) for place, shape in enumerate(shapes)}
    if fits:
        wanted = by_runtime(proto, feeds)[0]
        np.testing.assert_allclose(compiled_once.run(feeds)["y"], wanted, rtol=1e-4, atol=1e-5)
        return
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        by_runtime(proto, feeds)
    with pytest.raises(RunError, match="sizes do not fit together") as caught:
        compiled_once.run(feeds)
    assert "\n" not in str(caught.value)


@pytest.mark.extended
def test_the_addend_of_a_gemm_has_the_sizes_of_the_product_or_1():
    made = compiled("Gemm", [2, 2, 2], beta=2.0)
    for addend in [(4, 5), (1, 5), (4, 1), (1, 1)]:
        check(made, (4, 3), (3, 5), addend)
    check(made, (4, 3), (3, 5), (2, 5), fits=False)
    check(made, (1, 3), (3, 5), (4, 5), fits=False)
    check(made, (4, 3), (2, 5), (4, 5), fits=False)


@pytest.mark.extended
def test_a_gemm_may_add_a_vector():
    made = compiled("Gemm", [2, 2, 1], transA=1, transB=1)
    check(made, (3, 4), (5, 3), (5,))
    check(made, (3, 4), (5, 3), (1,))
    check(made, (3, 4), (5, 3), (4,), fits=False)


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize(
    ("equation", "fitting", "wrong"),
    [
        ("ij,jk->ik", [(4, 3), (3, 5)], [(4, 3), (2, 5)]),
        ("ij,jk->ik", [(4, 1), (3, 5)], [(4, 3), (4, 5)]),
        ("i j, i j", [(4, 3), (4, 3)], [(4, 3), (4, 2)]),
        ("ij,i,j->", [(4, 3), (4,), (1,)], [(4, 3), (4,), (2,)]),
        ("...ij,...jk->...ik", [(2, 4, 3), (1, 3, 5)], [(3, 4, 3), (2, 3, 5)]),
        ("...ij,jk->...ik", [(2, 4, 3), (3, 5)], [(2, 4, 3), (2, 5)]),
        ("ii->i", [(4, 4)], [(4, 3)]),
    ],
)
def test_a_label_of_an_einsum_has_one_size_or_1(equation, fitting, wrong):
    made = compiled("Einsum", [len(shape) for shape in fitting], equation=equation)
    check(made, *fitting)
    check(made, *wrong, fits=False)


@pytest.mark.extended
def test_scale_and_bias_of_a_layer_normalization_broadcast():
    made = compiled("LayerNormalization", [3, 1, 2], axis=1)
    for scale, bias in [((4,), (3, 4)), ((1,), (1, 4)), ((4,), (3, 1))]:
        check(made, (2, 3, 4), scale, bias)
    check(made, (2, 3, 4), (3,), (3, 4), fits=False)


def test_a_scale_of_one_element_normalises_axes_of_any_size():
    proto = model(
        [node("LayerNormalization", ["x", "scale"], ["y"])],
        [value("x", ["N", "C"])],
        [value("y", None)],
        scale=rand(1),
    )
    x = rand(3, 5)
    found = tvm_ext.compile(proto, HOST).run({"x": x})["y"]
    np.testing.assert_allclose(found, by_runtime(proto, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_beside_one_element_an_empty_slice_makes_the_result_empty():
    """Elsewhere it fits no better than any other slice that has fewer elements."""
    nodes = [
        node("Slice", ["x0", "from", "end"], ["less"]),
        node("Add", ["x0", "less"], ["y"]),
    ]
    constants = {"from": np.array([1]), "end": np.array([2**40])}
    proto = model(nodes, [value("x0", ["n"])], [value("y", None)], **constants)
    made = proto, program(proto, "O1")
    for size in (0, 1, 2):
        check(made, (size,))
    check(made, (3,), fits=False)


@pytest.mark.extended
def test_a_mask_is_as_long_as_a_product_asks_for_or_of_one_element():
    """Which of the two sizes the sum has follows from the product, and the run checks both."""
    nodes = [node("Add", ["x0", "x1"], ["sum"]), node("MatMul", ["sum", "x2"], ["y"])]
    inputs = value("x0", [2, "n"]), value("x1", ["mask"]), value("x2", ["n", 3])
    made = (proto := model(nodes, inputs, [value("y", None)])), program(proto, "O1")
    for size, mask in [(3, 3), (3, 1), (1, 1), (0, 1), (0, 0)]:
        check(made, (2, size), (mask,), (size, 3))
    for size, mask in [(3, 2), (3, 5), (1, 3), (0, 3)]:
        check(made, (2, size), (mask,), (size, 3), fits=False)


@pytest.mark.extended
def test_sizes_that_a_run_finds_out_are_told_apart():
    """What a product asks of the first number of elements says nothing of the second."""
    nodes = []
    for place in range(2):
        mask, places, number, total = (f"{n}{place}" for n in ("mask", "places", "float", "sum"))
        nodes += [
            node("NonZero", [mask], [places]),
            node("Cast", [places], [number], to=TensorProto.FLOAT),
            node("Add", ["x0", number], [total]),
        ]
    nodes += [node("MatMul", ["sum0", "x1"], ["y"]), node("Neg", ["sum1"], ["z"])]
    inputs = value("x0", [1, "n"]), value("x1", ["n", 3]), value("mask0", [4]), value("mask1", [4])
    proto = model(nodes, inputs, [value("y", None), value("z", None)])
    compiled_once = tvm_ext.compile(proto, HOST, opt_level=1)
    for counts in [(1, 4), (1, 1), (1, 0)]:
        masks = {f"mask{n}": (np.arange(4) < c).astype("float32") for n, c in enumerate(counts)}
        given = {"x0": rand(1, 1), "x1": rand(1, 3), **masks}
        found = compiled_once.run(given).values()
        for one, wanted in zip(found, by_runtime(proto, given), strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-5)

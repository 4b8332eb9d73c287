"""Names of sizes that inputs share although one branch of an If alone reads some of them."""

import numpy as np
import onnx
import pytest
from control_flow_models import assert_same, body
from onnx import TensorProto
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import RunError


def merged() -> onnx.ModelProto:
    """A decoder without past, which reads ``states``, and with past, which reads ``keys``."""
    without = [node("Mul", ["states", "mask"], ["k1"]), node("MatMul", ["k1", "w"], ["y1"])]
    with_past = [node("Add", ["keys", "mask"], ["k2"]), node("Concat", ["k2", "x"], ["y2"], axis=1)]
    both = {"then_branch": body(with_past, "y2"), "else_branch": body(without, "y1")}
    shape = ["B", "S", 3]
    inputs = [
        *(value("past", [], TensorProto.BOOL), value("x", ["B", "T", 3])),
        *(value("mask", ["B", "S", 1]), value("states", shape), value("keys", shape)),
    ]
    choice = node("If", ["past"], ["k"], name="choice", **both)
    return model([choice, node("Exp", ["k"], ["y"])], inputs, [value("y", None)], w=rand(3, 3))


def feed(past: bool, states: int, keys: int) -> dict[str, np.ndarray]:
    mask = np.ones((2, keys if past else states, 1), np.float32)
    sizes = {"x": 1, "states": states, "keys": keys}
    arrays = {name: rand(2, size, 3, seed=size) for name, size in sizes.items()}
    return {"past": np.array(past), "mask": mask, **arrays}


def test_what_a_branch_that_is_not_chosen_would_read_may_have_any_size():
    feeds = [feed(False, 5, 1), feed(False, 4, 0), feed(True, 2, 6), feed(True, 5, 5)]
    assert_same(merged(), *feeds)


@pytest.mark.extended
def test_names_stay_where_every_branch_reads_and_on_the_first_axis():
    compiled = tvm_ext.compile(merged(), HOST, opt_level="O0")
    shapes = {spec.name: spec.shape for spec in compiled.inputs}
    assert shapes["mask"] == ("B", "S", 1)
    assert shapes["x"] == ("B", "T", 3)
    assert shapes["states"] == ("B", "S_else0", 3)
    assert shapes["keys"] == ("B", "S_then0", 3)


@pytest.mark.extended
def test_in_the_branch_that_is_chosen_sizes_of_one_name_are_equal():
    """Nothing is compared or copied for the sum of a mask and of what one branch alone reads."""
    compiled = tvm_ext.compile(merged(), HOST, opt_level="O0")
    names = {call.kernel for call in compiled.kernel_calls()}
    assert not any(word in name for name in names for word in ("broadcast", "agreed", "copy"))
    for past, states, keys in ((True, 1, 4), (False, 4, 1)):
        wrong = {**feed(past, states, keys), "mask": np.ones((2, 3, 1), np.float32)}
        with pytest.raises(RunError, match="sizes do not fit together"):
            compiled.run(wrong)

"""Random operators in bodies of Loop: other numbers in every iteration, the same in every run."""

import struct
import zlib

import numpy as np
import onnx
import pytest
from one_model import in_one_model, program
from onnx import TensorProto, helper
from small_models import model, node, value
from unoptimised import HOST

import tvm_ext
from tvm_ext.onnx_frontend import import_model, prepare_model

BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
COUNT = 6
MASK = (1 << 32) - 1
CHANCE = np.full(64, 0.5, np.float32)


def philox(counter: int, key: int) -> int:
    """Philox-2x32-10 (Salmon et al., SC 2011) with the first word of the result below."""
    low, high = counter & MASK, counter >> 32
    for step in range(10):
        product = low * 0xD256D193
        round_key = (key + step * 0x9E3779B9) & MASK
        low, high = (product >> 32) ^ round_key ^ high, product & MASK
    return low | high << 32


def uniform(seed: float, *iterations: int) -> np.ndarray:
    """``COUNT`` numbers in [0, 1) of a node in these iterations, from the outermost one."""
    key, start = zlib.crc32(struct.pack("<f", seed)), 0
    for number in iterations:
        start = philox(start ^ number, key)
    words = [philox((start + place) % (1 << 64), key) & MASK for place in range(COUNT)]
    return np.array([word >> 8 for word in words], np.float32) / np.float32(1 << 24)


def loop(
    nodes: list, drawn: str, trips: str, name: str = "loop", number: str = "i", rows: str = "rows"
) -> onnx.NodeProto:
    """A loop that gives the values ``drawn`` of all iterations as ``rows``."""
    going, go_on = f"{name}_going", f"{name}_on"
    inputs = [value(number, [], INT64), value(going, [], BOOL)]
    body = helper.make_graph(
        [*nodes, node("Identity", [going], [go_on])],
        name,
        inputs,
        [value(go_on, [], BOOL), value(drawn, None)],
    )
    return node("Loop", [trips, ""], [rows], body=body, name=name)


def draw(seed: float | None = 3.0, **attributes) -> onnx.NodeProto:
    given = attributes if seed is None else {"seed": seed, **attributes}
    return node("RandomUniform", [], ["drawn"], shape=[COUNT], name="draw", **given)


def rows_of(
    loop_node: onnx.NodeProto, trips: int, stored: bool = False, level: str = "O0", **inputs
) -> np.ndarray:
    """What the loop gives for a trip count of the run, or one that is stored in the model."""
    weights = {"m": np.array(trips)} if stored else {}
    given = {} if stored else {"m": np.array(trips)}
    feeds = {**given, **{name: np.asarray(array) for name, array in inputs.items()}}
    infos = [
        value(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))
        for name, array in feeds.items()
    ]
    compiled = program(model([loop_node], infos, [value("rows", None)], **weights), level)
    first = compiled.run(feeds)["rows"]
    np.testing.assert_array_equal(compiled.run(feeds)["rows"], first)
    return first


def test_outside_of_loops_the_counter_begins_at_0():
    proto = model([draw()], [], [value("drawn", [COUNT])])
    np.testing.assert_array_equal(tvm_ext.compile(proto, HOST).run({})["drawn"], uniform(3.0))


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("trips", "stored", "level"),
    [
        (4, False, "O3"),
        (4, True, "O3"),
        (150, True, "O0"),
        pytest.param(4, False, "O0", marks=pytest.mark.slow),
        pytest.param(150, False, "O3", marks=pytest.mark.slow),
    ],
)
def test_every_iteration_draws_its_own_numbers(trips, stored, level):
    rows = rows_of(loop([draw()], "drawn", "m"), trips, stored, level)
    np.testing.assert_array_equal(rows, [uniform(3.0, number) for number in range(trips)])
    assert len(np.unique(rows, axis=0)) == trips


def test_a_short_loop_is_written_out_and_draws_the_same():
    infos = [value("rows", None)]
    prepared = prepare_model(model([loop([draw()], "drawn", "m")], [], infos, m=np.array(4)))[2]
    drawing = [one for one in prepared.graph.node if one.op_type == "RandomUniform"]
    assert len(drawing) == 4


@pytest.mark.slow
@in_one_model
@pytest.mark.parametrize("seed", [4.0, None])
def test_a_seed_decides_in_loops_and_without_one_the_name_does(seed):
    first = np.array([uniform(3.0, number) for number in range(3)])
    drawn = rows_of(loop([draw(seed)], "drawn", "m"), 3)
    assert (drawn != first).all()
    assert len(np.unique(drawn)) == drawn.size


@pytest.mark.extended
@in_one_model
def test_a_branch_in_a_loop_knows_the_iteration():
    constant = node("Constant", [], ["zeros"], value_floats=[0.0] * COUNT)
    chosen = node(
        "If",
        ["c"],
        ["y"],
        then_branch=helper.make_graph([draw()], "then", [], [value("drawn", [COUNT])]),
        else_branch=helper.make_graph([constant], "else", [], [value("zeros", [COUNT])]),
        name="choice",
    )
    odd = [node("And", ["flag", "flag"], ["c"])]
    wanted = [uniform(3.0, number) for number in range(5)]
    np.testing.assert_array_equal(rows_of(loop([*odd, chosen], "y", "m"), 5, flag=True), wanted)
    assert not rows_of(loop([*odd, chosen], "y", "m"), 5, flag=False).any()


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize(
    ("inner_trips", "stored"),
    [
        ("n", True),
        ("three", False),
        pytest.param("n", False, marks=pytest.mark.slow),
        pytest.param("three", True, marks=pytest.mark.slow),
    ],
)
def test_loops_in_loops_count_both(inner_trips, stored):
    """Either may be written out; numbers of the run come before those of loops written out."""
    inner = loop([draw()], "drawn", inner_trips, name="inner", number="k", rows="inner_rows")
    nodes = [node("Constant", [], ["three"], value_int=3), inner]
    rows = rows_of(loop(nodes, "inner_rows", "m"), 2, stored, n=3)
    assert rows.shape == (2, 3, COUNT)
    swapped = stored and inner_trips == "n"
    wanted = [
        [uniform(3.0, *((inner, outer) if swapped else (outer, inner))) for inner in range(3)]
        for outer in range(2)
    ]
    np.testing.assert_array_equal(rows, wanted)
    assert len(np.unique(rows.reshape(6, COUNT), axis=0)) == 6


@pytest.mark.extended
@in_one_model
@pytest.mark.parametrize("stored", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("RandomNormalLike", {}),
        ("RandomUniformLike", {}),
        ("Bernoulli", {}),
        ("Multinomial", {"sample_size": 64}),
    ],
)
def test_all_random_operators_draw_anew(operator, attributes, stored):
    x = CHANCE if operator != "Multinomial" else np.zeros((1, 8), np.float32)
    drawing = [
        node(operator, ["x"], ["numbers"], seed=1.0, **attributes),
        node("Cast", ["numbers"], ["drawn"], to=TensorProto.FLOAT),
    ]
    rows = rows_of(loop(drawing, "drawn", "m"), 5, stored, x=x).reshape(5, 64)
    assert len(np.unique(rows, axis=0)) == 5


def test_a_loop_that_draws_nothing_passes_no_iterations():
    double = [node("Add", ["x", "x"], ["twice"])]
    proto = model(
        [loop(double, "twice", "m")],
        [value("m", [], INT64), value("x", [2])],
        [value("rows", None)],
    )
    assert "reshape" not in import_model(proto).mod["loop_iteration"].script()


@pytest.mark.extended
def test_an_element_of_a_sequence_draws_its_own():
    body = helper.make_graph(
        [node("RandomUniformLike", ["one"], ["drawn"], seed=3.0)],
        "body",
        [value("one", [COUNT])],
        [value("drawn", [COUNT])],
    )
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["both"]),
        node("SequenceMap", ["both"], ["mapped"], body=body, name="map"),
        node("ConcatFromSequence", ["mapped"], ["y"], axis=0, new_axis=1),
    ]
    proto = model(nodes, [value("x", [COUNT])], [value("y", [2, COUNT])])
    found = tvm_ext.compile(proto, HOST, opt_level="O0").run({"x": np.zeros(COUNT, np.float32)})[
        "y"
    ]
    np.testing.assert_array_equal(found, [uniform(3.0, 0), uniform(3.0, 1)])

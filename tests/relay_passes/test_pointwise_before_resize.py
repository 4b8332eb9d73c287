"""Before and after IR, equal numbers, and refusals of PointwiseBeforeResize."""

from itertools import product

import numpy as np
import pytest
from conv_modules import operators
from side_by_side import Rewrite, assert_all_same
from thoroughness import ALL_CASES
from tvm import relax, tirx

from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.pointwise_before_resize import PointwiseBeforeResize

SIZE = (8, 12)
METHODS = ["linear", "nearest_neighbor", "cubic"]


def head(channels, sides, *, outputs=4, taps=1, method="linear", size=SIZE, layout="NCHW"):
    """Maps of these sides, enlarged to one size, concatenated and convolved."""
    random = np.random.default_rng(0)
    params = [
        relax.Var(f"x{i}", relax.TensorType((2, count, *side), "float32"))
        for i, (count, side) in enumerate(zip(channels, sides, strict=True))
    ]
    weight = random.normal(size=(outputs, sum(channels), taps, taps)).astype("float32")
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            maps = [
                x
                if list(x.ty.shape)[2:] == list(size)
                else builder.emit(
                    relax.op.image.resize2d(
                        x, relax.ShapeExpr(list(size)), method=method, layout=layout
                    )
                )
                for x in params
            ]
            joined = builder.emit(relax.op.concat(maps, 1)) if len(maps) > 1 else maps[0]
            conv = builder.emit(relax.op.nn.conv2d(joined, relax.const(weight)))
            result = builder.emit_output(relax.op.nn.relu(conv))
        builder.emit_func_output(result)
    return builder.get()


# Channels and sides of the maps, and how many convolutions there are afterwards.
HEADS = [
    ((4, 6, 5), (SIZE, (4, 6), (2, 3)), 3),
    ((4, 6), ((4, 6), (1, 1)), 2),
    ((3, 2, 7), (SIZE, SIZE, (4, 6)), 2),
    ((9,), ((4, 6),), 1),
    ((2, 7), ((4, 6), (4, 6)), 2),
]


@pytest.mark.slow
def test_maps_are_convolved_before_they_grow():
    rewrites = {}
    for method, (channels, sides, convolutions) in product(METHODS, HEADS):
        mod, case = head(channels, sides, method=method), f"{method}, {channels}"
        with recording() as decisions:
            after = PointwiseBeforeResize()(mod)
        assert relax.analysis.check_well_formed(after), case
        found = operators(after)
        assert found.count("nn.conv2d") == convolutions, case
        assert found.index("nn.conv2d") < found.index("image.resize2d") or 2 in channels, case
        assert "convolved before they are enlarged" in decisions[0].reason, case
        # How maps grow is nothing to the pass: numbers of all methods for the first head alone.
        if ALL_CASES or method == METHODS[0] or convolutions == 3:
            shapes = [[int(size) for size in param.ty.shape] for param in mod["main"].params]
            rewrites[case] = Rewrite(mod, after, [[draw(*shape) for shape in shapes]])
    assert_all_same(rewrites, rtol=1e-4)


def draw(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype("float32")


def test_symbolic_sizes_that_grow():
    h, w = tirx.Var("h", "int64"), tirx.Var("w", "int64")
    small, large = ([(side - 1) // step + 1 for side in (h, w)] for step in (32, 4))
    mod = head((4, 6), (large, small), size=large)
    assert operators(PointwiseBeforeResize()(mod)).count("nn.conv2d") == 2


@pytest.mark.parametrize(
    "mod",
    [
        head((4, 6), (SIZE, (4, 6)), taps=3),
        head((4, 6), (SIZE, (4, 6)), outputs=7),
        head((4, 6), (SIZE, (16, 24))),
        head((4, 6), (SIZE, (7, 10))),
        head((4, 6), (SIZE, SIZE)),
        head((4, 6), (SIZE, tuple(tirx.Var(name, "int64") for name in "hw"))),
    ],
    ids=["window", "more channels", "shrinks", "hardly grows", "no resize", "unknown"],
)
def test_what_is_left_alone(mod):
    assert PointwiseBeforeResize()(mod).same_as(mod)

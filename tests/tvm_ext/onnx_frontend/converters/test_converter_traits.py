"""What a converter says of itself: which sizes it takes, and whether its tuple is a sequence."""

import numpy as np
import pytest
from small_models import model, node, rand, value
from tvm import relax
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend import import_model
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.converters.arguments import of_tvm, size_inputs, takes_sizes
from tvm_ext.onnx_frontend.onnx_graph import split_key
from tvm_ext.onnx_frontend.sizes import SizeValues
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

X = rand(2, 3)


def seen_by(monkeypatch, positions: tuple[int, ...], batch: int | str) -> list[bool]:
    """Which of its inputs, both the shape of ``x``, a converter gets as sizes."""
    seen = []

    class OfShape(OnnxOpConverter):
        @classmethod
        def _impl_v1(cls, bb, inputs, attr, params):
            seen.extend(isinstance(value, SizeValues) for value in inputs)
            return relax.const(np.zeros(2, np.float32))

    monkeypatch.setitem(CONVERTERS, "own::OfShape", takes_sizes(*positions)(OfShape))
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("OfShape", ["sizes", "sizes"], ["y"], domain="own"),
    ]
    proto = model(nodes, [value("x", [batch, 3])], [value("y", [2])])
    proto.opset_import.add(domain="own", version=1)
    import_model(proto)
    return seen


@pytest.mark.parametrize(("positions", "seen"), [((), [0, 0]), ((1,), [0, 1]), ((0, 1), [1, 1])])
def test_sizes_come_where_the_converter_takes_them(monkeypatch, positions, seen):
    assert seen_by(monkeypatch, positions, "N") == seen
    assert seen_by(monkeypatch, positions, 2) == [0, 0], "known sizes are constants"


def test_a_converter_that_says_nothing_takes_tensors():
    assert size_inputs(CONVERTERS["Max"]) == ()
    assert size_inputs(None) == ()


def test_traits_of_a_converter_of_tvm_are_not_written_into_tvm():
    marked = of_tvm("Relu", sequence=True, size_inputs=(0,))
    assert size_inputs(marked) == (0,)
    assert size_inputs(of_tvm("Relu")) == ()


@pytest.mark.parametrize("sequence", [True, False])
def test_a_tuple_is_one_sequence_where_the_converter_says_so(monkeypatch, sequence):
    class Pair(OnnxOpConverter):
        @classmethod
        def _impl_v1(cls, bb, inputs, attr, params):
            return relax.Tuple([inputs[0], inputs[0]])

    Pair.sequence = sequence
    monkeypatch.setitem(CONVERTERS, "own::Pair", Pair)
    nodes = [node("Pair", ["x"], ["pair"], domain="own"), node("Neg", ["pair"], ["y"])]
    proto = model(nodes, [value("x", [2, 3])], [value("y", [2, 3])])
    proto.opset_import.add(domain="own", version=1)
    if sequence:
        with pytest.raises(ModelError, match="Neg node"):
            import_model(proto)
    else:
        np.testing.assert_array_equal(tvm_ext.compile(proto, HOST).run({"x": X})["y"], -X)


def test_every_converter_says_what_it_is_for():
    for name, converter in CONVERTERS.items():
        # An operator and its form "Like" differ in where the shape comes from only.
        assert split_key(name)[1] in (converter.__name__, f"{converter.__name__}Like")
        assert converter.__doc__

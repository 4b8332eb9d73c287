"""What a converter says of itself: how it takes shapes, and whether its tuple is a sequence."""

import numpy as np
import pytest
from small_models import model, node, rand, value
from tvm import relax
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import ModelError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter
from tvm_ext.onnx_frontend import import_model
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.converters.traits import Shapes, of_tvm, shapes_taken_by, takes_shapes
from tvm_ext.onnx_frontend.operator_key import split_key

X = rand(2, 3)


def seen_by(monkeypatch, shapes: Shapes, other: str) -> list:
    """Whether a converter gets the shape of ``x`` as it is, beside another input."""
    seen = []

    class OfShape(OnnxOpConverter):
        @classmethod
        def _impl_v1(cls, bb, inputs, attr, params):
            seen.extend(isinstance(value, relax.ShapeExpr) for value in inputs)
            return relax.const(np.zeros(2, np.float32))

    monkeypatch.setitem(CONVERTERS, "own::OfShape", takes_shapes(shapes)(OfShape))
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("OfShape", ["sizes", other], ["y"], domain="own"),
    ]
    proto = model(nodes, [value("x", ["N", 3])], [value("y", [2])], stored=np.zeros(2))
    proto.opset_import.add(domain="own", version=1)
    import_model(proto)
    return seen


@pytest.mark.parametrize(
    ("shapes", "beside_constant", "beside_tensor"),
    [
        (Shapes.AS_TENSORS, False, False),
        (Shapes.AMONG_THEMSELVES, True, False),
        (Shapes.AS_THEY_ARE, True, True),
    ],
)
def test_shapes_come_as_the_converter_takes_them(
    monkeypatch, shapes, beside_constant, beside_tensor
):
    assert seen_by(monkeypatch, shapes, "stored")[0] is beside_constant
    assert seen_by(monkeypatch, shapes, "x")[0] is beside_tensor


def test_a_converter_that_says_nothing_takes_tensors():
    assert shapes_taken_by(CONVERTERS["Max"]) is Shapes.AS_TENSORS
    assert shapes_taken_by(None) is Shapes.AS_TENSORS


def test_traits_of_a_converter_of_tvm_are_not_written_into_tvm():
    marked = of_tvm("Relu", sequence=True, shapes=Shapes.AS_THEY_ARE)
    assert shapes_taken_by(marked) is Shapes.AS_THEY_ARE
    assert shapes_taken_by(of_tvm("Relu")) is Shapes.AS_TENSORS


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

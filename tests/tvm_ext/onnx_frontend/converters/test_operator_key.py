"""Converters are found by domain and name: two operators may share a name."""

import numpy as np
import onnx
import pytest
from onnx import helper
from small_models import model, value
from tvm import relax
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import FormError, ModelError, UnsupportedOperatorError
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.onnx_graph import operator_key, opset_of, split_key
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

X = np.array([-1.0, 2.0], np.float32)


def two_domains(op_type: str, domain: str, version: int = 1) -> onnx.ModelProto:
    node = helper.make_node(op_type, ["x"], ["y"], name="n", domain=domain)
    proto = model([node], [value("x", [2])], [value("y", [2])])
    if domain not in ("", "ai.onnx"):
        proto.opset_import.append(helper.make_opsetid(domain, version))
    return proto


class Seen(OnnxOpConverter):
    """Notes the opset that it is asked for."""

    opsets: list[int] = []

    @classmethod
    def get_converter(cls, opset):
        cls.opsets.append(opset)
        return lambda bb, inputs, attr, params: relax.op.negative(inputs[0])


@pytest.mark.parametrize(
    ("domain", "key"),
    [("", "Relu"), ("ai.onnx", "Relu"), ("com.microsoft", "com.microsoft::Relu")],
)
def test_key(domain, key):
    assert operator_key(helper.make_node("Relu", ["x"], ["y"], domain=domain)) == key
    assert split_key(key) == ("" if domain == "ai.onnx" else domain, "Relu")


def test_a_converter_gets_the_opset_of_its_own_domain(monkeypatch):
    monkeypatch.setattr(Seen, "opsets", [])
    monkeypatch.setitem(CONVERTERS, "my.domain::Relu", Seen)
    proto = two_domains("Relu", "my.domain", 5)
    (found,) = tvm_ext.compile(proto, HOST, opt_level="O0").run({"x": X}).values()
    np.testing.assert_array_equal(found, -X)
    assert Seen.opsets == [5] == [opset_of(proto, "my.domain")]


def test_the_same_name_in_the_default_domain_is_another_operator(monkeypatch):
    monkeypatch.setitem(CONVERTERS, "my.domain::Relu", Seen)
    (found,) = tvm_ext.compile(two_domains("Relu", ""), HOST, opt_level="O0").run({"x": X}).values()
    np.testing.assert_array_equal(found, np.maximum(X, 0))


def test_a_domain_without_converter_is_named():
    with pytest.raises(UnsupportedOperatorError, match=r"my\.domain::Relu \(nodes: n\)"):
        tvm_ext.compile(two_domains("Relu", "my.domain"))


def test_an_error_names_the_operator_without_its_domain(monkeypatch):
    class Failing(OnnxOpConverter):
        @classmethod
        def _impl_v1(cls, bb, inputs, attr, params):
            raise FormError("not this form")

    monkeypatch.setitem(CONVERTERS, "my.domain::Relu", Failing)
    with pytest.raises(ModelError, match=r"Relu node 'n' cannot be converted: not this form"):
        tvm_ext.compile(two_domains("Relu", "my.domain"))

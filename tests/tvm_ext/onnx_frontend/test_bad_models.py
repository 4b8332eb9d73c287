"""Models that are wrong: one line, of our own error type, that says what to do."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import model as model_of
from small_models import node
from small_models import value as tensor

import tvm_ext
from tvm_ext.errors import ModelError, TvmExtError, UnsupportedOperatorError


def relu_model(shape=(2, 3)):
    return model_of([node("Relu", ["x"], ["y"])], [tensor("x", shape)], [tensor("y", shape)])


def add_model(weight):
    return model_of(
        [node("Add", ["x", "w"], ["y"])], [tensor("x", [2])], [tensor("y", [2])], w=weight
    )


def refused(action, kind, *words):
    """The message of the error that ``action`` raises, after checking its type and form."""
    with pytest.raises(kind) as caught:
        action()
    message = str(caught.value)
    assert isinstance(caught.value, TvmExtError)
    assert message
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message
    return message


def refused_model(model, *words, kind=ModelError, **options):
    return refused(lambda: tvm_ext.compile(model, **options), kind, *words)


# Files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no graph"),
        (b"this is some text, not a model\n" * 20, "not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not an ONNX model"),
    ],
)
def test_other_file(tmp_path, content, words):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    refused_model(path, str(path), words)


@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
@pytest.mark.parametrize("ending", ["json", "textproto", "onnxtxt"])
@pytest.mark.parametrize("content", [b"text", relu_model().SerializeToString()])
def test_endings_that_onnx_reads_as_text(tmp_path, ending, content):
    path = tmp_path / f"model.{ending}"
    path.write_bytes(content)
    refused_model(path, "not an ONNX model")


@pytest.mark.parametrize("source", [None, 5, b"bytes"])
def test_what_is_neither_path_nor_model(source):
    refused_model(source, f"is a {type(source).__name__}")


def test_truncated_file(tmp_path):
    path = tmp_path / "model.onnx"
    whole = add_model(np.arange(2, dtype=np.float32)).SerializeToString()
    path.write_bytes(whole[: len(whole) - 20])
    refused_model(path, "truncated")


def test_folder_and_missing_file(tmp_path):
    refused_model(tmp_path, "is a folder")
    refused_model(tmp_path / "absent.onnx", "no such file")


def test_external_data_missing(tmp_path):
    path = tmp_path / "model.onnx"
    weight = np.ones((64, 64), np.float32)
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"])],
        [tensor("x", [1, 64])],
        [tensor("y", [1, 64])],
        w=weight,
    )
    onnx.save_model(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    (tmp_path / "weights.bin").unlink()
    refused_model(path, "external data", "weights.bin")


# Graphs ------------------------------------------------------------------------------------------


def test_cycle_names_its_nodes():
    nodes = [node("Add", ["x", "b"], ["a"], "first"), node("Relu", ["a"], ["b"], "second")]
    model = model_of(nodes, [tensor("x", [2])], [tensor("b", [2])])
    refused_model(model, "cycle", "first", "second")


def test_types_that_do_not_fit():
    model = model_of(
        [node("Add", ["x", "n"], ["y"])],
        [tensor("x", [2]), tensor("n", [2], TensorProto.INT64)],
        [tensor("y", [2])],
    )
    refused_model(model, "not a valid ONNX model")


@pytest.mark.parametrize(
    "model",
    [
        model_of([node("Relu", ["absent"], ["y"])], [tensor("x", [2])], [tensor("y", [2])]),
        model_of(
            [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])],
            [tensor("x", [2])],
            [tensor("y", [2])],
        ),
        model_of([node("Relu", ["x"], ["y"])], [tensor("x", [2])] * 2, [tensor("y", [2])]),
        model_of([node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("absent", [2])]),
        model_of([node("Add", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", [2])]),
        model_of([node("Relu", ["x"], ["y"], slope=1)], [tensor("x", [2])], [tensor("y", [2])]),
        model_of([node("Softmax", ["x"], ["y"], axis=5)], [tensor("x", [2])], [tensor("y", [2])]),
    ],
    ids=["undefined", "twice", "inputs", "output", "operands", "attribute", "axis"],
)
def test_inconsistent_graph(model):
    refused_model(model, "not a valid ONNX model", "export it again")


def test_no_outputs():
    refused_model(
        model_of([node("Relu", ["x"], ["y"])], [tensor("x", [2])], []), "no graph outputs"
    )


def test_damaged_initializer():
    model = add_model(np.ones(2, np.float32))
    model.graph.initializer[0].data_type = 77
    refused_model(model, "not a valid ONNX model")


def test_nan_weights():
    weight = np.array([[np.nan, 1], [1, 1]], np.float32)
    model = model_of(
        [node("MatMul", ["x", "w"], ["y"])], [tensor("x", [2])], [tensor("y", [2])], w=weight
    )
    refused_model(model, "'w'", "1 NaN of 4")


def test_future_opset():
    model = model_of(
        [node("Relu", ["x"], ["y"])], [tensor("x", [2])], [tensor("y", [2])], opset=999
    )
    refused_model(model, "opset 999", "at most")


@pytest.mark.parametrize(
    "value",
    [
        tensor("x", [2], TensorProto.COMPLEX64),
        helper.make_tensor_sequence_value_info("x", TensorProto.COMPLEX64, [2]),
    ],
    ids=["tensor", "sequence"],
)
def test_inputs_of_complex_numbers(value):
    result = onnx.ValueInfoProto.FromString(value.SerializeToString())
    result.name = "y"
    model = model_of([node("Identity", ["x"], ["y"])], [value], [result], opset=21)
    refused_model(model, "input 'x' holds COMPLEX64", "expected tensors")


# Operators ---------------------------------------------------------------------------------------


def test_unknown_operators_are_all_listed():
    nodes = [
        node("Rfft2000", ["x"], ["a"], "one", domain="my.domain"),
        node("Normalizer", ["m"], ["b"], "two", domain="another.domain"),
        node("Normalizer", ["m"], ["c"], "three", domain="another.domain"),
    ]
    model = model_of(
        nodes,
        [tensor("x", [2]), tensor("m", [2, 2])],
        [tensor(n, s) for n, s in (("a", [2]), ("b", []), ("c", []))],
        domains=["my.domain", "another.domain"],
    )
    refused_model(
        model, "my.domain::Rfft2000 (nodes: one)", "another.domain::Normalizer (nodes: two, three)"
    )
    with pytest.raises(UnsupportedOperatorError) as caught:
        tvm_ext.compile(model)
    assert caught.value.operators == {
        "my.domain::Rfft2000": ["one"],
        "another.domain::Normalizer": ["two", "three"],
    }


def branch(name, op):
    return helper.make_graph(
        [node(op, ["m"], [name], f"{name}_{op}", domain="my.domain")], name, [], [tensor(name, [])]
    )


def test_unsupported_operators_in_both_branches_of_an_if():
    choice = node(
        "If", ["c"], ["y"], "choice", then_branch=branch("t", "Det"), else_branch=branch("e", "Det")
    )
    model = model_of(
        [choice],
        [tensor("c", [], TensorProto.BOOL), tensor("m", [2, 2])],
        [tensor("y", [])],
        domains=["my.domain"],
    )
    refused_model(model, "t_Det", "e_Det", kind=UnsupportedOperatorError)


def test_unsupported_operators_in_the_body_of_a_loop():
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["still"], "keep"),
            node("Det", ["m"], ["d"], "determinant", domain="my.domain"),
            node("Add", ["sum", "d"], ["next"], "add"),
        ],
        "body",
        [
            tensor("i", [], TensorProto.INT64),
            tensor("go", [], TensorProto.BOOL),
            tensor("sum", []),
        ],
        [tensor("still", [], TensorProto.BOOL), tensor("next", [])],
    )
    model = model_of(
        [node("Loop", ["n", "", "start"], ["y"], "loop", body=body)],
        [tensor("m", [2, 2]), tensor("start", [])],
        [tensor("y", [])],
        n=np.array(3),
        domains=["my.domain"],
    )
    refused_model(model, "determinant", kind=UnsupportedOperatorError)

"""Models with strings, sequences, maps and optionals, compared with ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from host_models import BOOL, FLOAT, FLOATS, INT64, ML, STRING, classifier, model, node, value
from onnx import TensorProto, helper
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import InputError, ModelError, RunError
from tvm_ext.hosted_model import HostedModel
from tvm_ext.onnx_frontend import import_model

COLOURS = np.array([["red", "s"], ["blue", "m"], ["green", "l"]], object)


def assert_as_runtime(proto: onnx.ModelProto, **inputs: Any) -> HostedModel:
    """Compiles and compares types and values; the same again after saving is another test's."""
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    wanted = session.run(None, inputs)
    compiled = tvm_ext.compile(proto, HOST, opt_level="O1")
    found = compiled.run(inputs)
    assert list(found) == [one.name for one in session.get_outputs()]
    for ours, theirs in zip(found.values(), wanted, strict=True):
        assert_same(ours, theirs)
    assert isinstance(compiled, HostedModel)
    return compiled


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        np.testing.assert_allclose(list(ours.values()), list(theirs.values()), rtol=1e-5)
    elif isinstance(theirs, np.ndarray):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype == object:
            assert ours.tolist() == theirs.tolist()
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def operators(compiled: HostedModel) -> list[str]:
    return [record.operator for record in compiled.report.host]


@pytest.mark.parametrize("labels", [["no", "yes"], ["cat", "dog", "bird"]])
def test_a_classifier_with_labels_of_strings_is_compiled(labels):
    x = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    compiled = assert_as_runtime(classifier(labels), x=x)
    assert operators(compiled) == [f"{ML}::LabelEncoder", f"{ML}::ZipMap"]
    assert "LinearClassifier" in compiled.report.graph.onnx_nodes
    assert len(compiled.report.kernels) > 0


def test_a_saved_model_keeps_its_host_steps(tmp_path):
    x = np.float32([[1, -2, 3], [0, 1, 0]])
    compiled = tvm_ext.compile(classifier(["a", "b", "c"]), HOST)
    compiled.save(tmp_path / "m.tvmx")
    loaded = tvm_ext.load(tmp_path / "m.tvmx")
    for one, other in zip(
        loaded.run({"x": x}).values(), compiled.run({"x": x}).values(), strict=True
    ):
        assert_same(one, other)
    assert loaded.outputs == compiled.outputs
    assert loaded.report.to_json() == compiled.report.to_json()
    assert [spec.describe() for spec in loaded.outputs] == [
        "label: str['N']", "scores: seq(map(string,tensor(float)))"
    ]  # fmt: skip


@pytest.mark.extended
def test_the_profile_has_kernels_and_host_steps():
    x = np.zeros((1, 3), np.float32)
    found = tvm_ext.compile(classifier(["a", "b"]), HOST).profile({"x": x}, 2)
    names = {kernel.kernel for kernel in found.kernels}
    assert f"host {ML}::ZipMap" in names
    assert any(not name.startswith("host ") for name in names)
    starts = [call.begun for call in found.calls]
    assert starts == sorted(starts)
    assert all(call.begun + call.lasted <= found.traced_microseconds for call in found.calls)
    assert found.total.calls == sum(not call.on_host for call in found.calls) > 0
    assert found.unknown_calls == 0


@pytest.mark.extended
@pytest.mark.parametrize("zeros", [0, 1])
def test_columns_of_strings_as_numbers_ahead_of_the_compiled_part(zeros):
    nodes = [
        node("ArrayFeatureExtractor", ["c", "zero"], ["colour"], domain=ML),
        node("OneHotEncoder", ["colour"], ["h"], domain=ML, cats_strings=["red", "blue", "green"],
             zeros=zeros),
        node("Flatten", ["h"], ["hot"]),
        node("Concat", ["x", "hot"], ["all"], axis=1),
        node("MatMul", ["all", "w"], ["m"]),
        node("Relu", ["m"], ["y"]),
    ]  # fmt: skip
    inputs = [value("c", STRING, ["N", 2]), value("x", FLOAT, ["N", 2])]
    w = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)
    proto = model(nodes, inputs, [value("y", FLOAT, ["N", 2])], w=w, zero=np.array([0]))
    x = np.float32([[1, 2], [3, 4], [5, 6]])
    compiled = assert_as_runtime(proto, c=COLOURS, x=x)
    assert "MatMul" not in operators(compiled)
    assert compiled.run({"c": COLOURS.astype("U"), "x": x})["y"].shape == (3, 2)
    unknown = {"c": np.array([["black", "s"]], object), "x": x[:1]}
    if zeros:
        assert_as_runtime(proto, **unknown)
    else:
        with pytest.raises(RunError, match=r"OneHotEncoder node .*'black' is none of its 3"):
            compiled.run(unknown)


def test_text_becomes_counts_of_words():
    pool = ["fox", "dog", "the", "fox", "the", "dog"]
    nodes = [
        node("StringNormalizer", ["t"], ["n"], case_change_action="LOWER", locale="C"),
        node("StringSplit", ["n"], ["words", "count"], delimiter=" "),
        node("TfIdfVectorizer", ["words"], ["v"], mode="TFIDF", min_gram_length=1,
             max_gram_length=2, max_skip_count=0, ngram_counts=[0, 2], ngram_indexes=[0, 1, 2, 3],
             weights=[1.0, 2.0, 3.0, 4.0], pool_strings=pool),
        node("MatMul", ["v", "w"], ["y"]),
    ]  # fmt: skip
    outputs = [value("y", FLOAT, None), value("count", INT64, None)]
    w = np.linspace(-1, 1, 8, dtype=np.float32).reshape(4, 2)
    proto = model(nodes, [value("t", STRING, ["N"])], outputs, opset=20, w=w)
    texts = np.array(["The fox", "a dog and the dog", "nothing"], object)
    compiled = assert_as_runtime(proto, t=texts)
    assert operators(compiled) == ["StringNormalizer", "StringSplit", "TfIdfVectorizer"]


def test_a_host_step_in_the_middle_makes_two_parts():
    nodes = [
        node("Mul", ["x", "x"], ["s"]),
        node("Cast", ["s"], ["t"], to=STRING),
        node("Cast", ["t"], ["back"], to=FLOAT),
        node("Exp", ["back"], ["y"]),
    ]
    proto = model(nodes, [value("x", FLOAT, ["N", 2])], [value("y", FLOAT, ["N", 2])])
    assert_as_runtime(proto, x=np.float32([[0.1, 0.2], [-1, 2]]))
    with pytest.raises(ModelError, match="compiled in 2 parts"):
        import_model(proto)


def test_nodes_that_the_host_does_not_need_wait_for_the_last_part():
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("Mul", ["a", "a"], ["s"]),
        node("Cast", ["s"], ["t"], to=STRING),
        node("Cast", ["t"], ["back"], to=FLOAT),
        node("Exp", ["x"], ["e"]),
        node("Add", ["back", "e"], ["y"]),
    ]
    proto = model(nodes, [value("x", FLOAT, [2])], [value("y", FLOAT, [2])])
    compiled = assert_as_runtime(proto, x=np.float32([1, 2]))
    kernels = [
        {call.where for call in part.kernel_calls()} for part in compiled._parts
    ]  # fmt: skip
    assert all("Exp_4" not in name for name in kernels[0])
    assert any("Exp_4" in name for name in kernels[1])


def test_sequences_in_and_out():
    sequence = helper.make_value_info("q", FLOATS)
    nodes = [
        node("SequenceAt", ["q", "i"], ["one"]),
        node("SequenceInsert", ["q", "one"], ["more"]),
        node("SequenceLength", ["more"], ["n"]),
        node("ConcatFromSequence", ["more"], ["y"], axis=0),
    ]
    outputs = [
        helper.make_value_info("more", FLOATS),
        value("n", INT64, []),
        value("y", FLOAT, None),
    ]
    proto = model(nodes, [sequence, value("i", INT64, [])], outputs)
    q = [np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]])]
    compiled = assert_as_runtime(proto, q=q, i=np.array(-1))
    with pytest.raises(
        RunError, match=r"SequenceAt node .*position 7 is outside of a sequence of 2"
    ):
        compiled.run({"q": q, "i": np.array(7)})


def collecting_loop() -> onnx.ModelProto:
    """A list of products, the last one in front; how many the run decides."""
    body = helper.make_graph(
        [
            node("MatMul", ["state", "w"], ["next"], "product"),
            node("SequenceInsert", ["seen", "next", "front"], ["seen2"]),
            node("Identity", ["go"], ["go2"]),
        ],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("state", FLOAT, [2, 2]),
         helper.make_value_info("seen", FLOATS)],
        [value("go2", BOOL, []), value("next", FLOAT, [2, 2]),
         helper.make_value_info("seen2", FLOATS)],
    )  # fmt: skip
    nodes = [
        node("SequenceEmpty", [], ["empty"]),
        node("Loop", ["n", "", "x", "empty"], ["last", "all"], "loop", body=body),
        node("ConcatFromSequence", ["all"], ["y"], axis=0, new_axis=1),
    ]
    inputs = [value("n", INT64, []), value("x", FLOAT, [2, 2])]
    outputs = [value("y", FLOAT, None), value("last", FLOAT, [2, 2])]
    return model(nodes, inputs, outputs, w=np.float32([[0, 1], [1, 1]]), front=np.array(0))


def test_a_loop_that_carries_a_sequence_calls_compiled_code():
    compiled = assert_as_runtime(collecting_loop(), n=np.array(4), x=np.eye(2, dtype=np.float32))
    assert "MatMul" not in operators(compiled)
    assert any(call.where == "product" for call in compiled.kernel_calls())


def test_an_optional_that_is_empty_and_one_that_is_not():
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    branch = lambda *nodes: helper.make_graph(list(nodes), "b", [], [value("r", FLOAT, [2])])  # noqa: E731
    nodes = [
        node("OptionalHasElement", ["o"], ["has"]),
        node("If", ["has"], ["y"], then_branch=branch(node("OptionalGetElement", ["o"], ["r"])),
             else_branch=branch(node("Neg", ["x"], ["r"]))),
    ]  # fmt: skip
    inputs = [helper.make_value_info("o", kind), value("x", FLOAT, [2])]
    proto = model(nodes, inputs, [value("y", FLOAT, [2]), value("has", BOOL, [])])
    compiled = tvm_ext.compile(proto, HOST)
    x = np.float32([1, 2])
    assert compiled.run({"o": None, "x": x})["y"].tolist() == [-1, -2]
    assert compiled.run({"o": x + 2, "x": x})["y"].tolist() == [3, 4]


def test_a_map_as_input():
    kind = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, []))
    nodes = [
        node("DictVectorizer", ["d"], ["v"], domain=ML, string_vocabulary=["a", "b", "c"]),
        node("MatMul", ["v", "w"], ["y"]),
    ]
    w = np.float32([[1, 2], [3, 4], [5, 6]])
    proto = model(nodes, [helper.make_value_info("d", kind)], [value("y", FLOAT, [1, 2])], w=w)
    compiled = assert_as_runtime(proto, d={"c": 2.0, "a": 1.0})
    assert operators(compiled) == [f"{ML}::DictVectorizer"]
    with pytest.raises(InputError, match="'d' has a list; a map is a dict"):
        compiled.run({"d": [1.0]})


def test_inputs_that_do_not_fit_are_refused():
    nodes = [node("StringNormalizer", ["t"], ["n"]), node("SequenceLength", ["q"], ["y"])]
    inputs = [value("t", STRING, [2]), helper.make_value_info("q", FLOATS)]
    compiled = tvm_ext.compile(
        model(nodes, inputs, [value("n", STRING, None), value("y", INT64, [])]), HOST
    )
    good = {"t": np.array(["a", "b"], object), "q": []}
    assert compiled.run(good)["y"] == 0
    for name, bad, words in (
        ("t", np.array(["a"], object), "expected size 2 on axis 0"),
        ("t", np.array([1, 2], object), "no array of str"),
        ("t", np.array([1, 2]), "no array of str"),
        ("q", np.zeros(2, np.float32), "a sequence is a list"),
        ("q", [np.zeros(2)], "holds an array of float64, not of float32"),
    ):
        with pytest.raises(InputError, match=words):
            compiled.run({**good, name: bad})
    with pytest.raises(InputError, match="which is of type seq"):
        tvm_ext.compile(
            model(nodes, inputs, [value("y", INT64, [])]), HOST, input_shapes={"q": [2]}
        )


def test_values_that_do_not_fit_are_said_with_their_sizes() -> None:
    strings = [helper.make_tensor_value_info(n, TensorProto.STRING, [n + "s"]) for n in "xz"]
    nodes = [helper.make_node("StringConcat", ["x", "z"], ["y"], name="join")]
    proto = model(
        nodes, strings, [helper.make_tensor_value_info("y", TensorProto.STRING, None)], 20
    )
    words = (
        r"StringConcat node 'join' failed on the host \(its inputs are string\[2\] and string\[3\]"
    )
    with pytest.raises(RunError, match=words):
        tvm_ext.compile(proto, HOST).run({"x": np.array(["a"] * 2), "z": np.array(["b"] * 3)})


def test_a_size_of_a_sequence_is_that_of_each_element() -> None:
    """Elements that share a symbolic size in the type of their sequence need not be alike."""
    element = onnx.helper.make_tensor_value_info("e", onnx.TensorProto.FLOAT, ["N"])
    result = onnx.helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, ["N"])
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["e"], ["r"])], "body", [element], [result]
    )
    node = onnx.helper.make_node("SequenceMap", ["x"], ["y"], body=body)
    x, y = (
        onnx.helper.make_tensor_sequence_value_info(name, onnx.TensorProto.FLOAT, ["N"])
        for name in "xy"
    )
    proto = onnx.helper.make_model(
        onnx.helper.make_graph([node], "ragged", [x], [y]),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    given = [np.arange(size, dtype=np.float32) for size in (3, 1, 4)]
    found = tvm_ext.compile(proto, opt_level="O0").run({"x": given})["y"]
    for one, wanted in zip(found, given, strict=True):
        np.testing.assert_array_equal(one, -wanted)

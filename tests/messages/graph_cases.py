"""Models that contradict themselves, or hold what has no converter."""

import importlib

import numpy as np
import tvm
from onnx import TensorProto, helper
from provoked import case, compiled, model, node, one, relu, replaced, value

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters import CONVERTERS
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter


def graph(nodes, out, name="body", inputs=()):
    return helper.make_graph(nodes, name, list(inputs), [value(out, None)])


def chosen(then, otherwise, shape=(2, 3)):
    """An If whose branches are these nodes, with ``x`` in reach."""
    both = {"then_branch": graph([then], then.output[0]), "else_branch": graph([otherwise], "e")}
    made = node("If", ["c"], ["y"], name="choice", **both)
    given = [value("c", [], TensorProto.BOOL), value("x", list(shape))]
    return model([made], given, [value("y", None)])


def failing(raised):
    """A converter that raises this."""

    class Failing(OnnxOpConverter):
        @classmethod
        def _impl_v1(cls, bb, inputs, attr, params):
            if callable(raised):
                return raised(bb, inputs)
            raise raised

    return Failing


class converter:
    """The converter of an operator replaced, for a while."""

    def __init__(self, op, raised):
        self.op, self.new = op, failing(raised)

    def __enter__(self):
        self.old = CONVERTERS.get(self.op)
        CONVERTERS[self.op] = self.new

    def __exit__(self, *_):
        if self.old is None:
            del CONVERTERS[self.op]
        else:
            CONVERTERS[self.op] = self.old


@case("a cycle", "first", "second")
def _(folder):
    nodes = [node("Add", ["x", "b"], ["a"], "first"), node("Relu", ["a"], ["b"], "second")]
    compiled(model(nodes, [value("x", [2])], [value("b", [2])]))


@case("a value that nothing computes", "absent")
def _(folder):
    compiled(model([node("Relu", ["absent"], ["y"])], [value("x", [2])], [value("y", [2])]))


@case("a value that two nodes compute", "'y'")
def _(folder):
    nodes = [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])]
    compiled(model(nodes, [value("x", [2])], [value("y", [2])]))


@case("types that do not fit")
def _(folder):
    inputs = [value("x", [2]), value("n", [2], TensorProto.INT64)]
    compiled(model([node("Add", ["x", "n"], ["y"], "sum")], inputs, [value("y", [2])]))


@case("an attribute that the operator does not have", "slope")
def _(folder):
    compiled(one("Relu", {"x": [2]}, slope=1))


@case("an axis that is out of range", "axis")
def _(folder):
    compiled(one("Softmax", {"x": [2]}, axis=5))


@case("too few inputs")
def _(folder):
    compiled(model([node("Add", ["x"], ["y"], "sum")], [value("x", [2])], [value("y", [2])]))


@case("no outputs")
def _(folder):
    compiled(model([node("Relu", ["x"], ["y"])], [value("x", [2])], []))


@case("an opset of the future", "999")
def _(folder):
    compiled(model([node("Relu", ["x"], ["y"])], [value("x", [2])], [value("y", [2])], opset=999))


@case("an unknown operator", "my.domain::Rfft (nodes: one)")
def _(folder):
    made = node("Rfft", ["x"], ["y"], "one", domain="my.domain")
    compiled(model([made], [value("x", [2])], [value("y", [2])], domains=["my.domain"]))


@case("an unknown operator in a branch", "Rfft (nodes: inner)")
def _(folder):
    made = chosen(
        node("Rfft", ["x"], ["t"], "inner", domain="my.domain"), node("Relu", ["x"], ["e"])
    )
    made.opset_import.append(helper.make_opsetid("my.domain", 1))
    compiled(made)


@case("sizes that contradict each other", "it")
def _(folder):
    compiled(one("Add", {"x": [2, 3], "z": [2, 4]}))


@case("a product of sizes that do not fit", "it")
def _(folder):
    compiled(one("MatMul", {"x": [2, 3], "w": np.ones((4, 5), np.float32)}))


@case("a product of sizes that do not fit for all sizes", "it")
def _(folder):
    compiled(one("MatMul", {"x": ["N", 3], "w": np.ones((4, 5), np.float32)}))


@case("a reshape to another number of elements", "Reshape node 'it'", "float32[2, 3]", "[4, 5]")
def _(folder):
    compiled(one("Reshape", {"x": [2, 3], "to": np.array([4, 5])}))


@case("a reshape of a symbolic size", "Reshape node 'it'", "float32[N, 3]", "--input-shape x=1,3")
def _(folder):
    compiled(one("Reshape", {"x": ["N", 3], "to": np.array([4, 5])}))


@case("a convolution with wrong channels", "it")
def _(folder):
    compiled(one("Conv", {"x": [1, 3, 8, 8], "w": np.ones((4, 5, 3, 3), np.float32)}))


@case("a convolution whose window is larger than the image", "window of 5", "axis 2", "size 2")
def _(folder):
    compiled(one("Conv", {"x": [1, 3, 2, 2], "w": np.ones((4, 3, 5, 5), np.float32)}))


@case("a run whose image is smaller than a window", "float32[1, 3, 2, 2]", "at least 5", "axis 2")
def _(folder):
    made = one("Conv", {"x": ["N", 3, "H", "W"], "w": np.ones((4, 3, 5, 5), np.float32)})
    compiled(made).run({"x": np.ones((1, 3, 2, 2), np.float32)})


@case("concatenation of ranks that differ", "it")
def _(folder):
    compiled(one("Concat", {"x": [2, 3], "z": [2, 3, 4]}, axis=0))


@case("a split into sizes that do not add up", "it")
def _(folder):
    compiled(one("Split", {"x": [5, 3], "s": np.array([9])}))


@case("a transpose of wrong axes", "it")
def _(folder):
    compiled(one("Transpose", {"x": [2, 3]}, perm=[0, 2]))


@case("an einsum that cannot be read", "it")
def _(folder):
    compiled(one("Einsum", {"x": [2, 3]}, equation="ij->ik,"))


@case("a mode that does not exist", "it")
def _(folder):
    sizes = np.array([1, 1, 4, 4])
    none = np.array([], np.float32)
    compiled(one("Resize", {"x": [1, 1, 2, 2], "r": none, "s": none, "to": sizes}, mode="magic"))


@case("a Range without steps", "Range")
def _(folder):
    zero = {"a": np.array(0.0), "b": np.array(5.0), "c": np.array(0.0)}
    compiled(one("Range", zero))


@case("a constant of a trillion elements")
def _(folder):
    compiled(one("ConstantOfShape", {"s": np.array([10**6, 10**6])}))


@case("an element of a sequence that it does not have", "at")
def _(folder):
    nodes = [
        node("SequenceConstruct", ["x", "x"], ["s"], "made"),
        node("SequenceAt", ["s", "i"], ["y"], "at"),
    ]
    compiled(model(nodes, [value("x", [2])], [value("y", None)], i=np.array(7)))


@case("a form that a converter does not take", "Relu node 'relu'", "its slope is 3")
def _(folder):
    with converter("Relu", FormError("its slope is 3, expected 1")):
        compiled(relu())


@case("a converter with a defect", "Relu node 'relu'", "float32[2, 3]")
def _(folder):
    with converter("Relu", AttributeError("'NoneType' object has no attribute 'shape'")):
        compiled(relu())


@case("a converter with a defect, symbolic sizes", "Relu node 'relu'", "float32[N, 3]", "x=1,3")
def _(folder):
    with converter("Relu", lambda bb, inputs: None.shape):
        compiled(relu(["N", 3]))


@case("TVM refuses an operator's inputs", "Relu node 'relu'", "freeze N of input 'x'")
def _(folder):
    def concatenated(bb, inputs):
        return bb.normalize(tvm.relax.op.concat([inputs[0], tvm.relax.const(1.0)], axis=7))

    with converter("Relu", concatenated):
        compiled(relu(["N", 3]))


@case("a defect inside of a branch", "Abs node 'inner' in If node 'choice'")
def _(folder):
    with converter("Abs", KeyError("no such thing")):
        compiled(chosen(node("Abs", ["x"], ["t"], "inner"), node("Relu", ["x"], ["e"])))


@case("a defect inside of a loop", "Abs node 'inner' in Loop node 'loop'", "freeze N")
def _(folder):
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["still"], "keep"),
            node("Abs", ["sum"], ["next"], "inner"),
        ],
        "body",
        [
            value("i", [], TensorProto.INT64),
            value("go", [], TensorProto.BOOL),
            value("sum", ["N"]),
        ],
        [value("still", [], TensorProto.BOOL), value("next", ["N"])],
    )
    made = model(
        [node("Loop", ["n", "", "x"], ["y"], "loop", body=body)],
        [value("n", [], TensorProto.INT64), value("x", ["N"])],
        [value("y", ["N"])],
    )
    with converter("Abs", RuntimeError("Check failed: (false) is false")):
        compiled(made)


@case("folding of constants with a defect", "Add node 'it'")
def _(folder):
    prepare = importlib.import_module("tvm_ext.onnx_frontend.prepare")

    def broken(node):
        raise TypeError("unsupported operand type(s) for +: 'NoneType' and 'int'")

    with replaced(prepare, "_may_fold", broken):
        compiled(one("Add", {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32)}))


@case("a tree ensemble that leads nowhere", "it")
def _(folder):
    made = node(
        "TreeEnsembleRegressor",
        ["x"],
        ["y"],
        name="it",
        domain="ai.onnx.ml",
        n_targets=1,
        nodes_falsenodeids=[9],
        nodes_truenodeids=[9],
        nodes_featureids=[0],
        nodes_modes=["BRANCH_LEQ"],
        nodes_nodeids=[0],
        nodes_treeids=[0],
        nodes_values=[0.5],
        target_ids=[0],
        target_nodeids=[0],
        target_treeids=[0],
        target_weights=[1.0],
    )
    wide = model([made], [value("x", [2, 3])], [value("y", None)])
    wide.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    compiled(wide)


@case("a model of complex numbers", "input 'x'")
def _(folder):
    made = one("Identity", {"x": [2]})
    for tensor in (*made.graph.input, *made.graph.output):
        tensor.type.tensor_type.elem_type = TensorProto.COMPLEX64
    compiled(made)

"""Options, inputs and targets that are wrong."""

import numpy as np
import onnx
from provoked import case, command, compiled, model, node, relu, saved, value

import tvm_ext
from tvm_ext.memory_planner import (
    Buffer,
    MemoryPlan,
    Operation,
    check_plan,
    order_for_memory,
    plan_offsets,
)

ONES = np.ones((2, 3), np.float32)
OPEN = ["N", 3]


def refused_input(name, *says, **inputs):
    @case(name, *says)
    def _(folder):
        compiled(relu()).run(inputs or ONES)


refused_input("inputs that are no mapping", "mapping")
refused_input("a wrong name of an input", "'z'", z=ONES)
refused_input("a wrong type of an input", "float32", x=ONES.astype(np.float64))
refused_input("a wrong rank of an input", "rank", x=ONES[0])
refused_input("a wrong size of an input", "axis 1", x=ONES[:, :2])
refused_input("an input that is a string", "'x'", x="text")
refused_input("an input of ragged lists", "'x'", x=[[1.0], [1.0, 2.0]])
refused_input("an input that is None", "'x'", x=None)


@case("an input that is missing", "'b'")
def _(folder):
    made = model(
        [node("Add", ["a", "b"], ["y"])], [value("a", [2]), value("b", [2])], [value("y", [2])]
    )
    compiled(made).run({"a": np.ones(2, np.float32)})


@case("a size outside of its range", "1 to 4")
def _(folder):
    compiled(relu(OPEN), input_shapes={"x": ["N:1:4", 3]}).run({"x": np.ones((9, 3), np.float32)})


@case("sizes of a run that contradict a name", "axis 0")
def _(folder):
    made = model(
        [node("Add", ["a", "b"], ["y"])],
        [value("a", ["N"]), value("b", ["N"])],
        [value("y", ["N"])],
    )
    compiled(made).run({"a": np.ones(2, np.float32), "b": np.ones(5, np.float32)})


@case("sizes of a run that do not fit together", "'beside'", "float32[4, 3]")
def _(folder):
    made = model(
        [node("Concat", ["a", "b"], ["y"], "beside", axis=1)],
        [value("a", ["A", 3]), value("b", ["B", 3])],
        [value("y", None)],
    )
    compiled(made).run({"a": np.ones((2, 3), np.float32), "b": np.ones((4, 3), np.float32)})


@case("a run that chooses a branch which cannot be run", "'choice' chose its then branch")
def _(folder):
    bad = onnx.helper.make_graph(
        [node("MatMul", ["x", "v"], ["t"], "product")], "t", [], [value("t", None)]
    )
    good = onnx.helper.make_graph([node("Relu", ["x"], ["e"])], "e", [], [value("e", None)])
    made = model(
        [node("If", ["c"], ["y"], "choice", then_branch=bad, else_branch=good)],
        [value("c", [], onnx.TensorProto.BOOL), value("x", ["N", "M"])],
        [value("y", None)],
        v=np.ones((4, 5), np.float32),
    )
    compiled(made, input_shapes={"x": [2, 3]}).run({"c": np.array(True), "x": ONES})


@case("the outputs of a model for a CPU on a GPU", "on_device")
def _(folder):
    compiled(relu()).run({"x": ONES}, on_device=True)


@case("a shape for an input that does not exist", "'image'")
def _(folder):
    compiled(relu(), input_shapes={"image": [2, 3]})


@case("a shape of another rank", "rank 2")
def _(folder):
    compiled(relu(), input_shapes={"x": [2, 3, 4]})


@case("a shape that the model does not have", "which is 3 in the model")
def _(folder):
    compiled(relu(), input_shapes={"x": [2, 5]})


@case("a shape that is no number", "'-many'")
def _(folder):
    compiled(relu(OPEN), input_shapes={"x": ["-many", 3]})


@case("shapes that are no mapping", "input_shapes")
def _(folder):
    compiled(relu(OPEN), input_shapes=[1, 3])


@case("a range that is empty", "9:2")
def _(folder):
    compiled(relu(OPEN), input_shapes={"x": ["9:2", 3]})


@case("inputs that are too large", "elements")
def _(folder):
    compiled(relu(OPEN), input_shapes={"x": [2**31, 3]})


@case("values that need more memory than is allowed", "GiB", "[40000, 40000]")
def _(folder):
    made = model(
        [node("Exp", ["x"], ["a"], "exp"), node("MatMul", ["a", "a"], ["y"], "product")],
        [value("x", [40000, 40000])],
        [value("y", None)],
    )
    compiled(made)


def refused_option(name, *options, says=(), verb="compile"):
    @case(name, *says)
    def _(folder):
        return command(verb, saved(folder, relu(OPEN)), *options)


refused_option("a target that does not exist", "--target", "avx3", says=("'avx2'",))
refused_option("a target that is no TVM target", "--target", "llvm -mcpu=nonsense")
refused_option("a memory limit that is no size", "--memory-limit", "much", says=("'64MiB'",))
refused_option(
    "a memory limit for sizes that a run decides", "--memory-limit", "1MiB", says=("input_shapes",)
)
refused_option(
    *("a memory limit that cannot be met", "--memory-limit", "1", "--input-shape", "x=4,3"),
    says=("the least that is possible",),
)
refused_option("a drawing of another form", "-o", "p.png", says=(".html or .svg",), verb="memory")
refused_option("a target that only models", "--target", "wse2", says=("mesh",))
refused_option("an optimisation level that does not exist", "--opt-level", "O9", says=("O9",))
refused_option("a pass that does not exist", "--disable-pass", "GemmFussion", says=("GemmFusion",))
refused_option("a pass that must run", "--disable-pass", "LegalizeOps", says=("LegalizeOps",))
refused_option("an option that a pass does not have", "--pass-config", "GemmFusion.magic=1")
refused_option("a value that an option does not take", "--pass-config", "GemmFusion.epilogue=[1")
refused_option("threads that are none", "--threads", "0")
refused_option("threads that are no number", "--threads", "two")
refused_option("an option that does not exist", "--optimise", says=("--optimise",))
refused_option("a shape that cannot be read", "--input-shape", "x", says=("NAME=SIZES",))
refused_option("a report of another form", "--report", "r.pdf", says=(".html or .json",))
refused_option("inputs that are not there", "--inputs", "absent.npz", verb="run")
refused_option("a dimension that does not exist", "--size", "M=2", verb="run", says=("'M'",))
refused_option(
    "peaks of a GPU", "-t", "nvidia-a100", "--measure-peaks", verb="profile", says=("CPU",)
)
refused_option("a records folder that is not there", "--records", "absent")
refused_option("a time that is none", "--time-budget", "soon", "-o", "r", verb="tune")
refused_option("an effort that does not exist", "--effort", "huge", "-o", "r", verb="tune")


@case("a command that does not exist", "nonsense")
def _(folder):
    return command("nonsense")


@case("a model that is missing on the command line")
def _(folder):
    return command("compile")


@case("a pass to explain that does not exist", "GemmFusion")
def _(folder):
    return command("passes", "explain", "GemmFussion")


@case("a target of TVM that it does not know")
def _(folder):
    tvm_ext.compile(relu(), target="")


@case("an object for a target")
def _(folder):
    tvm_ext.compile(relu(), target=object())


@case("an optimisation level that is no level")
def _(folder):
    tvm_ext.compile(relu(), opt_level=None)


@case("a dump folder that is a file", "is a file")
def _(folder):
    path = saved(folder, relu())
    return command("compile", path, "--dump-ir", path)


@case("a bug report over an existing file", "exists")
def _(folder):
    path = saved(folder, relu())
    return command("report-bug", path, "-o", path)


@case("a model for another machine")
def _(folder):
    import platform

    other = "aarch64" if platform.machine() == "x86_64" else "avx2"
    compiled(relu(), target=other).run({"x": ONES})


@case("two ways to look into a failure", "--bisect", "--reduce")
def _(folder):
    return command("check", saved(folder, relu()), "--bisect", "--reduce", folder / "out.onnx")


@case("a time limit for no reduction", "--time-limit")
def _(folder):
    return command("check", saved(folder, relu()), "--time-limit", 5)


@case("a reduced model in the place of the model", "overwrite")
def _(folder):
    return command("check", saved(folder, relu()), "--reduce", folder / "m.onnx")


@case("a buffer that ends before it begins", "'w'", "4 to 3")
def _(folder):
    plan_offsets([Buffer("w", 64, 4, 3)])


@case("a memory plan in which two buffers overlap", "'a'", "'b'", "place 1")
def _(folder):
    both = [Buffer("a", 64, 0, 1), Buffer("b", 64, 1, 2)]
    check_plan(both, MemoryPlan((0, 0), 64, 128, "by hand", False))


@case("an operation ahead of its input", "'a'", "position 1")
def _(folder):
    order_for_memory([Operation("a", (1,), 64), Operation("b", (), 64)])

"""Programs under a memory limit: they fit, compute the same, and say what that costs."""

import numpy as np
import onnx
import pytest
import tvm
from arena_programs import INPUTS, Program, programs
from hypothesis import HealthCheck, given, settings
from memory_planning import plan_memory
from small_models import model, node, value
from thoroughness import DRAWS
from tvm import relax
from unoptimised import HOST, LLVM, machine_of

import tvm_ext
from tvm_ext.compiler.build import build
from tvm_ext.errors import BuildError, ConfigError

SIDE = 64
BYTES = SIDE * SIDE * 4
# The pass sees each node: these are no kernels of their own otherwise.
APART = {"opt_level": "O0"}


def skip(middle: int = 2, rows: str | int = SIDE) -> onnx.ModelProto:
    """A cheap value of the input is added to what four times as many columns give."""
    nodes = [
        node("Exp", ["x"], ["early"], name="early"),
        node("MatMul", ["early", "up"], ["wide"], name="up"),
        *[
            node("Cos", [f"w{i}" if i else "wide"], [f"w{i + 1}"], name=f"cos{i}")
            for i in range(middle)
        ],
        node("MatMul", [f"w{middle}", "down"], ["back"], name="down"),
        node("Add", ["early", "back"], ["sum"], name="sum"),
        node("MatMul", ["sum", "last"], ["y"], name="last"),
    ]
    rng = np.random.default_rng(0)
    weights = {
        "up": rng.standard_normal((SIDE, 4 * SIDE)),
        "down": rng.standard_normal((4 * SIDE, SIDE)),
        "last": rng.standard_normal((SIDE, 4)),
    }
    return model(
        nodes,
        [value("x", [rows, SIDE])],
        [value("y", [rows, 4])],
        **{name: one.astype("float32") for name, one in weights.items()},
    )


def x(rows: int = SIDE) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal((rows, SIDE)).astype("float32")}


@pytest.mark.extended
def test_a_cheap_value_is_computed_again_and_the_report_says_so():
    plain = tvm_ext.compile(skip(), HOST, **APART)
    whole = plain.report.memory.planned_peak_bytes
    limited = tvm_ext.compile(skip(), HOST, memory_limit=whole - 1, **APART)
    memory = limited.report.memory
    assert memory.planned_peak_bytes <= whole - BYTES // 2
    assert memory.limit.unlimited_bytes == whole
    assert memory.limit.calls_again == 1
    assert 0 < memory.limit.predicted_slowdown < 1
    assert limited.report.kernel_calls == plain.report.kernel_calls + 1
    np.testing.assert_array_equal(limited.run(x())["y"], plain.run(x())["y"])
    text = str(limited.report)
    assert "met" in text
    assert "1 call again" in text
    # Each call of the profile is of one node, that of the copy too.
    calls = [call.origins for call in limited.profile(x(), repeat=1).calls]
    assert calls.count(("early",)) == 2
    assert {len(names) for names in calls} == {1}


@pytest.mark.extended
def test_a_limit_that_is_met_anyway_changes_nothing():
    plain = tvm_ext.compile(skip(), HOST, **APART)
    found = tvm_ext.compile(skip(), HOST, memory_limit="1 MiB", **APART).report
    assert found.memory.planned_peak_bytes == plain.report.memory.planned_peak_bytes
    assert (found.memory.limit.calls_again, found.memory.limit.is_reordered) == (0, False)


def least_of(made: onnx.ModelProto) -> int:
    """The bytes that a refusal names."""
    with pytest.raises(BuildError, match=r"the least that .* at most 1\.00 KiB") as error:
        tvm_ext.compile(made, HOST, memory_limit="1KiB", **APART)
    return int(str(error.value).partition("(")[2].partition(" bytes")[0])


@pytest.mark.extended
def test_the_least_that_is_possible_is_named_and_can_be_met():
    least = least_of(skip())
    found = tvm_ext.compile(skip(), HOST, memory_limit=least, **APART)
    assert found.report.memory.planned_peak_bytes == least
    np.testing.assert_array_equal(
        found.run(x())["y"], tvm_ext.compile(skip(), HOST, **APART).run(x())["y"]
    )


@pytest.mark.slow
def test_sizes_with_a_range_count_as_their_largest():
    shapes = {"x": ["N:1:64", SIDE]}
    plain = tvm_ext.compile(skip(rows="N"), HOST, input_shapes=shapes, **APART)
    limit = plain.report.memory.planned_peak_bytes - 1
    limited = tvm_ext.compile(
        skip(rows="N"), HOST, input_shapes=shapes, memory_limit=limit, **APART
    )
    assert limited.report.memory.planned_peak_bytes <= limit
    for rows in (1, 7, 64):
        np.testing.assert_array_equal(limited.run(x(rows))["y"], plain.run(x(rows))["y"])


def test_sizes_that_a_run_decides_are_refused():
    with pytest.raises(BuildError, match=r"each run decides .* expected sizes, or ranges"):
        tvm_ext.compile(skip(rows="N"), HOST, memory_limit="64KiB", **APART)


@pytest.mark.parametrize("limit", ["much", 0, -5, "0MiB", True, 1.5, "1e400GiB"])
def test_what_is_no_size_is_refused(limit):
    with pytest.raises(ConfigError, match=r"the memory limit is .*; expected"):
        tvm_ext.compile(skip(), HOST, memory_limit=limit)


@pytest.mark.extended
def test_the_usual_limit_is_the_same_thing(monkeypatch):
    """What the variable says of all programs is met as what is asked of one."""
    whole = tvm_ext.compile(skip(), HOST, **APART).report.memory.planned_peak_bytes
    monkeypatch.setenv("TVM_EXT_MEMORY_LIMIT", f"{whole - 1} B")
    found = tvm_ext.compile(skip(), HOST, **APART).report.memory
    assert found.planned_peak_bytes < whole
    assert not found.limit.is_asked
    # A limit for the model comes before it.
    other = tvm_ext.compile(skip(), HOST, memory_limit=whole, **APART).report.memory
    assert other.planned_peak_bytes == whole


def test_branches_stay_where_they_are():
    """An If is a step that is not moved, and a value that a branch reads is not computed again."""
    made = skip()
    less = onnx.helper.make_graph(
        [node("Neg", ["early"], ["less"])], "less", [], [value("less", [SIDE, SIDE])]
    )
    more = onnx.helper.make_graph(
        [node("Abs", ["early"], ["more"])], "more", [], [value("more", [SIDE, SIDE])]
    )
    chosen = node("If", ["flag"], ["chosen"], name="if", then_branch=less, else_branch=more)
    graph = made.graph
    graph.node[-2].input[0] = "chosen"
    graph.node.insert(len(graph.node) - 2, chosen)
    graph.input.append(value("flag", [], onnx.TensorProto.BOOL))
    plain = tvm_ext.compile(made, HOST, **APART)
    other = tvm_ext.compile(made, HOST, memory_limit=least_of(made), **APART)
    for flag in (True, False):
        inputs = {**x(), "flag": np.array(flag)}
        np.testing.assert_array_equal(other.run(inputs)["y"], plain.run(inputs)["y"])


def lowered(program: Program) -> tvm.IRModule:
    mod = tvm.script.from_source(program.text())
    passes = [
        relax.transform.Normalize(),
        relax.transform.LegalizeOps(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.CanonicalizeBindings(),
    ]
    return tvm.transform.Sequential(passes)(mod)


@pytest.mark.extended
@settings(
    max_examples=8 * DRAWS**2,
    deadline=None,
    derandomize=DRAWS == 1,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_programs_with_as_little_as_possible_compute_the_same(program: Program) -> None:
    """With a limit of one byte, as far as it goes, and NaN in all memory that is free."""
    planned, _ = plan_memory(
        lowered(program), poison=True, pass_config={"LimitMemory": {"limit": 1}}
    )
    machine = machine_of(build(planned, LLVM))
    rng = np.random.default_rng(0)
    for rows, flag in ((1, True), (5, False)):
        inputs = {
            name: rng.uniform(-1, 1, [rows if size == "n" else size for size in shape]).astype(
                "float32"
            )
            for name, shape in INPUTS.items()
        }
        tensors = [tvm.runtime.tensor(one) for one in (*inputs.values(), np.array(flag))]
        for found, wanted in zip(
            machine["main"](*tensors), program.expected(inputs, flag), strict=True
        ):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)

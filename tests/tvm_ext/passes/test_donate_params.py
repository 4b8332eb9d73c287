"""A result goes into the memory of a parameter only where nothing else needs that."""

import numpy as np
import pytest
import tvm
from tvm import relax
from unoptimised import machine_of

from tvm_ext.compiler.compile_context import compiling
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.passes.donate_params import DONATED, DonateParams
from tvm_ext.passes.limit_memory import LimitMemory
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.spans import bindings_of


def updating(build, *, rewritten: bool = True, **donated: int) -> tvm.IRModule:
    """``build`` of a weight and its gradient, behind ``CallTIRRewrite`` or ahead of it."""
    params = [relax.Var(name, relax.TensorType([8, 16], "float32")) for name in ("w", "g")]
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        bb.emit_func_output(build(bb, *params))
    names = ("ToNonDataflow", "RemovePurityChecking", "CallTIRRewrite")[: 3 if rewritten else 2]
    mod = tvm.transform.Sequential([getattr(relax.transform, n)() for n in names])(bb.get())
    mod["main"] = mod["main"].with_attr(DONATED, donated)
    return mod


def moved(bb: relax.BlockBuilder, w: relax.Expr, g: relax.Expr) -> relax.Expr:
    return bb.emit_te(tvm.topi.subtract, w, g)


def alone(bb: relax.BlockBuilder, w: relax.Expr, g: relax.Expr) -> relax.Expr:
    return moved(bb, w, g)


def beside_one_that_reads(bb: relax.BlockBuilder, w: relax.Expr, g: relax.Expr) -> relax.Expr:
    return relax.Tuple([moved(bb, w, g), bb.emit_te(tvm.topi.nn.relu, w)])


def behind_one_that_reads(bb: relax.BlockBuilder, w: relax.Expr, g: relax.Expr) -> relax.Expr:
    positive = bb.emit_te(tvm.topi.nn.relu, w)
    return relax.Tuple([moved(bb, w, g), positive])


def of_other_elements(bb: relax.BlockBuilder, w: relax.Expr, g: relax.Expr) -> relax.Expr:
    return bb.emit_te(lambda w, g: tvm.topi.add(tvm.topi.flip(w, 0), g), w, g)


def of_itself_twice(bb: relax.BlockBuilder, w: relax.Expr, g: relax.Expr) -> relax.Expr:
    return relax.Tuple([w, moved(bb, w, g)])


CASES = [
    (alone, {"w": 0}, True),
    (alone, {"g": 0}, True),
    (beside_one_that_reads, {"w": 0}, False),
    (behind_one_that_reads, {"w": 0}, True),
    (behind_one_that_reads, {"g": 1}, False),
    (of_other_elements, {"w": 0}, False),
    (of_other_elements, {"g": 0}, True),
    (of_itself_twice, {"w": 1}, False),
]


@pytest.mark.parametrize(("build", "donated", "is_in_place"), CASES)
def test_results_in_place(build, donated, is_in_place) -> None:
    before = updating(build, **donated)
    with compiling_for(resolve_target("avx2")):
        after = DonateParams()(before)
    allocations = [
        operator_name(binding.value) == "relax.builtin.alloc_tensor"
        for binding in bindings_of(after["main"])
    ]
    results = 2 if "reads" in build.__name__ else 1
    assert sum(allocations) == results - is_in_place
    assert after.same_as(before) != is_in_place
    machines = [machine_of(m) for m in (before, after)]
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((8, 16)).astype("float32") for name in "wg"}
    found = []
    for machine in machines:
        tensors = {name: tvm.runtime.tensor(array) for name, array in arrays.items()}
        made = machine["main"](*tensors.values())
        found.append([made.numpy()] if results == 1 and hasattr(made, "numpy")
                     else [one.numpy() for one in made])  # fmt: skip
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    if is_in_place:
        (name,) = donated
        np.testing.assert_array_equal(tensors[name].numpy(), found[1][donated[name]])


def test_programs_for_a_gpu_stay_as_they_are() -> None:
    before = updating(alone, w=0)
    with compiling_for(resolve_target("nvidia-h200")):
        assert DonateParams()(before).same_as(before)


@pytest.mark.parametrize("places", [{}, {"w": 0}])
def test_a_memory_limit_counts_no_result_in_a_parameter(places: dict[str, int]) -> None:
    mod = updating(alone, rewritten=False, **places)
    with compiling(resolve_target("avx512")) as context:
        LimitMemory(limit=1)(mod)
    assert context.memory_limit is not None
    assert context.memory_limit.unlimited_bytes == (0 if places else 8 * 16 * 4)

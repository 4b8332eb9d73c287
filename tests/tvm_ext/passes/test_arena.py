"""Programs compute the same where all that is free in the arena is no number."""

import numpy as np
import pytest
import tvm
from arena_programs import INPUTS, Program, programs
from hypothesis import HealthCheck, given, settings
from memory_planning import plan_memory
from thoroughness import DRAWS
from tvm import relax
from unoptimised import LLVM, machine_of

from tvm_ext.compiler.build import build


def lowered(program: Program) -> tvm.IRModule:
    mod = tvm.script.from_source(program.text())
    passes = [
        relax.transform.Normalize(),
        relax.transform.LegalizeOps(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.CanonicalizeBindings(),
    ]
    return tvm.transform.Sequential(passes)(mod)


def assert_computes(program: Program) -> None:
    planned, _ = plan_memory(lowered(program), poison=True)
    machine = machine_of(build(planned, LLVM))
    rng = np.random.default_rng(0)
    for rows, flag in ((1, True), (5, False), (2, True)):
        inputs = {
            name: rng.uniform(-1, 1, [rows if size == "n" else size for size in shape]).astype(
                "float32"
            )
            for name, shape in INPUTS.items()
        }
        given_ = [tvm.runtime.tensor(one) for one in (*inputs.values(), np.array(flag))]
        found = machine["main"](*given_)
        for value, wanted in zip(found, program.expected(inputs, flag), strict=True):
            np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.extended
@settings(
    max_examples=20 * DRAWS**2,
    deadline=None,
    derandomize=DRAWS == 1,
    suppress_health_check=list(HealthCheck),
)
@given(programs())
def test_programs_compute_the_same_with_nan_in_free_memory(program: Program) -> None:
    assert_computes(program)

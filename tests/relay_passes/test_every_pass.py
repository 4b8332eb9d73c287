"""What holds for every registered graph pass, whatever it does.

The input module stays as it was, the output is well-formed, a second run changes nothing, and the
program computes the same numbers.
"""

import functools

import numpy as np
import pytest
import tvm
from every_pass_modules import ANNOTATED, LEGALIZED, MODULES, RUNS_AFTER, run_passes
from memory_planning import plan_memory
from thoroughness import ALL_CASES
from tvm import relax
from tvm_ffi import structural_equal
from unoptimised import LLVM, machine_of

from tvm_ext.compiler import build as code
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.passes import registry

# These run in the lowered part of the pipelines as well.
RUNS_TWICE = ("FoldConstant", "PropagateSpans", "DeadCodeElimination", "CanonicalizeBindings")

# TVM's own that a second run of takes further, and why.
NOT_IDEMPOTENT = {
    "EliminateCommonSubexpr": "leaves an alias, to which the next run moves an output",
}

# TVM's own that only move names around, or are tested with the whole pipeline: no numbers here.
TVM_PASSES_WITH_NUMBERS = ("FoldConstant",)


GRAPH_PASSES = [e.name for e in registry.all_entries() if e.level == "graph" and e.in_pipelines]


def cases() -> list:
    """Every pass where it stands in the pipelines, on every module with all cases.

    Otherwise on every other module, and the next pass on those between.
    """
    places = [(name, RUNS_AFTER.get(name, ())) for name in GRAPH_PASSES]
    places += [(name, ANNOTATED) for name in RUNS_TWICE]
    # The module of the other branch: its numbers go with those of this one.
    modules = [module for module in MODULES if module != "else branch"]
    return [
        pytest.param(name, before, module, id=f"{name}-{before[-1] if before else ''}-{module}")
        for number, (name, before) in enumerate(places)
        for module in (modules if ALL_CASES else modules[number % 2 :: 2])
    ]


@pytest.fixture(autouse=True)
def _target(monkeypatch):
    # One piece of code for each program: parts in files of their own have to be linked.
    monkeypatch.setattr(code, "has_few_kernels", lambda mod: True)
    with resolve_target("x86-64").tvm_target():
        yield


@functools.cache
def prepared(before: tuple[str, ...], module: str) -> tuple[tvm.IRModule, str]:
    """A module where a pass finds it, and all that there is of it as text."""
    mod = run_passes(MODULES[module][0], *before)
    return mod, tvm.ir.save_json(mod)


def evaluate(mod: tvm.IRModule, module: str) -> list[np.ndarray]:
    """Outputs of ``mod``, compiled in the plainest way from wherever it is, for inputs of a module.

    Of one with branches, for both.
    """
    planned, _ = plan_memory(run_passes(mod, *LEGALIZED, "FuseTIR"))
    machine = machine_of(code.build(planned, LLVM))
    found = []
    for name in (module, "else branch") if module == "then branch" else (module,):
        result = machine["main"](*[tvm.runtime.tensor(value) for value in MODULES[name][1]])
        found += [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [value.numpy() for value in found]


_expected: dict[str, list[np.ndarray]] = {}


def expected(module: str) -> list[np.ndarray]:
    if module not in _expected:
        _expected[module] = evaluate(MODULES[module][0], module)
    return _expected[module]


@pytest.mark.parametrize(("name", "before", "module"), cases())
def test_is_pure_well_formed_idempotent_and_exact(name, before, module):
    mod, text = prepared(before, module)

    new = registry.get(name).make({})(mod)

    assert tvm.ir.save_json(mod) == text, "the pass changed its input"
    relax.analysis.well_formed(new)
    again = registry.get(name).make({})(new)
    assert name in NOT_IDEMPOTENT or structural_equal(again, new), "a second run changes more"
    with_numbers = registry.get(name).source == "built-in" or name in TVM_PASSES_WITH_NUMBERS
    if structural_equal(new, mod) or not with_numbers:
        return
    tolerance = 2e-5
    for value, wanted in zip(evaluate(new, module), expected(module), strict=True):
        assert value.dtype == wanted.dtype
        np.testing.assert_allclose(value, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [name for name in GRAPH_PASSES if name not in RUNS_AFTER])
def test_finds_nothing_to_do_in_an_empty_module(name):
    empty = tvm.IRModule()
    assert structural_equal(registry.get(name).make({})(empty), empty)

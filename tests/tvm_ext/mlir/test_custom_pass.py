"""Users' passes over the MLIR form of kernels: what each kind does, records, and is refused for."""

import numpy as np
import pytest
from small_models import assert_mlp, mlp, mlp_reference, rand
from unoptimised import HOST

import tvm_ext
from tvm_ext.errors import PassError
from tvm_ext.mlir.compare_kernels import check_against_mlir
from tvm_ext.mlir.custom_pass import register_mlir_pass
from tvm_ext.mlir.lowering import operations_below
from tvm_ext.mlir.model_kernels import KernelsRequest
from tvm_ext.passes import registry

TILES = """
    %all = transform.structured.match ops{["linalg.matmul", "linalg.generic"]} in %root
        : (!transform.any_op) -> !transform.any_op
    %tiled, %loop = transform.structured.tile_using_for %all tile_sizes [$rows]
        : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
"""

# A selection of the other value: a pass may change what a kernel computes.
SWAPPED = """
pdl.pattern @swap : benefit(1) {
  %type = pdl.type
  %bool = pdl.type : i1
  %is = pdl.operand : %bool
  %x = pdl.operand : %type
  %y = pdl.operand : %type
  %op = pdl.operation "arith.select"(%is, %x, %y : !pdl.value, !pdl.value, !pdl.value)
      -> (%type : !pdl.type)
  pdl.rewrite %op {
    %new = pdl.operation "arith.addf"(%x, %x : !pdl.value, !pdl.value) -> (%type : !pdl.type)
    pdl.replace %op with %new
  }
}
"""


@pytest.fixture
def register():
    """``register_mlir_pass``, and what it registered is taken out again."""
    before = {entry.name for entry in registry.all_entries()}
    yield register_mlir_pass
    for entry in registry.all_entries():
        if entry.name not in before:
            registry.remove(entry.name)


def record(compiled, name):
    (found,) = [one for one in compiled.report.passes if one.name == name]
    return found


def maximum(module, factor=1):
    """Puts arith.maximumf in the place of comparisons and selections."""
    from torch_mlir import ir
    from torch_mlir.dialects import arith

    for op in list(operations_below(module.operation)):
        if op.name == "arith.select" and isinstance(op.results[0].type, ir.F32Type):
            with ir.InsertionPoint(op), op.location:
                op.results[0].replace_all_uses_with(arith.maximumf(*list(op.operands)[1:]))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("what", "stage"),
    [
        (maximum, "linalg"),
        ("linalg-generalize-named-ops", "linalg"),
        (TILES, "linalg"),
        ("func.func(convert-linalg-to-loops)", "bufferized"),
        ("strip-debuginfo,llvm-legalize-for-export", "llvm"),
    ],
    ids=["function", "pipeline", "transform", "bufferized", "llvm"],
)
def test_a_pass_changes_kernels_and_the_numbers_stay(register, what, stage):
    register(what, name="mine", stage=stage, options={"rows": 2} if what is TILES else {})
    compiled = tvm_ext.compile(mlp(), HOST)
    assert_mlp(compiled, rand(5, 6))
    done = record(compiled, "mine")
    if stage != "llvm":
        assert done.applied
        assert done.applied == record(compiled, "MlirCodeGeneration").applied
        assert done.decisions[0].reason.startswith(f"at stage {stage}: ")
        assert "MLIR" in {kernel.schedule for kernel in compiled.report.kernels}


def test_patterns_of_pdl(register):
    register(SWAPPED, name="swap")
    x = rand(5, 6)
    found = tvm_ext.compile(mlp(), HOST, pass_config={"swap": {"kernels": "relu"}}).run({"x": x})
    expected = mlp_reference(x)["a"]
    assert np.abs(found["a"] - expected).max() > 0.1


@pytest.mark.extended
def test_options_and_the_choice_of_kernels(register):
    register(TILES, name="tiles", options={"rows": 2})
    own = {"tiles": {"rows": 1, "kernels": "second"}}
    done = record(tvm_ext.compile(mlp(), HOST, pass_config=own), "tiles")
    assert [one.where for one in done.decisions] == ["second"]
    off = tvm_ext.compile(mlp(), HOST, disabled_passes=["tiles"])
    assert not record(off, "MlirCodeGeneration").applied


def test_passes_of_several_stages_follow_each_other(register):
    register("func.func(convert-linalg-to-loops)", name="loops", stage="bufferized")
    register("linalg-generalize-named-ops", name="late", stage="linalg")
    done = record(tvm_ext.compile(mlp(), HOST), "late")
    assert done.refused == 2
    assert "stage bufferized" in done.decisions[0].reason


@pytest.mark.extended
def test_a_function_that_raises_is_a_refusal(register):
    def raising(module):
        raise ValueError("no such loop")

    register(raising)
    compiled = tvm_ext.compile(mlp(), HOST)
    assert_mlp(compiled, rand(5, 6))
    assert "no such loop" in record(compiled, "raising").decisions[0].reason


@pytest.mark.extended
def test_options_of_a_function(register):
    seen = []

    def noting(module=None, rows=1, **others):
        seen.append((rows, others))

    register(noting, options={"columns": 2})
    tvm_ext.compile(mlp(), HOST, pass_config={"noting": {"rows": 3, "kernels": "second"}})
    assert seen == [(3, {"columns": 2})]


@pytest.mark.extended
def test_what_the_check_compares_is_the_changed_kernel(register):
    register(SWAPPED, name="swap")
    found = check_against_mlir(mlp(4), KernelsRequest(HOST))
    assert not found.ok


@pytest.mark.extended
def test_a_saved_model_has_the_code(register, tmp_path):
    register(TILES, name="tiles", options={"rows": 2})
    tvm_ext.compile(mlp(), HOST).save(tmp_path / "mlp.tvmx")
    assert_mlp(tvm_ext.load(tmp_path / "mlp.tvmx"), rand(5, 6))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"what": "no-such-pass", "name": "wrong"}, "no-such-pass"),
        ({"what": "%a = transform.wrong", "name": "wrong"}, "MLIR cannot read the text"),
        ({"what": "canonicalize", "name": "wrong", "stage": "tiled"}, "linalg, bufferized, llvm"),
        ({"what": "canonicalize"}, "pass name="),
        ({"what": 3, "name": "wrong"}, "expected text of a pipeline"),
        ({"what": lambda: None, "name": "wrong"}, r"expected a function \(module, option=default"),
        ({"what": lambda *, size: None, "name": "wrong"}, "correct its parameters"),
        ({"what": lambda module, size: None, "name": "wrong"}, "correct its parameters"),
        ({"what": maximum, "name": "wrong", "options": {"rows": 2}}, "'rows'"),
        ({"what": dict.fromkeys, "name": "wrong"}, "correct its parameters"),
    ],
)
def test_what_is_no_pass_is_refused(register, arguments, message):
    with pytest.raises(PassError, match=message):
        register(arguments.pop("what"), **arguments)

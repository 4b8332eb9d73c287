"""The text: golden files, names, and that nothing is written half."""

import pytest
from tvm import te

pytest.importorskip("xdsl", reason="xDSL is not installed: pip install 'tvm-ext[csl]'")

from csl_golden import CASES, GOLDEN, source
from csl_kernels import elementwise, machine, over_mesh
from xdsl.dialects import arith, csl
from xdsl.dialects.builtin import Float64Type, FloatAttr, ModuleOp

from tvm_ext.errors import OutputPathError
from tvm_ext.tir_schedules.analysis.affine import Affine
from tvm_ext.wafer.csl import CslError, kernel_code
from tvm_ext.wafer.csl.body import Body, Names
from tvm_ext.wafer.csl.code import csl_source
from tvm_ext.wafer.csl.kernel import Assignment, CslLoop, Load, Number, Operation, Tensor
from tvm_ext.wafer.csl.pe_program import csl_module
from tvm_ext.wafer.csl.work import has_vector_form


@pytest.mark.parametrize("name", CASES)
def test_golden_files(name):
    """After a change that is meant: python tests/tvm_ext/wafer/csl/csl_golden.py."""
    expected = {p.name: p.read_text(encoding="utf-8") for p in (GOLDEN / name).iterdir()}
    assert dict(source(name)) == expected


def program(*operations):
    body = Body()
    function = Body()
    for make in operations:
        make(function)
    function.add(csl.ReturnOp())
    from xdsl.ir import Region

    body.add(csl.FuncOp("compute", ([], None), Region(function.block)))
    return ModuleOp([csl_module("pe_program", csl.ModuleKind.PROGRAM, body)])


def test_what_the_printer_does_not_know_is_refused():
    def greatest(body):
        one = body.float(1.0, "float32")
        body.add(arith.MaximumfOp(one, one))

    with pytest.raises(CslError, match=r"does not know part of the program: '//unknown op") as info:
        csl_source(program(greatest))
    assert "\n" not in str(info.value)


def test_a_type_that_the_printer_does_not_know_is_refused():
    def wide(body):
        value = body.add(arith.ConstantOp(FloatAttr(1.0, Float64Type())))
        body.add(arith.TruncFOp(value, Float64Type()))

    with pytest.raises(CslError):
        csl_source(program(wide))


def test_an_invalid_program_is_refused():
    def mismatch(body):
        body.instruction("fadds", body.number(1), body.number(2))

    with pytest.raises(CslError, match="xDSL cannot print the program"):
        csl_source(program(mismatch))


def test_a_known_program_is_split_into_files():
    assert csl_source(program()) == {"pe_program.csl": "fn compute() void {\n  return;\n}\n"}


def test_names_are_unique_and_stay_as_they_are():
    """xDSL would make "param" of both "param_0" and "param_1"."""
    names = Names(["compute"])
    found = [
        names.unique(n) for n in ("param_0", "param_1", "compute", "a.b", "a.b", "3", "", "x1")
    ]
    assert found == ["param0", "param1", "compute2", "a_b", "a_b2", "t3", "t", "x1"]
    assert names.unique("x1") == "x1n2"


def test_keywords_as_names_of_tensors():
    x = te.placeholder((4, 4), "float32", "color")
    func = te.create_prim_func([x, te.compute((4, 4), lambda i, j: x[i, j] + x[i, j], name="y")])
    code = kernel_code(over_mesh(func, 2, 2), machine())
    text = code.files["pe_program.csl"]
    assert "var color :" not in text
    assert '"color");' in text
    assert code.shards[0].name == "color"


def test_what_depends_on_its_own_result_is_no_vector():
    tensor = Tensor(0, "y", "float32", (8,), True)
    here, before = (Load(tensor, (Affine(shift, {1: 1}),)) for shift in (1, 0))
    one = Number(1.0, "float32")

    class View:
        def offset(self, load):
            return load.indices[0]

    def assignment(source):
        value = Operation("add", (source, one), "float32")
        return Assignment("y", (CslLoop(1, 7),), here, value)

    assert has_vector_form(assignment(here), View())
    assert not has_vector_form(assignment(before), View())


def test_files_are_written_into_a_new_folder(tmp_path):
    code = kernel_code(over_mesh(elementwise(te.abs)), machine(), "magnitude")
    paths = code.write(tmp_path / "a" / "b")
    assert [path.name for path in paths] == ["pe_program.csl", "layout.csl"]
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert text == code.files[path.name]
        assert text.startswith("// Kernel magnitude on 3 rows and 4 columns of PEs.\n")
        assert "not compiled by the vendor's compiler" in text
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputPathError, match="cannot make the folder"):
        code.write(tmp_path / "file" / "b")


def test_the_name_of_a_kernel_stays_in_its_line():
    code = kernel_code(over_mesh(elementwise(te.abs)), machine(), "a\nfn b() void {")
    assert code.files["layout.csl"].startswith("// Kernel a?fn b() void { on 3 rows")

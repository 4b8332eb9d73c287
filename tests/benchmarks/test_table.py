"""Tables: ratios first, what is missing, what is wrong, and the means."""

import io

from results import CaseResult, KernelFigures, Measured, RooflineRow
from rich.console import Console
from table import kernels_table, models_table, reason_lines, roofline_table

TITLES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}


def text(renderable) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(renderable)
    return console.file.getvalue()


def cells(printed: str, first: str) -> list[str]:
    (line,) = [line for line in printed.splitlines() if line.startswith(f"│ {first} ")]
    return [cell.strip() for cell in line.strip("│").split("│")]


def results() -> list[CaseResult]:
    good = CaseResult(
        "good",
        "",
        {
            "tvm_ext": Measured(2.0, 0.05, 9, 1e-6),
            "onnxruntime": Measured(3.0, 0.0, 9, 0.0),
            "openvino": Measured(4.0, 0.0, 9, 0.7, wrong=True),
        },
    )
    other = CaseResult(
        "other",
        "",
        {"tvm_ext": Measured(1.0, 0.0, 9, 0.5, wrong=True), "onnxruntime": Measured(3.0, 0.0, 9)},
        {"openvino": "refuses the model: no"},
    )
    return [good, other]


def test_ratios_come_first_then_milliseconds():
    printed = text(models_table(results(), TITLES))
    assert cells(printed, "good") == [
        *("good", "1.50", "2.00 !", "1.50", "2.00", "3.00", "4.00", "5 %", "1e-06", "7e-01 !")
    ]


def test_what_is_missing_is_a_dash_and_what_is_wrong_is_marked():
    printed = text(models_table(results(), TITLES))
    assert cells(printed, "other") == [
        *("other", "3.00", "-", "-", "1.00", "3.00", "-", "0 %", "5e-01 !", "-")
    ]


def test_means_leave_out_wrong_answers():
    printed = text(models_table(results(), TITLES))
    assert cells(printed, "geometric mean")[1:4] == ["1.50", "-", "1.50"]


def test_the_better_peer_needs_both():
    assert "best" not in text(models_table(results(), {"onnxruntime": "ONNX Runtime"}))


def test_reasons_are_one_line_for_all_models_that_share_one():
    found = results()
    found[0].reasons["pytorch"] = found[1].reasons["pytorch"] = "not installed"
    titles = {**TITLES, "pytorch": "PyTorch"}
    assert reason_lines(found, titles) == [
        "PyTorch, all: not installed",
        "OpenVINO, good: ! differs by 0.7 from ONNX Runtime",
        "OpenVINO, other: refuses the model: no",
        "tvm-ext, other: ! differs by 0.5 from ONNX Runtime",
    ]
    assert "PyTorch, all: not installed" in text(models_table(found, titles))


def test_a_long_reason_is_cut():
    result = CaseResult("m", "", {}, {"tvm_ext": "x" * 1000})
    (line,) = reason_lines([result], TITLES)
    assert len(line) < 300
    assert line.endswith("...")


def test_kernels_show_the_rate_that_limits_them():
    programs = {"tvm_ext": Measured(500.0, 0.0, 9)}
    by_flops = CaseResult("f", "conv", programs, kernel=KernelFigures("flops", 4e9, 1e9, 0.5, 16.0))
    by_bytes = CaseResult("b", "conv", programs, kernel=KernelFigures("bytes", 4e9, 1e9, 0.5, 16.0))
    printed = text(kernels_table("conv", [by_flops, by_bytes], {"onnxruntime": "ONNX Runtime"}))
    assert cells(printed, "f")[2:5] == ["8 GFLOP/s", "50 %", "500"]
    assert cells(printed, "b")[2:5] == ["2.0 GB/s", "12 %", "500"]


def test_roofline_table_cuts_names_and_says_how_many_rows_it_hides():
    rows = [
        RooflineRow(f"kernel{i}" + "x" * 60, "register tile", ("n" * 90,), 2, 30.0, 20.0, 0.5, 1, 2)
        for i in range(23)
    ]
    printed = text(roofline_table(CaseResult("m", "", roofline=rows)))
    assert "3 more" in printed
    assert max(map(len, printed.splitlines())) <= 160
    row = cells(printed, "kernel0xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...")
    assert row[2:] == ["register tile", "2", "50.0 %", "30", "20", "1.5", "1.0", "2.0"]

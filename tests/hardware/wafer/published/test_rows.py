"""Tables of measurements and their units: what is read, what is refused, with the line."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.published.rows import MeasurementsError, parse_unit, read_rows

HEADER = "id,kernel,unit,M,parameters,clock_mhz,value"


def table(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join((header, *lines)) + "\n", encoding="utf-8")
    return path


def refused(folder: Path, *lines: str, header: str = HEADER) -> str:
    with pytest.raises(MeasurementsError) as caught:
        read_rows(table(folder, *lines, header=header))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_line_becomes_a_row(tmp_path):
    path = table(tmp_path, 'a,"GEMM, local",cycles,512,"{""S"": 8}",850 (not stated),1e3')
    (row,) = read_rows(path)
    assert (row.line, row.id, row.kernel, row.unit) == (2, "a", "GEMM, local", "cycles")
    assert (row.m, row.clock_mhz, row.value) == (512, 850.0, 1000.0)
    assert row.parameters == {"S": 8}


def test_what_is_empty_or_no_column_is_none(tmp_path):
    (row,) = read_rows(table(tmp_path, "a,k,cycles,,,,"))
    assert row.m is None
    assert row.value is None
    assert row.clock_mhz is None
    assert row.grid_rows is None
    assert row.parameters == {}


def test_whole_numbers_may_come_back_as_decimals_and_extra_columns_and_blank_lines_are_skipped(
    tmp_path,
):
    path = table(tmp_path, "a,k,cycles,512.0,x", "", ",,,,", header="id,kernel,unit,M,note")
    (row,) = read_rows(path)
    assert row.m == 512


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id,kernel,unit\na,k,cycles\n", encoding="utf-8-sig")
    assert read_rows(path)[0].id == "a"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("a,k,cycles,x,,,", "'M' is 'x'"),
        ("a,k,cycles,1.5,,,", "'M' is '1.5'"),
        ("a,k,cycles,0,,,", "'M' is '0'"),
        ("a,k,cycles,,,,nan", "'value' is 'nan'"),
        ("a,k,cycles,,,,-3", "'value' is '-3'"),
        ("a,k,cycles,,,fast,", "'clock_mhz' is 'fast'"),
        ("a,k,cycles,,[8],,", "'parameters' is '[8]'"),
        ("a,k,cycles,,{8,,", "'parameters' is '{8'"),
        ("a,k,cycles,", "4 cells; expected 7"),
        ("a,k,cycles,,,,,9", "8 cells; expected 7"),
        (",k,cycles,,,,", "'id' is empty"),
        ("a,,cycles,,,,", "'kernel' is empty"),
        ("a,k,,,,,", "'unit' is empty"),
    ],
)
def test_a_bad_cell_is_refused_with_its_line(tmp_path, line, found):
    message = refused(tmp_path, "a,k,cycles,,,,", line)
    assert message.startswith("line 3: ")
    assert found in message
    assert "expected" in message


def test_the_line_is_the_file_s_where_a_cell_has_several(tmp_path):
    message = refused(tmp_path, '"a\nb",k,cycles,,,,', "c,k,cycles,x,,,")
    assert message.startswith("line 4: ")


def test_quotes_that_do_not_end_are_refused(tmp_path):
    assert refused(tmp_path, '"a,k,cycles').startswith("line 2: ")


def test_a_table_without_a_column_it_needs_is_refused(tmp_path):
    message = refused(tmp_path, "a,k", header="id,kernel")
    assert "line 1: no column 'unit'" in message
    assert "line 1: column 'id' twice" in refused(tmp_path, header="id,kernel,unit,id")
    (tmp_path / "rows.csv").write_text("")
    with pytest.raises(MeasurementsError, match="line 1: no column 'id'"):
        read_rows(tmp_path / "rows.csv")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(MeasurementsError, match="No such file"):
        read_rows(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MeasurementsError, match="not UTF-8"):
        read_rows(tmp_path / "binary.csv")


@pytest.mark.parametrize(
    ("text", "cycles", "steps", "clock_mhz", "value"),
    [
        ("cycles", 500.0, 10, 850.0, 500.0),
        ("s", 850e6, 10, 850.0, 1.0),
        ("ms", 850e6, 10, 850.0, 1000.0),
        ("s per 1000 steps", 850e6, 1000, 850.0, 1.0),
        ("s per 100,000 steps", 850e6, 1000, 850.0, 100.0),
        ("cycles per step", 5000.0, 1000, 850.0, 5.0),
        ("cycles/iteration", 5000.0, 1000, 850.0, 5.0),
        ("s per 1000 time steps", 1.1e9, 500, 1100.0, 2.0),
    ],
)
def test_units(text, cycles, steps, clock_mhz, value):
    assert parse_unit(text).from_cycles(cycles, steps, clock_mhz) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["token/s per request", "s per V-cycle", "GB/s", "s per 0 steps", "per step", "scycles"]
)
def test_what_is_no_time_is_not_covered(text):
    with pytest.raises(NotApplicable, match="no time"):
        parse_unit(text)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["cycles", "s", "us per step", "s per 1000 steps"]),
    st.floats(1, 1e12),
    st.integers(1, 10**6),
    st.floats(1, 2000),
)
def test_conversion_goes_both_ways(text, cycles, steps, clock_mhz):
    unit = parse_unit(text)
    there = unit.from_cycles(cycles, steps, clock_mhz)
    assert unit.to_cycles(there, steps, clock_mhz) == pytest.approx(cycles)

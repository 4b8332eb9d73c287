"""Option values of the form name=value, summaries of arrays, and npz files."""

import math
from contextlib import suppress

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.cli.input_parsing import (
    parse_dimension_sizes,
    parse_input_shapes,
    parse_pass_config,
)
from tvm_ext.cli.tables import largest, summarise
from tvm_ext.errors import InputError


def test_input_shapes():
    assert parse_input_shapes(["x=1,3,224,224", "a=b=2", "s=", "/m/y:0= 4 , 5 "]) == {
        "x": (1, 3, 224, 224),
        "a=b": (2,),
        "s": (),
        "/m/y:0": (4, 5),
    }
    assert parse_input_shapes(["x=N,3,224:640,B:1:8,?"]) == {"x": ("N", 3, "224:640", "B:1:8", "?")}
    assert parse_input_shapes([]) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "=1",
        "x=1,",
        "x=,",
        "x=0",
        "x=1.5",
        "x=1x3",
        "x=1 3",
        "x=٣",
        "x=3:1",
        "x=1:2:3",
        "x=N:2",
    ],
)
def test_other_forms_of_a_shape_are_refused(text):
    with pytest.raises(InputError, match="expected"):
        parse_input_shapes([text])


@pytest.mark.slow
@given(st.lists(st.integers(1, 10**9)), st.text(min_size=1))
def test_every_shape_comes_back(shape, name):
    text = f"{name}={','.join(map(str, shape))}"
    assert parse_input_shapes([text]) == {name: tuple(shape)}


@given(st.text())
def test_any_text_is_parsed_or_refused(text):
    for parse in (parse_input_shapes, parse_pass_config, parse_dimension_sizes):
        with suppress(InputError):
            assert len(parse([text])) == 1


@pytest.mark.parametrize(
    ("value", "parsed"),
    [
        ("64", 64),
        ("-1.5e3", -1500.0),
        ("true", True),
        ('"4"', "4"),
        ("[1, 2]", [1, 2]),
        ("NHWC", "NHWC"),
        ("a=b", "a=b"),
        ("", ""),
        ("1\nother = 2", "1\nother = 2"),
    ],
)
def test_values_of_pass_options(value, parsed):
    assert parse_pass_config([f"My.Pass.limit={value}"]) == {"My.Pass": {"limit": parsed}}


def test_options_of_one_pass_come_together():
    texts = ["A.x=1", "B.x=2", "A.y=3"]
    assert parse_pass_config(texts) == {"A": {"x": 1, "y": 3}, "B": {"x": 2}}
    with pytest.raises(InputError, match="given twice"):
        parse_pass_config(["A.x=1", "A.x=1"])


@pytest.mark.parametrize("text", ["", "A", "A.x", "A=1", ".x=1", "A.=1"])
def test_other_forms_of_a_pass_option_are_refused(text):
    with pytest.raises(InputError, match=r"is not PASS\.OPTION=VALUE"):
        parse_pass_config([text])


def test_summary_is_of_the_finite_values():
    array = np.array([[1, np.nan, -3], [np.inf, 5, 0]], np.float16)
    summary = summarise(array)
    assert (summary["min"], summary["mean"], summary["max"]) == (-3, 0.75, 5)
    assert summary["non_finite"] == 2
    nothing = summarise(np.zeros((0, 2), np.int64), top=3)
    assert nothing["min"] is None
    assert nothing["top"] == []


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint64, ml_dtypes.bfloat16])
def test_summary_of_other_types(dtype):
    summary = summarise(np.array([0, 1, 1, 0]).astype(dtype), top=1)
    assert (summary["min"], summary["mean"], summary["max"]) == (0, 0.5, 1)
    assert summary["top"] == [{"index": [1], "value": 1}]


def test_largest_values_in_order_with_nan_last():
    values = np.array([[2.0, np.nan], [math.inf, 2.0]])
    assert [index for index, _ in largest(values, 4)] == [(1, 0), (0, 0), (1, 1), (0, 1)]
    assert largest(np.array(7.0), 2) == [((), 7.0)]

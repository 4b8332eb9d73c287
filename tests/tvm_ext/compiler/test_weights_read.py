"""Bytes of weights that every run reads whole."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import model, node, rand, value
from unoptimised import HOST

import tvm_ext


def read(made: onnx.ModelProto, opt_level: str = "O0") -> int | None:
    compiled = tvm_ext.compile(made, HOST, opt_level=opt_level)
    return compiled.report.memory.weights_read_bytes


def test_weights_of_a_product_are_read():
    made = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", ["N", 64])],
        [value("y", ["N", 32])],
        w=rand(64, 32),
    )
    assert [read(made, level) for level in ("O0", "O3")] == [64 * 32 * 4] * 2


@pytest.mark.slow
def test_a_table_of_rows_is_not_but_where_a_product_reads_it_too():
    table = rand(100, 8)
    ids = value("ids", ["N"], TensorProto.INT64)
    lookup = node("Gather", ["table", "ids"], ["rows"])
    rows = value("rows", ["N", 8])
    # What is left is the number of rows, which is added to a negative one.
    assert read(model([lookup], [ids], [rows], table=table)) == 8
    product = node("MatMul", ["rows", "w"], ["y"])
    both = model([lookup, product], [ids], [value("y", ["N", 8])], table=table, w=rand(8, 8))
    assert read(both) == 8 + 8 * 8 * 4
    again = node("MatMul", ["x", "table"], ["z"])
    inputs, outputs = [ids, value("x", ["M", 100])], [rows, value("z", ["M", 8])]
    assert read(model([lookup, again], inputs, outputs, table=table)) == 8 + 100 * 8 * 4


@pytest.mark.extended
def test_of_branches_the_one_that_reads_less_counts():
    def branch(name: str, weights: str) -> onnx.GraphProto:
        return helper.make_graph(
            [node("MatMul", ["x", weights], [name])], name, [], [value(name, None)]
        )

    choice = node(
        "If", ["c"], ["y"], then_branch=branch("t", "large"), else_branch=branch("e", "small")
    )
    made = model(
        [choice, node("MatMul", ["x", "outside"], ["z"])],
        [value("c", [], TensorProto.BOOL), value("x", ["N", 64])],
        [value("y", None), value("z", ["N", 16])],
        large=rand(64, 32),
        small=np.ones((64, 4), np.float32),
        outside=rand(64, 16),
    )
    assert read(made) == 64 * (4 + 16) * 4


@pytest.mark.extended
def test_it_is_saved_with_the_report(tmp_path):
    made = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", ["N", 8])],
        [value("y", ["N", 8])],
        w=rand(8, 8),
    )
    compiled = tvm_ext.compile(made, HOST, opt_level="O0")
    compiled.save(tmp_path / "m.tvmx")
    assert tvm_ext.load(tmp_path / "m.tvmx").report.memory.weights_read_bytes == 256

"""Matmuls that widen weights of a few bits, against NumPy; for known rows and those of a run."""

import numpy as np
import pytest
from combinations import pairwise
from onnx import TensorProto, helper, numpy_helper
from unoptimised import HOST

import tvm_ext

RANDOM = np.random.default_rng(0)


class Weights:
    """Integers, scales and zero points of ``[columns, depth]``, and their floats."""

    def __init__(self, columns, depth, block, bits, has_zeros):
        blocks = depth // block
        self.attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block}
        numbers = RANDOM.integers(0, 1 << bits, (columns, blocks, block))
        self.scales = RANDOM.uniform(0.01, 0.02, (columns, blocks)).astype("float32")
        self.packed = joined(numbers, bits)
        zeros = np.full((columns, blocks), 1 << (bits - 1))
        self.zeros = None
        if has_zeros:
            zeros = RANDOM.integers(0, 1 << bits, zeros.shape)
            padding = -blocks % (8 // bits)
            self.zeros = joined(np.pad(zeros, ((0, 0), (0, padding))), bits)
        floats = (numbers - zeros[..., None]) * self.scales[..., None]
        self.floats = floats.reshape(columns, depth).astype("float32")

    def model(self, rows, after=()):
        """``MatMulNBits`` of ``x[rows, depth]``, and operators of one operand behind it."""
        arrays = {"w": self.packed, "s": self.scales}
        arrays |= {} if self.zeros is None else {"z": self.zeros}
        names = ["y0", *(f"y{n + 1}" for n in range(len(after)))]
        nodes = [
            helper.make_node(
                "MatMulNBits", ["x", *arrays], ["y0"], domain="com.microsoft", **self.attributes
            ),
            *(helper.make_node(op, [names[n]], [names[n + 1]]) for n, op in enumerate(after)),
        ]
        depth, columns = self.attributes["K"], self.attributes["N"]
        graph = helper.make_graph(
            nodes,
            "small",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, depth])],
            [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, [rows, columns])],
            [numpy_helper.from_array(array, name) for name, array in arrays.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def joined(numbers, bits):
    in_byte = 8 // bits
    cut = numbers.reshape(*numbers.shape[:-1], -1, in_byte) << (np.arange(in_byte) * bits)
    return cut.sum(-1).astype("uint8")


def check(compiled, weights, rows, change=lambda y: y):
    x = RANDOM.standard_normal((rows, weights.floats.shape[1])).astype("float32")
    (found,) = compiled.run({"x": x}).values()
    wanted = change(x @ weights.floats.T)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


def only_schedule(compiled):
    (record,) = {record.schedule for record in compiled.report.kernels}
    return record


@pytest.mark.extended
@pairwise(has_zeros=[False, True], bits=[2, 4, 8])
def test_rows_of_the_run(bits, has_zeros):
    weights = Weights(40, 192, 32, bits, has_zeros)
    compiled = tvm_ext.compile(weights.model("rows"), HOST, threads=2)
    assert only_schedule(compiled) == "dequantize matmul"
    for rows in (1, 2, 3, 5, 8, 9, 16, 17, 33):
        check(compiled, weights, rows)


@pytest.mark.extended
@pairwise(rows=[1, 2, 7, 16, 21, 64], columns=[1, 16, 130])
def test_known_rows(rows, columns):
    weights = Weights(columns, 128, 64, 4, has_zeros=True)
    compiled = tvm_ext.compile(weights.model(rows), HOST, threads=2)
    if columns > 1:
        assert only_schedule(compiled) == "dequantize matmul"
    check(compiled, weights, rows)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, "rows"])
def test_what_follows_is_part_of_the_kernel(rows):
    weights = Weights(48, 64, 16, 4, has_zeros=False)
    compiled = tvm_ext.compile(weights.model(rows, ["Relu", "Neg"]), HOST, threads=2)
    assert [record.schedule for record in compiled.report.kernels] == ["dequantize matmul"]
    check(compiled, weights, 1, lambda y: -np.maximum(y, 0))


@pytest.mark.parametrize("block", [16, 256])
def test_saved_weights_take_their_bits(block, tmp_path):
    weights = Weights(256, 1024, block, 4, has_zeros=False)
    tvm_ext.compile(weights.model(1)).save(tmp_path / "model.tvmx")
    packed = weights.packed.nbytes + weights.scales.nbytes
    empty = Weights(16, 256, 256, 4, has_zeros=False)
    tvm_ext.compile(empty.model(1)).save(tmp_path / "empty.tvmx")
    code = (tmp_path / "empty.tvmx").stat().st_size
    assert (tmp_path / "model.tvmx").stat().st_size < 1.05 * packed + code


@pytest.mark.slow
@pytest.mark.parametrize("target", ["avx2", "avx512", "aarch64-neon"])
def test_kernels_for_other_processors(target):
    compiled = tvm_ext.compile(Weights(48, 64, 32, 4, True).model("rows"), target=target)
    assert only_schedule(compiled) == "dequantize matmul"

"""Products with few rows, beside ONNX Runtime and the time that their weights take to be read.

Each case is a model of several products with weights of their own, so that they are read from
memory as in a network. Rows are open, with one program for all of them, or with --fixed known.
Programs take turns in one process. With one thread the time is that of the processor, so that
other programs on the same core do not count.

    python benchmarks/few_rows.py
    python benchmarks/few_rows.py --storages float32 int4 --sizes 576x49152 --rows 1 --threads 2
"""

import argparse
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cpu.measured_peaks import fma_peak, read_peak
from tvm_ext.hardware.timing import interleaved_milliseconds, timed

_SIZES = ("576x576", "576x1536", "1536x576", "576x49152", "2048x2048")
_ROWS = (1, 2, 4, 8, 16, 128, 512)
_TURNS = 30

# Of weights in a model: more than the caches hold of most machines, and no more products.
_BYTES, _MOST_PRODUCTS = 64e6, 24

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Storage:
    """How weights are stored: ``bits`` each, and a scale for ``block`` of them, 0 for none.

    ``is_dynamic``: the other operand is rounded in the run. ``is_given``: the run gives them.
    """

    name: str
    bits: int
    block: int = 0
    is_dynamic: bool = False
    is_given: bool = False

    def nbytes(self, depth: int, columns: int) -> float:
        """Of the weights of a product, with their scales."""
        scales = 4 * columns * math.ceil(depth / self.block) if self.block else 0
        return depth * columns * self.bits / 8 + scales


STORAGES = {
    storage.name: storage
    for storage in (
        Storage("float32", 32),
        Storage("given", 32, is_given=True),
        Storage("float16", 16),
        # Activations are rounded to 8 bits in the run.
        Storage("int8", 8, is_dynamic=True),
        # DequantizeLinear of the weights alone, with a scale for each column.
        Storage("qdq8", 8),
        *(Storage(f"int4-{block}", 4, block) for block in (32, 64, 128)),
        Storage("int8-32", 8, 32),
    )
}


class ProductModel:
    """``count`` products of inputs ``x0``, ``x1`` and so on with weights of their own.

    Parameters
    ----------
    storage : Storage
        Of the weights.
    depth, columns : int
        Their sizes.
    rows : int or str
        Of the inputs; a name for those that each run decides.
    count : int
        Products.
    """

    def __init__(
        self, storage: Storage, depth: int, columns: int, rows: int | str, count: int
    ) -> None:
        self.storage = storage
        self.sizes = depth, columns
        self.count = count
        self._random = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._arrays: list[onnx.TensorProto] = []
        self._given: Arrays = {}
        for number in range(count):
            self._add(number)
        kind = TensorProto.FLOAT16 if storage.bits == 16 else TensorProto.FLOAT
        self._dtype = helper.tensor_dtype_to_np_dtype(kind)
        ends = [
            [helper.make_tensor_value_info(f"{name}{n}", kind, [rows, size]) for n in range(count)]
            for name, size in (("x", depth), ("y", columns))
        ]
        if storage.is_given:
            given = (f"w{number}" for number in range(count))
            ends[0] += [helper.make_tensor_value_info(w, kind, self.sizes) for w in given]
        graph = helper.make_graph(self._nodes, "products", *ends, self._arrays)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        self.proto = helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def inputs(self, rows: int) -> Arrays:
        """Random numbers for all inputs."""
        shape = rows, self.sizes[0]
        numbers = (self._random.standard_normal(shape) for _ in range(self.count))
        made = {f"x{n}": each.astype(self._dtype) for n, each in enumerate(numbers)}
        return made | self._given

    def _stored(self, name: str, array: np.ndarray) -> str:
        self._arrays.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def _node(self, op: str, inputs: list[str], outputs: list[str], **attributes: object) -> None:
        self._nodes.append(helper.make_node(op, inputs, outputs, **attributes))

    def _add(self, n: int) -> None:
        depth, columns = self.sizes
        storage, x, y = self.storage, f"x{n}", f"y{n}"
        if storage.bits > 8:
            weights = self._random.standard_normal((depth, columns), np.float32) / 16
            weights = weights.astype(f"float{storage.bits}")
            if storage.is_given:
                self._given[f"w{n}"] = weights
            else:
                self._stored(f"w{n}", weights)
            self._node("MatMul", [x, f"w{n}"], [y])
        elif storage.block:
            blocks = math.ceil(depth / storage.block)
            packed = (columns, blocks, storage.block * storage.bits // 8)
            words = self._stored(f"w{n}", self._random.integers(0, 256, packed, np.uint8))
            scales = self._random.uniform(0.001, 0.01, columns * blocks).astype(np.float32)
            sizes = {"K": depth, "N": columns, "bits": storage.bits, "block_size": storage.block}
            operands = [x, words, self._stored(f"s{n}", scales)]
            self._node("MatMulNBits", operands, [y], domain="com.microsoft", **sizes)
        else:
            weights = self._random.integers(-127, 128, (depth, columns), np.int8)
            self._integers(n, self._stored(f"w{n}", weights))

    def _integers(self, n: int, weights: str) -> None:
        x, y = f"x{n}", f"y{n}"
        if not self.storage.is_dynamic:
            scales = np.full(self.sizes[1], 0.0005, np.float32)
            self._node(
                "DequantizeLinear", [weights, self._stored(f"s{n}", scales)], [f"d{n}"], axis=1
            )
            self._node("MatMul", [x, f"d{n}"], [y])
            return
        quantized, scale, zero = made = [f"q{n}", f"qs{n}", f"qz{n}"]
        self._node("DynamicQuantizeLinear", [x], made)
        self._node("MatMulInteger", [quantized, weights, zero], [f"i{n}"])
        self._node("Cast", [f"i{n}"], [f"f{n}"], to=TensorProto.FLOAT)
        of_weights = self._stored(f"s{n}", np.array(0.0005, np.float32))
        self._node("Mul", [scale, of_weights], [f"m{n}"])
        self._node("Mul", [f"f{n}", f"m{n}"], [y])


@dataclass(frozen=True)
class Peaks:
    """1e9 bytes read, and 1e9 operations of float32, a second, that this machine reaches."""

    gbs: float
    gflops: float

    @classmethod
    def measured(cls, threads: int) -> "Peaks":
        """The best of some calls."""
        machine = host_description().with_cores(threads)
        rates = [
            peak.rate(min(timed(peak.run)() for _ in range(10)))
            for peak in (read_peak(machine), fma_peak(machine))
        ]
        return cls(*rates)


def _seconds_in_turns(programs: list[partial[Any]]) -> list[float]:
    """Median seconds of a call, on one thread, of the processor's time."""
    taken: list[list[float]] = [[] for _ in programs]
    for _ in range(_TURNS):
        for program, own in zip(programs, taken, strict=True):
            begun = time.thread_time()
            program()
            own.append(time.thread_time() - begun)
    return [statistics.median(own) for own in taken]


def _measure(model: ProductModel, every: list[int], threads: int, peaks: Peaks) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.proto.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    ours = tvm_ext.compile(model.proto, threads=threads)
    depth, columns = model.sizes
    nbytes = model.storage.nbytes(depth, columns)
    for rows in every:
        inputs: Mapping[str, np.ndarray] = model.inputs(rows)
        found, wanted = list(ours.run(inputs).values()), session.run(None, inputs)
        difference = max(
            float(np.abs(one - other).max() / np.abs(other).max())
            for one, other in zip(found, wanted, strict=True)
        )
        programs: list[partial[Any]] = [
            partial(ours.run, inputs),
            partial(session.run, None, inputs),
        ]
        if threads == 1:
            seconds = _seconds_in_turns(programs)
        else:
            seconds = [each / 1e3 for each in interleaved_milliseconds(*programs)]
        own, theirs = (each / model.count for each in seconds)
        reading = nbytes / peaks.gbs / 1e9
        floor = max(reading, 2 * rows * depth * columns / peaks.gflops / 1e9)
        print(
            f"| {model.storage.name} | {depth}x{columns} | {rows} | {1e6 * own:.0f} "
            f"| {theirs / own:.2f} | {nbytes / own / 1e9:.1f} | {floor / own:.2f} "
            f"| {difference:.0e} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--storages", nargs="+", choices=STORAGES, default=list(STORAGES))
    parser.add_argument("--sizes", nargs="+", default=_SIZES, help="of weights, such as 576x1536")
    parser.add_argument("--rows", nargs="+", type=int, default=_ROWS)
    parser.add_argument("--fixed", action="store_true", help="a program for each number of rows")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    peaks = Peaks.measured(given.threads)
    print(f"Read: {peaks.gbs:.1f} GB/s, multiply-adds of float32: {peaks.gflops:.0f} GFLOP/s\n")
    print("| weights | size | rows | us | ONNX Runtime / ours | GB/s | floor / ours | difference |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in given.storages:
        for size in given.sizes:
            depth, columns = (int(part) for part in size.split("x"))
            count = int(_BYTES / STORAGES[name].nbytes(depth, columns))
            sizes = STORAGES[name], depth, columns
            count = max(1, min(_MOST_PRODUCTS, count))
            if not given.fixed:
                model = ProductModel(*sizes, "rows", count)
                _measure(model, given.rows, given.threads, peaks)
                continue
            for rows in given.rows:
                _measure(ProductModel(*sizes, rows, count), [rows], given.threads, peaks)


if __name__ == "__main__":
    main()

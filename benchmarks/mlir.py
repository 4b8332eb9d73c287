"""What MLIR's fusion and memory passes do to graphs, and how fast its code is beside ours.

For a MobileNet-like, a ResNet-like and a transformer block: operations of linalg and arrays before
and after, beside the kernels and the arena of our own program. For a chain of elementwise
operations: the time of MLIR's code without fusion and with it, and of our kernel, on one thread.
Both are measured in turns within this process. It needs the extra "mlir".

With models, each of their kernels is timed with our code and with MLIR's, on one thread: MLIR's is
made from our scheduled loops, and from linalg, fused and tiled. "Best" takes the fastest of them
for each kernel, ours where no other is 5 % faster in two measurements, and each kernel counts once.
"From loops" and "From linalg" are the kernels for which MLIR's code is the fastest. Times are the
processor's.

    python benchmarks/mlir.py                    # both tables
    python benchmarks/mlir.py --chain 8 --mib 16 --rounds 20
    python benchmarks/mlir.py a.onnx b.onnx      # our code alone beside the best of both
"""

import argparse
import contextlib
import functools
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

import tvm_ext
from tvm_ext.hardware.timing import interleaved_seconds, timed
from tvm_ext.mlir import require_mlir

if TYPE_CHECKING:
    from tvm_ext.hardware.machine import MachineDescription
    from tvm_ext.mlir.from_relax import ConvertedGraph
    from tvm_ext.mlir.model_kernels import ModelKernel

Times: TypeAlias = dict[str, float]
Timer: TypeAlias = Callable[[], float]

_LOG_WIDTH = 120
_RANDOM = np.random.default_rng(0)


def _model(
    nodes: Sequence[onnx.NodeProto], shapes: Sequence[Sequence[int]], **weights: np.ndarray
) -> onnx.ModelProto:
    """A model from ``x`` to ``y``, of these shapes."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in zip("xy", shapes, strict=True)
    ]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(list(nodes), "block", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def _weights(*shape: int) -> np.ndarray:
    fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
    return (_RANDOM.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)


def _constant(value: float) -> np.ndarray:
    return np.asarray(value, np.float32)


def mobilenet_block() -> onnx.ModelProto:
    """Expansion, depthwise convolution and projection, with two hard swishes and a skip."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"]),
        node("HardSwish", ["a"], ["b"]),
        node("Conv", ["b", "w2", "b2"], ["c"], pads=[1, 1, 1, 1], group=96),
        node("HardSwish", ["c"], ["d"]),
        node("Conv", ["d", "w3", "b3"], ["e"]),
        node("Add", ["e", "x"], ["y"]),
    ]
    weights = {
        "w1": _weights(96, 24, 1, 1),
        "b1": _weights(96),
        "w2": _weights(96, 1, 3, 3),
        "b2": _weights(96),
        "w3": _weights(24, 96, 1, 1),
        "b3": _weights(24),
    }
    return _model(nodes, [[1, 24, 28, 28]] * 2, **weights)


def resnet_block() -> onnx.ModelProto:
    """Two convolutions of 3 by 3 with ReLU, and a skip."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w2", "b2"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["c", "x"], ["d"]),
        node("Relu", ["d"], ["y"]),
    ]
    weights = {
        "w1": _weights(64, 64, 3, 3),
        "b1": _weights(64),
        "w2": _weights(64, 64, 3, 3),
        "b2": _weights(64),
    }
    return _model(nodes, [[1, 64, 28, 28]] * 2, **weights)


def transformer_block() -> onnx.ModelProto:
    """Attention of one head and a feed-forward layer, each with a skip and a normalisation."""
    node = helper.make_node
    nodes = [
        *(node("MatMul", ["x", f"w{one}"], [one]) for one in "qkv"),
        node("Transpose", ["k"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Mul", ["s", "scale"], ["scaled"]),
        node("Softmax", ["scaled"], ["p"]),
        node("MatMul", ["p", "v"], ["o"]),
        node("Add", ["o", "x"], ["r"]),
        node("LayerNormalization", ["r", "g1", "n1"], ["h"]),
        node("MatMul", ["h", "up"], ["u"]),
        node("Add", ["u", "bu"], ["ub"]),
        node("Relu", ["ub"], ["ur"]),
        node("MatMul", ["ur", "down"], ["d"]),
        node("Add", ["d", "h"], ["z"]),
        node("LayerNormalization", ["z", "g2", "n2"], ["y"]),
    ]
    weights = {f"w{one}": _weights(64, 64) for one in "qkv"}
    weights |= {"up": _weights(64, 256), "bu": _weights(256), "down": _weights(256, 64)}
    weights |= {name: _weights(64) for name in ("g1", "n1", "g2", "n2")}
    return _model(nodes, [[1, 128, 64]] * 2, scale=_constant(0.125), **weights)


BLOCKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "MobileNet-like": mobilenet_block,
    "ResNet-like": resnet_block,
    "transformer": transformer_block,
}


def elementwise_chain(operators: int, mib: int) -> onnx.ModelProto:
    """Operators one after the other, each on a tensor of this size: sums, products and ReLUs."""
    node = helper.make_node
    kinds: tuple[tuple[str, list[str]], ...] = (
        ("Mul", ["by"]),
        ("Add", ["and"]),
        ("Relu", []),
        ("Sub", ["by"]),
    )
    names = ["x", *(f"v{n}" for n in range(operators - 1)), "y"]
    nodes = [
        node(kinds[n % 4][0], [names[n], *kinds[n % 4][1]], [names[n + 1]])
        for n in range(operators)
    ]
    shape = [mib * 256, 1024]
    # The second operands are rows, which no pass of the graph can fold into each other.
    rows = {"by": _weights(1, 1024), "and": _weights(1, 1024)}
    return _model(nodes, [shape, shape], **rows)


def _graph(source: onnx.ModelProto) -> "ConvertedGraph":
    """The graph as it is imported: the operators of the model, in its own layouts."""
    from tvm_ext.mlir.from_relax import convert_graph
    from tvm_ext.mlir.model_kernels import KernelsRequest, model_graph

    return convert_graph(model_graph(source, KernelsRequest(opt_level="O1")).mod)


def _mib(nbytes: float) -> str:
    return f"{nbytes / 2**20:.2f}"


def blocks_table() -> Table:
    """Operations and memory of each block: without optimisation, with it, and ours."""
    from tvm_ext.mlir.linalg_fusion import linalg_operations
    from tvm_ext.mlir.lowering import GRAPH_STAGES, UNOPTIMIZED_STAGES, lower_to
    from tvm_ext.mlir.memory_optimization import memory_of, optimize_memory

    table = Table("Block", "How", title="Operations of linalg, and arrays of a run (MiB)")
    for column in ("Operations", "Arrays", "MiB", "Stack MiB"):
        table.add_column(column, justify="right")
    for name, make in BLOCKS.items():
        ways = (("as written", UNOPTIMIZED_STAGES, False), ("fused, in place", GRAPH_STAGES, False))
        for way, stages, shares in (*ways, ("with reuse", GRAPH_STAGES, True)):
            graph = _graph(make())
            lower_to(graph.module, "bufferized", stages)
            if shares:
                optimize_memory(graph.module)
            found = memory_of(graph.module)
            count = len(linalg_operations(graph.module))
            sizes = (_mib(found.bytes), _mib(found.stack_bytes))
            table.add_row(name, f"MLIR, {way}", str(count), str(found.buffers), *sizes)
        report = tvm_ext.compile(make()).report
        memory = report.memory
        table.add_row(
            name,
            "ours",
            f"{len(report.kernels)} kernels",
            "1",
            _mib(memory.planned_peak_bytes or 0),
        )
    return table


def chain_table(operators: int, mib: int, rounds: int) -> Table:
    """Times of the chain on one thread."""
    from tvm_ext.mlir.execution import CompiledGraph
    from tvm_ext.mlir.lowering import UNFUSED_STAGES

    source = elementwise_chain(operators, mib)
    x = _RANDOM.standard_normal((mib * 256, 1024)).astype(np.float32)
    unfused = CompiledGraph(_graph(source), UNFUSED_STAGES)
    fused = CompiledGraph(_graph(source))
    ours = tvm_ext.compile(source)
    results = [np.empty_like(x) for _ in range(3)]
    bound = ours.io_binding({"x": x}, {"y": results[2]})
    programs: dict[str, Callable[[], object]] = {
        "MLIR, an operation each": lambda: unfused.run_into([x], results[:1]),
        "MLIR, fused": lambda: fused.run_into([x], results[1:2]),
        "our kernel": bound.run,
    }
    for program in programs.values():
        program()
    for result in results[:2]:
        np.testing.assert_allclose(result, results[2], rtol=1e-4, atol=1e-5)
    timers = [timed(program) for program in programs.values()]
    taken = interleaved_seconds(timers, seconds=rounds * 0.3, rounds=rounds)
    medians = [statistics.median(one) for one in taken]
    title = f"{operators} elementwise operators on {mib} MiB, one thread, {rounds} rounds in turns"
    table = Table("Code", title=title)
    for column in ("ms", "Of the unfused", "Of ours"):
        table.add_column(column, justify="right")
    for name, own in zip(programs, medians, strict=True):
        shares = (f"{own / base:.2f}" for base in (medians[0], medians[2]))
        table.add_row(name, f"{own * 1e3:.2f}", *shares)
    return table


# What generates a kernel's code.
_OURS, _LOOPS, _LINALG = "ours", "MLIR, from our loops", "MLIR, from linalg"

# Code that is not faster by this share is not called faster: two builds of one kernel differ by it.
_NOISE = 0.05
_TURNS = 5
# A short kernel is called in a row that takes about as long.
_ROW_SECONDS = 2e-4


@dataclass(frozen=True)
class KernelTimes:
    """Seconds of a call of a kernel, by what generated its code."""

    name: str
    seconds: Times

    @property
    def best(self) -> str:
        """The generator whose code is the fastest, ours where no other is clearly faster."""
        found = min(self.seconds, key=self.seconds.__getitem__)
        is_clear = self.seconds[found] < (1 - _NOISE) * self.seconds[_OURS]
        return found if is_clear else _OURS

    @property
    def gain(self) -> float:
        """Seconds that the best saves."""
        return self.seconds[_OURS] - self.seconds[self.best]

    def __str__(self) -> str:
        """The kernel, and how much faster the best is."""
        ratio = self.seconds[_OURS] / self.seconds[self.best]
        return f"{self.name}, {self.best}: {ratio:.2f}x of {self.seconds[_OURS] * 1e6:.0f} us"


def models_table(paths: Sequence[str], seconds: float, console: Console) -> Table:
    """Of each model the time of all kernels with our code, and with the best for each.

    What is gained most in a model is printed as soon as it is measured.
    """
    title = "Kernels of models on one thread, each once (ms of the processor)"
    table = Table("Model", title=title)
    for column in ("Kernels", "Ours", "Best", "Share", "From loops", "From linalg"):
        table.add_column(column, justify="right")
    for path in paths:
        name, times = measured_kernels(path, seconds)
        ours = sum(one.seconds[_OURS] for one in times)
        best = sum(one.seconds[one.best] for one in times)
        wins = Counter(one.best for one in times)
        row = (str(len(times)), f"{ours * 1e3:.3f}", f"{best * 1e3:.3f}")
        share = f"{best / ours:.3f}" if ours else "-"
        table.add_row(name, *row, share, str(wins[_LOOPS]), str(wins[_LINALG]))
        console.print(name, *row, share, wins[_LOOPS], wins[_LINALG])
        for one in sorted(times, key=lambda one: -one.gain)[:_SHOWN]:
            console.print(f"    {one}", soft_wrap=True, highlight=False)
    return table


_SHOWN = 3


def measured_kernels(path: str, seconds: float) -> tuple[str, list[KernelTimes]]:
    """The model's name, and the times of its kernels that can be run by themselves.

    Kernels that share their code count once.
    """
    from tvm_ext.mlir.model_kernels import KernelsRequest, model_kernels

    found = model_kernels(path, KernelsRequest(), with_schedules=True)
    kernels = {one.code: one for one in found.kernels}.values()
    measured = (_measured(one, found.machine, seconds) for one in kernels)
    return found.model, [one for one in measured if one is not None]


def _measured(
    kernel: "ModelKernel", machine: "MachineDescription", seconds: float
) -> KernelTimes | None:
    """Times of one kernel; None where it cannot be run by itself."""
    timers = _timers(kernel, machine)
    if timers is None:
        return None
    found = KernelTimes(kernel.name, _medians(timers, seconds))
    # The fastest of three is often fastest by chance: a win counts if it comes again.
    return found if found.best == _OURS else KernelTimes(kernel.name, _medians(timers, 2 * seconds))


def _medians(timers: Mapping[str, tuple[Timer, int]], seconds: float) -> Times:
    rows = [row for row, _ in timers.values()]
    taken = interleaved_seconds(rows, seconds=seconds, rounds=_TURNS, settle=0.0)
    counts = [count for _, count in timers.values()]
    medians = [statistics.median(one) / n for one, n in zip(taken, counts, strict=True)]
    return dict(zip(timers, medians, strict=True))


def _timers(
    kernel: "ModelKernel", machine: "MachineDescription"
) -> dict[str, tuple[Timer, int]] | None:
    """What times calls in a row of one kernel and their number, by generator."""
    import tvm

    from tvm_ext.mlir.compare_kernels import tvm_code
    from tvm_ext.mlir.random_arguments import random_arguments

    if kernel.scheduled is None or kernel.arguments is None:
        return None
    drawn = random_arguments(kernel.func, kernel.arguments, 0)
    packed = list(drawn)
    if kernel.packed is not None:
        place = kernel.packed.parameter
        packed[place] = kernel.packed.pack(np.asarray(drawn[place]))
    codes = _codes(kernel, machine)
    symbols = {name: f"kernel{number}" for number, name in enumerate(codes)}
    library = tvm_code({symbols[name]: func for name, func in codes.items()}, machine)
    timers = {}
    for name in codes:
        given = drawn if name == _LINALG else packed
        tensors = [
            tvm.runtime.tensor(one) if isinstance(one, np.ndarray) else int(one) for one in given
        ]
        row, count = _in_a_row(functools.partial(library[symbols[name]], *tensors))
        timers[name] = timed(row, time.thread_time), count
    return timers


def _in_a_row(call: Callable[[], object]) -> tuple[Callable[[], None], int]:
    """Calls one after the other that take long beside a look at the clock, and their number."""
    call()
    once = timed(call, time.thread_time)()
    count = max(1, math.ceil(_ROW_SECONDS / max(once, 1e-7)))

    def row() -> None:
        for _ in range(count):
            call()

    return row, count


def _codes(kernel: "ModelKernel", machine: "MachineDescription") -> dict[str, Any]:
    """The kernel by each generator that takes it."""
    from tvm_ext.configs.errors import NotApplicable
    from tvm_ext.mlir.code_generation import with_kept_code, with_mlir_code
    from tvm_ext.mlir.kept_modules import with_optimized_module

    def from_linalg() -> Any:
        kept = with_optimized_module(kernel.func, machine, fuses=True, shares=True)
        return with_kept_code(kept, kernel.name)

    found = {_OURS: kernel.scheduled}
    ways: dict[str, Callable[[], Any]] = {
        _LOOPS: lambda: with_mlir_code(kernel.scheduled, kernel.name, machine),
        _LINALG: from_linalg,
    }
    for name, way in ways.items():
        with contextlib.suppress(NotApplicable):
            found[name] = way()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("models", nargs="*", help="ONNX models whose kernels are timed")
    parser.add_argument("--seconds", type=float, default=0.3, help="for each kernel of a model")
    parser.add_argument("--chain", type=int, default=8, help="operators of the chain")
    parser.add_argument("--mib", type=int, default=16, help="size of its tensors")
    parser.add_argument("--rounds", type=int, default=20, help="measurements of each")
    options = parser.parse_args(arguments)
    require_mlir()
    # MLIR's code has one thread.
    os.environ["TVM_NUM_THREADS"] = "1"
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    if options.models:
        console.print(models_table(options.models, options.seconds, console))
        return 0
    console.print(blocks_table())
    console.print(chain_table(options.chain, options.mib, options.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Attention alone in float32, beside ONNX Runtime, OpenVINO and ours with the pass off.

The graph is what exporters write: queries times transposed keys, a scale, a softmax, times the
values; with --causal a mask is added to the scores. All programs take turns in one process. On one
thread the time is that of the processor, so that other programs on the same core do not count.

    python benchmarks/attention.py
    python benchmarks/attention.py --lengths 2048 --threads 2 --causal
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from peers import Job, OnnxRuntime, OpenVino, Ours, Peer, PeerError, Program

from tvm_ext.hardware.timing import interleaved_seconds, timed
from tvm_ext.report.units import format_bytes

_WITHOUT = Ours("off", "AttentionFusion off", ("AttentionFusion",))
PEERS: tuple[Peer, ...] = (Ours(), OnnxRuntime(), OpenVino(), _WITHOUT)


def attention_model(heads: int, depth: int, length: int, *, is_causal: bool) -> onnx.ModelProto:
    """Attention of one sequence, with as many queries as keys."""
    shape = [1, heads, length, depth]
    arrays = [numpy_helper.from_array(np.float32(depth**-0.5), "scale")]
    nodes = [
        helper.make_node("Transpose", ["key"], ["keys"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["query", "keys"], ["products"]),
        helper.make_node("Mul", ["products", "scale"], ["scores"]),
    ]
    if is_causal:
        mask = np.triu(np.full((length, length), -1e9, np.float32), 1)
        arrays.append(numpy_helper.from_array(mask, "mask"))
        nodes.append(helper.make_node("Add", ["scores", "mask"], ["masked"]))
    nodes += [
        helper.make_node("Softmax", [nodes[-1].output[0]], ["shares"], axis=-1),
        helper.make_node("MatMul", ["shares", "value"], ["taken"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ("query", "key", "value")
    ]
    outputs = [helper.make_tensor_value_info("taken", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "attention", inputs, outputs, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def measure(job: Job, heads: int, length: int, rounds: int) -> None:
    """Prints a row: our time, that of the others as multiples of it, and the planned memory."""
    programs: dict[str, Program] = {}
    for peer in PEERS:
        try:
            programs[peer.name] = peer.prepare(job)
        except PeerError as error:
            print(f"{peer.title}: {error}")
    (wanted,) = programs["onnxruntime"].outputs()
    for program in programs.values():
        np.testing.assert_allclose(program.outputs()[0], wanted, rtol=1e-4, atol=1e-5)
    clock = time.perf_counter if job.threads > 1 else time.thread_time
    timers = [timed(program.run, clock) for program in programs.values()]
    taken = interleaved_seconds(timers, seconds=4.0, rounds=rounds)
    seconds = {name: statistics.median(one) for name, one in zip(programs, taken, strict=True)}
    own = seconds.pop("tvm_ext")
    others = " | ".join(f"{seconds[p.name] / own:.2f}" for p in PEERS[1:] if p.name in seconds)
    shapes = {name: array.shape for name, array in job.inputs.items()}
    models = [one.compile(job.path, shapes, job.threads) for one in (Ours(), _WITHOUT)]
    planned = [format_bytes(one.report.memory.planned_peak_bytes or 0) for one in models]
    scores = format_bytes(4 * heads * length * length)
    print(
        f"| {length} | {job.threads} | {1e3 * own:.3f} | {others} | {' | '.join(planned)} "
        f"| {scores} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--causal", action="store_true", help="no key behind its query")
    given = parser.parse_args()
    titles = " | ".join(f"{peer.title} / ours" for peer in PEERS[1:])
    print(f"| length | threads | ms | {titles} | planned | planned, pass off | all scores |")
    print("| ---: " * (len(PEERS) + 5) + "|")
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "attention.onnx"
        for threads in given.threads:
            for length in given.lengths:
                made = attention_model(given.heads, given.depth, length, is_causal=given.causal)
                onnx.save(made, path)
                shape = (1, given.heads, length, given.depth)
                arrays = {
                    name: random.standard_normal(shape, dtype=np.float32)
                    for name in ("query", "key", "value")
                }
                job = Job(path, arrays, threads, is_kernel=True)
                measure(job, given.heads, length, given.rounds)


if __name__ == "__main__":
    main()

"""Models compiled for any size, beside the same frozen and beside ONNX Runtime.

Programs take turns in one process, with pauses: the threads of ONNX Runtime wait busily for a
while after its last run.

    python benchmarks/dynamic.py model.onnx --size N=1 --size N=8
    python benchmarks/dynamic.py model.onnx --size N=1,L=16 --size N=4,L=77
"""

import argparse
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import onnxruntime

import tvm_ext
from tvm_ext.check.inputs import random_inputs
from tvm_ext.hardware.timing import interleaved_milliseconds
from tvm_ext.onnx_frontend.load import load_model

# Compile times are measured too.
os.environ["TVM_EXT_CACHE"] = "off"

Sizes = Mapping[str, int]


def _sizes(text: str) -> Sizes:
    pairs = (part.partition("=") for part in text.split(","))
    try:
        return {name: int(number) for name, _, number in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected sizes such as N=8,L=64, not '{text}'") from None


def _shapes(session: onnxruntime.InferenceSession, sizes: Sizes) -> dict[str, list[int]]:
    """The inputs' shapes; names of dimensions that are not given are an error."""
    found = {}
    for one in session.get_inputs():
        missing = [d for d in one.shape if isinstance(d, str) and d not in sizes]
        if missing:
            raise SystemExit(f"'{one.name}' has the dimension {missing[0]}: give it with --size")
        found[one.name] = [sizes[d] if isinstance(d, str) else d for d in one.shape]
    return found


def _measure(path: Path, every: list[Sizes], threads: int | None, seconds: float) -> None:
    model = load_model(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    started = time.perf_counter()
    dynamic = tvm_ext.compile(model, threads=threads)
    compiled = time.perf_counter() - started
    for sizes in every:
        shapes = _shapes(session, sizes)
        started = time.perf_counter()
        frozen = tvm_ext.compile(model, input_shapes=shapes, threads=threads)
        once = time.perf_counter() - started
        inputs = random_inputs(frozen.inputs)
        runs = [partial(session.run, None, inputs), partial(dynamic.run, inputs)]
        runs.append(partial(frozen.run, inputs))
        theirs, ours, fixed = interleaved_milliseconds(*runs, seconds=seconds * len(runs))
        print(
            f"| {path.stem} | {','.join(f'{n}={v}' for n, v in sizes.items())} "
            f"| {ours:.2f} | {ours / fixed:.2f} | {theirs / ours:.2f} | {compiled / once:.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, help="ONNX files with dynamic dimensions")
    parser.add_argument(
        "--size", action="append", type=_sizes, required=True, help="sizes by dimension, repeatable"
    )
    parser.add_argument("--threads", type=int, help="default: one for each core")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each program and size")
    given = parser.parse_args()
    print("| model | sizes | ms | of frozen | ONNX Runtime / ours | compile time, of frozen |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for path in given.models:
        _measure(path, given.size, given.threads, given.seconds)


if __name__ == "__main__":
    main()

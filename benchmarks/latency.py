"""Latency of whole models beside ONNX Runtime's, with the same threads, in one run.

    python benchmarks/latency.py a.onnx b.onnx --input-shape x=1,3,224,224 --json out.json

Prints the ratio first (above 1: tvm-ext is faster), then both medians. Times of a shared machine
drift; the two programs take turns, so that ratios hold.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import tvm_ext
from tvm_ext.check.random_inputs import random_inputs
from tvm_ext.check.reference import ReferenceSession
from tvm_ext.cli.input_parsing import parse_input_shapes
from tvm_ext.timing import interleaved_milliseconds


def measure(path: Path, shapes: dict[str, list[int]], opt_level: str) -> dict[str, Any]:
    """One model: medians in milliseconds and their ratio, or the error that compiling ended in."""
    try:
        model = tvm_ext.compile(path, input_shapes=shapes, opt_level=opt_level)
    except tvm_ext.TvmExtError as error:
        return {"model": path.stem, "error": str(error)}
    inputs = random_inputs(model.inputs)
    threads = int(model.report.target["cores"])
    session = ReferenceSession(path, threads=threads)
    ours, theirs = interleaved_milliseconds(lambda: model.run(inputs), lambda: session.run(inputs))
    return {
        "model": path.stem,
        "threads": threads,
        "ratio": theirs / ours,
        "tvm_ext_ms": ours,
        "onnxruntime_ms": theirs,
        "compile_seconds": model.report.total_seconds,
    }


def main() -> int:
    """Measures every model; 0 when all compiled."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--input-shape", action="append", default=[], metavar="NAME=SIZES")
    parser.add_argument("--opt-level", default="O3")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    shapes = parse_input_shapes(options.input_shape)
    results = [measure(path, shapes, options.opt_level) for path in options.models]
    for result in results:
        if "error" in result:
            print(f"{result['model']:24} {result['error']}")
            continue
        print(
            f"{result['model']:24} {result['ratio']:5.2f}x  "
            f"tvm-ext {result['tvm_ext_ms']:8.2f} ms  "
            f"ONNX Runtime {result['onnxruntime_ms']:8.2f} ms"
        )
    ratios = [result["ratio"] for result in results if "ratio" in result]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{'geometric mean':24} {mean:5.2f}x")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    return 0 if len(ratios) == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())

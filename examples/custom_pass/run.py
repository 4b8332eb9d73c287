"""A pass in a package of its own: installed, run by every compilation, looked at, and checked.

Installs the package beside this file into a folder, compiles a small model of image preprocessing,
prints the graph in front of the pass and behind it with the reasons for what it left alone, and
compares the results with ONNX Runtime and with a compilation without the pass.

    python examples/custom_pass/run.py
"""

import argparse
import difflib
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.check.check import check_compiled

PASS = "FoldScales"
# The pass that it is registered behind.
AHEAD = "GemmFusion"
SOURCES = ("pyproject.toml", "folded_scales.py")


def install(folder: Path) -> Path | None:
    """Installs the package into a folder; None, with a line that says why, where pip fails."""
    # A build writes beside its sources, which are the repository's.
    source, site = folder / "source", folder / "site"
    for left in (source, site):
        shutil.rmtree(left, ignore_errors=True)
    source.mkdir(parents=True)
    for name in SOURCES:
        shutil.copy(Path(__file__).parent / name, source)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return site
    lines = done.stderr.strip().splitlines() or ["it said nothing"]
    print(f"error: pip install of the pass failed: {lines[-1]}", file=sys.stderr)
    return None


def preprocessing() -> onnx.ModelProto:
    """Pixels to -1..1 for one network and to 0..1 and 0..255 for others, as people write it."""

    def constant(name: str, value: float) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(value, "float32"), name)

    nodes = [
        # Two factors in a row, of which the first has no other reader.
        helper.make_node("Mul", ["pixels", "by_255"], ["unit"], name="to_unit"),
        helper.make_node("Mul", ["unit", "two"], ["doubled"], name="double"),
        helper.make_node("Sub", ["doubled", "one"], ["signed"], name="to_signed"),
        # Here the first product is an output as well, and has to be computed anyway.
        helper.make_node("Mul", ["mask", "by_255"], ["mask_unit"], name="mask_to_unit"),
        helper.make_node("Mul", ["mask_unit", "two"], ["weight"], name="weigh_mask"),
    ]
    shape = ["N", 3, 64, 64]

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes,
        "preprocessing",
        [value("pixels"), value("mask")],
        [value("signed"), value("mask_unit"), value("weight")],
        [constant("by_255", 1 / 255), constant("two", 2.0), constant("one", 1.0)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def print_change(dumps: Path) -> bool:
    """Prints the graph in front of the pass, and the lines it changed; whether it changed any."""
    before, after = (
        [line for line in dump.read_text().splitlines() if line and not line.startswith("#")]
        for dump in (last_dump(dumps, AHEAD), last_dump(dumps, PASS))
    )
    print(f"the body of the graph in front of {PASS}:")
    start = next(i for i, line in enumerate(before) if "R.dataflow()" in line)
    print("\n".join(before[start + 1 : -1]))
    changes = [line for line in difflib.ndiff(before, after) if line.startswith(("+", "-"))]
    print(f"the lines that {PASS} took away (-) and wrote (+):")
    print("\n".join(changes))
    return bool(changes)


def last_dump(dumps: Path, name: str) -> Path:
    """The module behind the pass ``name``; passes that it calls itself have files of their own."""
    return max(dumps.glob(f"*_{name}.py"))


def print_decisions(model: tvm_ext.CompiledModel) -> tuple[int, int]:
    """Prints what the pass says about each place; how many it rewrote, and how many it left."""
    record = next(record for record in model.report.passes if record.name == PASS)
    for decision in record.decisions:
        mark = "+" if decision.applied else "-"
        print(f"  {mark} {decision.where}: {decision.reason}")
    return record.applied, record.refused


def main() -> int:
    """Runs the example; 0 when the pass rewrote one place of two and the numbers agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files are kept")
    folder = parser.parse_args().folder / "custom_pass"
    site = install(folder)
    if site is None:
        return 2
    # As if it had been installed into the environment: entry points are looked for on this path.
    sys.path.append(str(site))

    source, dumps = preprocessing(), folder / "ir"
    shutil.rmtree(dumps, ignore_errors=True)
    model = tvm_ext.compile(source, dump_ir=dumps)
    changed = print_change(dumps)
    print(f"what {PASS} did (+) and left alone (-):")
    applied, refused = print_decisions(model)

    pixels = np.random.default_rng(0).uniform(0, 255, (2, 2, 3, 64, 64)).astype("float32")
    inputs = {"pixels": pixels[0], "mask": pixels[1]}
    result = check_compiled(model, source, inputs)
    worst = max(output.max_rel for output in result.outputs)
    print(f"largest difference from ONNX Runtime, relative: {worst:.1e}")
    without = tvm_ext.compile(source, disabled_passes=[PASS])
    ours, plain = model.run(inputs), without.run(inputs)
    apart = max(float(np.abs(ours[name] - plain[name]).max()) for name in plain)
    print(f"largest difference from a compilation with disabled_passes=['{PASS}']: {apart:.1e}")
    passed = changed and (applied, refused) == (1, 1) and result.ok and apart < 1e-6
    print("check passed" if passed else "check FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

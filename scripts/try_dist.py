"""Installs a wheel and a source distribution into empty environments and uses what is there.

    python scripts/try_dist.py dist

Each of the two has an environment of its own, in a temporary folder in which nothing of this tree
is found. A small model is compiled there from Python and in a shell, saved, loaded and run, and its
numbers are compared with NumPy's. Exit code 1 when anything fails.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

import tvm_ext

_PROGRAM = """
import numpy as np
import onnx
from onnx import TensorProto, helper

import tvm_ext

sizes = {"x": [4, 8], "w": [8, 3]}
tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items()]
nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 3])
graph = helper.make_graph(nodes, "small", tensors, [result])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), "small.onnx")

numbers = np.random.default_rng(0)
inputs = {name: numbers.standard_normal(size, dtype="float32") for name, size in sizes.items()}
model = tvm_ext.compile("small.onnx")
model.save("small.tvmx")
wanted = np.maximum(inputs["x"] @ inputs["w"], 0)
for program in (model, tvm_ext.load("small.tvmx")):
    np.testing.assert_allclose(program.run(inputs)["y"], wanted, rtol=1e-5, atol=1e-6)
print(tvm_ext.__version__, tvm_ext.__file__)
"""


class TrialError(Exception):
    """A distribution does not work; the message says which step failed."""


def find_distributions(folder: Path) -> list[Path]:
    """The wheel and the source distribution of this version in a folder; raises TrialError."""
    found = []
    for pattern in ("tvm_ext-*.whl", "tvm_ext-*.tar.gz"):
        paths = list(folder.glob(pattern))
        if len(paths) != 1 or f"-{tvm_ext.__version__}" not in paths[0].name:
            names = ", ".join(path.name for path in paths) or "nothing"
            raise TrialError(
                f"{folder} holds {names} as {pattern}; expected one of version "
                f"{tvm_ext.__version__}: run 'make dist'"
            )
        found += paths
    return found


def try_distribution(path: Path) -> str:
    """Installs and uses one distribution; returns what it printed, or raises TrialError."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        venv.create(folder / "venv", with_pip=True)
        programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        work = folder / "work"
        work.mkdir()
        _step("its installation", work, programs / "pip", "install", "--quiet", path.resolve())
        _step("the check of what it requires", work, programs / "pip", "check")
        printed = _step("a model in Python", work, programs / "python", "-c", _PROGRAM)
        command = (programs / "tvm-ext", "compile", "small.onnx", "-o", "again.tvmx")
        _step("a model in a shell", work, *command)
        _step("the run of a saved model", work, programs / "tvm-ext", "run", "again.tvmx")
    version, place = printed.split()
    if version != tvm_ext.__version__ or not place.startswith(str(folder)):
        raise TrialError(
            f"{path.name} imports version {version} from {place}; expected {tvm_ext.__version__} "
            "from its environment"
        )
    return f"{path.name}: installs, compiles, saves, loads and runs; version {version}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries both distributions in the folder that is given."""
    parser = argparse.ArgumentParser(prog="try_dist.py", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    try:
        for path in find_distributions(folder):
            print(try_distribution(path))
    except TrialError as error:
        print(f"try_dist.py: error: {error}", file=sys.stderr)
        return 1
    return 0


def _step(what: str, folder: Path, *command: str | Path) -> str:
    # What a caller's environment says of Python must not reach the empty one.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, "TVM_EXT_CACHE": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["nothing"]
        raise TrialError(f"{what} fails with exit code {done.returncode}: {lines[-1]}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

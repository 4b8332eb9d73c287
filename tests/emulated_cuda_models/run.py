"""Runs models compiled for a GPU in the emulator of CUDA code, and compares with ONNX Runtime.

python tests/emulated_cuda_models/run.py a.onnx b.onnx               random inputs, nvidia-h100
python tests/emulated_cuda_models/run.py a.onnx --shape x=1,3,64,64  sizes of an input
python tests/emulated_cuda_models/run.py a.onnx --inputs x.npz       stored inputs, by name
python tests/emulated_cuda_models/run.py a.onnx --order 1            other orders of the threads
python tests/emulated_cuda_models/run.py a.onnx --accesses           what its accesses cost
python tests/emulated_cuda_models/run.py a.onnx --accesses --blocks 8    quickly: eight blocks of a
                                                                     launch, and no results

A model takes seconds to minutes: one thread of one core stands for the whole GPU.
"""

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TVM_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.simplefilter("ignore")
# The test folders are no packages.
sys.path.insert(1, str(Path(__file__).parents[1] / "shared"))

from accesses_report import WORST_SITES, report  # noqa: E402
from cuda_emulation import CudaEmulationError, set_seed  # noqa: E402
from cuda_emulation.accesses import counted_accesses  # noqa: E402
from emulated_models import emulated_model  # noqa: E402

from tvm_ext.check.check import check_compiled  # noqa: E402
from tvm_ext.check.inputs import random_inputs  # noqa: E402
from tvm_ext.errors import TvmExtError  # noqa: E402
from tvm_ext.hardware.cuda.description import CudaDescription  # noqa: E402
from tvm_ext.hardware.targets import resolve_target  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all models match."""
    options = _parsed(arguments)
    failed = 0
    for path in options.models:
        start = time.monotonic()
        try:
            said, matches = (_counted if options.accesses else _run)(path, options)
        except (CudaEmulationError, TvmExtError) as error:
            said, matches = f"{type(error).__name__}: {error}", False
        failed += not matches
        verdict = "counted" if options.accesses else "matches" if matches else "FAILS"
        print(f"{path.stem:24} {verdict:8} {time.monotonic() - start:5.0f} s  {said}", flush=True)
    return min(failed, 1)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, help="ONNX files")
    parser.add_argument("--target", default="nvidia-h100")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=SIZES")
    parser.add_argument("--inputs", type=Path, help="NumPy archive with an array for each input")
    parser.add_argument(
        "--order", type=int, default=0, help="of threads and blocks; 0: as numbered"
    )
    parser.add_argument("--accesses", action="store_true", help="count what they cost")
    parser.add_argument("--blocks", type=int, help="with --accesses: the only blocks that are run")
    return parser.parse_args(arguments)


def _run(path: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """What is to be said of a model, and whether it matches."""
    compiled, inputs = _compiled(path, options)
    result = check_compiled(compiled, path, inputs)
    schedules = Counter(kernel.schedule for kernel in compiled.report.kernels)
    said = ", ".join(f"{count} {name}" for name, count in schedules.most_common())
    return said if result.ok else f"{result.outputs}; {said}", result.ok


def _counted(path: Path, options: argparse.Namespace) -> tuple[str, bool]:
    """The accesses of a model's kernels."""
    machine = resolve_target(options.target)
    if not isinstance(machine, CudaDescription):
        return f"{options.target} is no GPU", False
    compiled, inputs = _compiled(path, options)
    chosen = {} if options.blocks is None else {"blocks": options.blocks, "only": True}
    with counted_accesses(**chosen) as kernels:
        compiled.run(inputs)
    return f"\n{report(kernels, machine, WORST_SITES)}", True


def _compiled(path: Path, options: argparse.Namespace) -> tuple[Any, dict[str, np.ndarray]]:
    """The model, and what it is run with."""
    stored = dict(np.load(options.inputs)) if options.inputs is not None else None
    shapes = {name: list(array.shape) for name, array in (stored or {}).items()}
    for given in options.shape:
        name, _, sizes = given.rpartition("=")
        shapes[name] = [int(size) for size in sizes.split(",")]
    compiled = emulated_model(path, options.target, input_shapes=shapes or None)
    set_seed(options.order)
    inputs = stored if stored is not None else random_inputs(compiled.inputs, 0)
    return compiled, inputs


if __name__ == "__main__":
    sys.exit(main())

"""Time of a step of training beside PyTorch, eager and compiled, in turns in one run.

The blocks are those of the tests: an MLP, a residual block, a transformer block and an LSTM, with
Adam. PyTorch runs in a Python of its own, which answers line by line. With ``--memory`` a line says
how many bytes the values of a step take at their peak, without weights and the state of Adam: as
planned, with half of that as memory limit, and as PyTorch's profiler counts them.

    python benchmarks/training.py --torch-python .venv-models/bin/python
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx

from tvm_ext.errors import TvmExtError
from tvm_ext.hardware.timing import interleaved_seconds, timed
from tvm_ext.report.units import format_bytes
from tvm_ext.training import Adam, compile_training

# The blocks are those that the tests compare with JAX.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))
models = importlib.import_module("training_models")

BLOCKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": partial(models.mlp, 128, 512),
    "resnet block": partial(models.resnet_block, 16, 32, 32),
    "transformer block": partial(models.transformer_block, 8, 64, 128, 4),
    "lstm": partial(models.lstm, 16, 16, 64, 128),
}


class PyTorch:
    """A process that makes steps in PyTorch."""

    def __init__(self, python: str, threads: int) -> None:
        script = Path(__file__).with_name("training_in_pytorch.py")
        # By way, the bytes of a step.
        self.peaks: dict[str, int] = {}
        self._process = subprocess.Popen(
            [python, str(script), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, way: str, block: str) -> float:
        """Of one step."""
        given, answers = self._process.stdin, self._process.stdout
        if given is None or answers is None:
            raise SystemExit("error: the process of PyTorch has no pipes")
        given.write(f"{way} {block}\n")
        given.flush()
        line = answers.readline()
        if not line:
            raise SystemExit("error: the process of PyTorch ended; expected a Python with torch")
        seconds, self.peaks[way] = line.split()[0], int(line.split()[1])
        return float(seconds)

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def measured(block: str, pytorch: PyTorch, threads: int, seconds: float) -> dict[str, float]:
    """Median milliseconds of a step, by program."""
    model = BLOCKS[block]()
    trainer = compile_training(model, "cross_entropy", Adam(lr=1e-3), threads=threads)
    programs: dict[str, Callable[[], float]] = {
        "tvm-ext": timed(partial(trainer.step, models.batch_for(model))),
        "eager": partial(pytorch.seconds, "eager", block),
        "compiled": partial(pytorch.seconds, "compiled", block),
    }
    samples = interleaved_seconds(list(programs.values()), seconds)
    medians = (1e3 * statistics.median(taken) for taken in samples)
    return dict(zip(programs, medians, strict=True))


def limited_bytes(block: str, threads: int) -> dict[str, int]:
    """The planned bytes of a step, and the least that was found for half of them."""
    model = BLOCKS[block]()
    found = {}
    limit: int | None = None
    for name in ("tvm-ext", "with a limit of half"):
        try:
            trainer = compile_training(
                model, "cross_entropy", Adam(lr=1e-3), threads=threads, memory_limit=limit
            )
        except TvmExtError as error:
            print(f"  {error}")
            break
        memory = trainer.program.report.memory
        found[name] = memory.planned_peak_bytes or 0
        limit = found[name] // 2
    return found


def main() -> None:
    """Prints a line a block, and writes the figures where asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-python", default=".venv-models/bin/python")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=6.0, help="for each block")
    parser.add_argument("--blocks", nargs="+", choices=list(BLOCKS), default=list(BLOCKS))
    parser.add_argument("--memory", action="store_true", help="measure bytes as well")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    pytorch = PyTorch(options.torch_python, options.threads)
    found = {}
    try:
        for block in options.blocks:
            times = found[block] = measured(block, pytorch, options.threads, options.seconds)
            listed = "  ".join(f"{name} {ms:8.3f} ms" for name, ms in times.items())
            better = min(times["eager"], times["compiled"])
            print(f"{block:18} {listed}  {better / times['tvm-ext']:.2f}x", flush=True)
            if options.memory:
                peaks = {**limited_bytes(block, options.threads), **pytorch.peaks}
                listed = "  ".join(f"{way} {format_bytes(peak)}" for way, peak in peaks.items())
                print(f"{'':18} {listed}", flush=True)
    finally:
        pytorch.close()
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()

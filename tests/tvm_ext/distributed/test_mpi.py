"""Two processes that ``mpiexec`` starts, where it is installed."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from training_models import mlp

import tvm_ext

MPIEXEC = shutil.which("mpiexec")
_COMMAND = "from tvm_ext.cli.main import main; main()"

pytestmark = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None,
    reason="mpiexec or mpi4py is not installed",
)

X = np.random.default_rng(0).standard_normal((16, 20)).astype(np.float32)


def mpi(devices: int, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(MPIEXEC), "-n", str(devices), sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mpi")
    np.savez(folder / "x.npz", x=X)
    model = tvm_ext.compile(mlp(), devices=2, shard="tensor", opt_level="O1")
    model.save(folder / "two.tvmx")
    return folder / "two.tvmx"


def _run(file: Path, *more: str) -> list[str]:
    return ["-c", _COMMAND, "run", str(file), "--inputs", str(file.parent / "x.npz"), *more]


def test_a_file_gives_what_it_gives_with_processes_of_its_own(file: Path, tmp_path: Path) -> None:
    ended = mpi(2, *_run(file, "--outputs", str(tmp_path / "y.npz")))
    assert ended.returncode == 0, ended.stderr
    model = tvm_ext.load(file)
    expected = model.run({"x": X})["y"]
    model.close()
    # Which of two is added to the other is all the same.
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], expected)


def test_a_file_for_fewer_devices_is_refused(file: Path) -> None:
    ended = mpi(3, *_run(file))
    assert ended.returncode != 0
    assert "two.tvmx is for 2 devices, and mpiexec started 3 processes" in ended.stderr


_FAILING = """
import os
import signal
import sys
from training_models import batch_for, mlp
from tvm_ext.training import Adam, compile_training

path, how = sys.argv[1:]
is_second = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))) == 1
if is_second and how == "compile":
    path = "missing.onnx"
trainer = compile_training(
    path, "cross_entropy", Adam(lr=1e-2), opt_level="O0", threads=1, devices=2
)
trainer.step(batch_for(mlp(16), 0))
print("stepped", flush=True)
if is_second:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "leave":
        sys.exit()
    trainer.step({})
trainer.step(batch_for(mlp(16), 1))
print("done", flush=True)
"""


@pytest.mark.parametrize("how", ["compile", "raise", "leave", "kill"])
def test_a_process_that_fails_ends_all(how: str, tmp_path: Path) -> None:
    """Those that wait for it would do so without end."""
    onnx.save(mlp(8), tmp_path / "mlp.onnx")
    ended = mpi(2, "-c", _FAILING, str(tmp_path / "mlp.onnx"), how)
    assert ended.returncode != 0
    assert "done" not in ended.stdout
    assert ended.stdout.count("stepped") == (0 if how == "compile" else 2)
    if how != "kill":
        # A process that is killed is noticed by mpiexec, which has words of its own.
        lines = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        assert lines == [
            "error: the process of device 1 of 2 has ended; expected it to run: see what it "
            "printed, and start mpiexec again"
        ]


def test_a_command_that_fails_in_one_process_ends_all(file: Path) -> None:
    script = (
        "import os, sys; second = int(os.environ.get('PMI_RANK', "
        "os.environ.get('OMPI_COMM_WORLD_RANK'))) == 1; "
        f"sys.argv[2] = 'missing.tvmx' if second else sys.argv[2]; {_COMMAND}"
    )
    ended = mpi(2, "-c", script, *_run(file)[2:])
    assert ended.returncode != 0
    (line,) = (one for one in ended.stderr.splitlines() if one.startswith("error: "))
    assert "missing.tvmx" in line


_TRAINING = """
import json
import sys
from training_models import batch_for, mlp
from tvm_ext.training import Adam, compile_training

trainer = compile_training(
    sys.argv[1], "cross_entropy", Adam(lr=1e-2), opt_level="O1", threads=1, devices=2
)
losses = trainer.fit([batch_for(mlp(16), seed) for seed in range(4)], progress=False)
with open(f"{sys.argv[2]}{id(trainer)}.json", "w") as file:
    json.dump(losses, file)
trainer.program.close()
"""


def _losses(folder: Path) -> Sequence[list[float]]:
    return [json.loads(path.read_text()) for path in folder.glob("*.json")]


def test_training_has_the_losses_of_processes_of_its_own(tmp_path: Path) -> None:
    onnx.save(mlp(8), tmp_path / "mlp.onnx")
    found = []
    for devices in (1, 2):
        folder = tmp_path / str(devices)
        folder.mkdir()
        ended = mpi(devices, "-c", _TRAINING, str(tmp_path / "mlp.onnx"), f"{folder}/")
        assert ended.returncode == 0, ended.stderr
        found.append(_losses(folder))
    (alone,), both = found
    assert all(one == alone for one in both)


_LAST = """
import time
import numpy as np
from tvm_ext.distributed.mpi_communicator import mpi_communicator

ours = mpi_communicator()
given, found = np.ones(3, "float32"), np.empty(3, "float32")
ours._all_reduce(given, found, np.add)
if ours.rank == 2:
    time.sleep(0.5)
ours._broadcast(found, given)
assert given.tolist() == [4, 4, 4]
"""


def test_a_process_may_leave_before_others_are_through_the_last_collective() -> None:
    """The first one has sent its values, which the third has still to pass on."""
    ended = mpi(4, "-c", _LAST)
    assert ended.returncode == 0, ended.stderr

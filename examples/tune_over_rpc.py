"""Tunes depthwise convolutions of a model on another machine, here a server on this one.

Starts TVM's tracker and one server, as users start them on machines that measure, lets a session
send its candidates there for half a minute, compiles with the records that it wrote, and compares
results and times with the program that has the templates' own schedules.

    python examples/tune_over_rpc.py
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tvm.rpc.tracker import Tracker

import tvm_ext
from tvm_ext.check.check import check_compiled
from tvm_ext.check.inputs import random_inputs
from tvm_ext.hardware.timing import interleaved_milliseconds
from tvm_ext.tuning.progress import SessionProgress
from tvm_ext.tuning.runner import RunDeviceAddress, alive_servers, rpc_devices

HOST, KEY = "127.0.0.1", "example"
# Of each convolution: name, outputs, inputs of a group, size, stride, groups.
LAYERS = (
    ("stem", 24, 3, 3, 2, 1),
    ("depthwise1", 24, 1, 3, 1, 24),
    ("pointwise1", 48, 24, 1, 1, 1),
    ("depthwise2", 48, 1, 3, 2, 48),
    ("pointwise2", 96, 48, 1, 1, 1),
    ("depthwise3", 96, 1, 5, 1, 96),
)
START_SECONDS = 30.0
TUNING_SECONDS = 25.0


def small_network(path: Path) -> Path:
    """Writes a stem and three blocks as in MobileNet: depthwise, then pointwise convolutions."""
    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for name, outputs, inputs, size, stride, groups in LAYERS:
        values = random.normal(
            0, (2 / (inputs * size * size)) ** 0.5, (outputs, inputs, size, size)
        )
        weights.append(numpy_helper.from_array(values.astype("float32"), f"{name}.weight"))
        convolution = helper.make_node(
            "Conv",
            [value, f"{name}.weight"],
            [name],
            name=name,
            pads=[size // 2] * 4,
            strides=[stride, stride],
            group=groups,
        )
        nodes += [convolution, helper.make_node("HardSwish", [name], [f"{name}.out"])]
        value = f"{name}.out"
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["y"], name="pool"))
    graph = helper.make_graph(
        nodes,
        "small_network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 96, 1, 1])],
        weights,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return path


@contextmanager
def tracker_with_server(log: Path) -> Iterator[str]:
    """A tracker and one server that registered with it; the tracker's address.

    In earnest these are two commands: 'python -m tvm.exec.rpc_tracker --host HOST --port 9190', and
    on each machine that measures 'tvm-ext rpc-server --tracker HOST:9190 --key NAME'.
    """
    tracker = Tracker(HOST, port=9190, port_end=9290, silent=True)
    address = f"{HOST}:{tracker.port}"
    program = "from tvm_ext.cli.main import main; main()"
    command = [sys.executable, "-c", program, "rpc-server", "--tracker", address, "--key", KEY]
    with log.open("w", encoding="utf-8") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for_server(server, RunDeviceAddress(HOST, tracker.port, KEY), log)
        yield address
    finally:
        server.terminate()
        server.wait()
        tracker.terminate()


def wait_for_server(server: subprocess.Popen[bytes], address: RunDeviceAddress, log: Path) -> None:
    """Returns when the tracker knows the server; RuntimeError when it does not start."""
    end = time.monotonic() + START_SECONDS
    while alive_servers(address) == 0:
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the server did not register in {START_SECONDS:.0f} s: see {log}")
        time.sleep(0.2)


def print_kernels(session: SessionProgress) -> None:
    """One line for each kernel: its time before and after, and how many candidates were tried."""
    for kernel in session.kernels:
        if kernel.default_seconds is None or kernel.best_seconds is None:
            continue
        before, after = 1e6 * kernel.default_seconds, 1e6 * kernel.best_seconds
        print(
            f"  {kernel.name[:44]:44s} {before:7.1f} us -> {after:7.1f} us  "
            f"({before / after:.2f}x, {kernel.trials} trials)"
        )


def main() -> int:
    """Runs the example; 0 when candidates were measured, their records used, and results agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where files are kept")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    path = small_network(folder / "small_network.onnx")
    records = folder / "rpc_records"

    with tracker_with_server(folder / "rpc_server.log") as address:
        print(f"a tracker listens at {address}, and one server with the key '{KEY}' is registered")
        session = tvm_ext.tune(
            path,
            work_dir=records,
            effort="quick",
            time_budget=TUNING_SECONDS,
            only=["depthwise*"],
            rpc=rpc_devices(address, KEY, session_seconds=60.0),
        )
    print(f"{session.trials_done} candidates were measured over RPC in {session.seconds:.0f} s:")
    print_kernels(session)

    default = tvm_ext.compile(path)
    tuned = tvm_ext.compile(path, records=records)
    hits = sum(kernel.tuned == "hit" for kernel in tuned.report.kernels)
    print(f"compiled with the records: {hits} of {len(tuned.report.kernels)} kernels have one")
    inputs = random_inputs(tuned.inputs)
    agrees = check_compiled(tuned, path, inputs).ok
    print(f"results of the tuned program: {'those' if agrees else 'NOT those'} of ONNX Runtime")
    before, after = interleaved_milliseconds(
        lambda: default.run(inputs), lambda: tuned.run(inputs), seconds=4.0
    )
    print(f"one run, median: {before:.3f} ms -> {after:.3f} ms ({before / after:.2f}x)")
    passed = agrees and hits > 0 and session.trials_done > 0
    print("check passed" if passed else "check FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

"""Fixtures for every test: small ONNX models on the disk."""

import gc
import inspect
import linecache
import os
import sys
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvm_ext.hardware.cuda.host import driver_state
from tvm_ext.tir_schedules.schedule_kernels import without_type_checks

# What several test folders use; they are no packages.
sys.path.insert(0, str(Path(__file__).parent / "shared"))

from random_numbers import start_anew
from thoroughness import ALL_CASES

# Many tests start processes. Each would compile all sources anew where no bytecode is written; git
# ignores what is.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A terminal that starts the workers of pytest-xdist leaves its width to them.
os.environ.pop("COLUMNS", None)

# TVM's idle threads spin for a while after each parallel kernel, on cores that other tests want.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")

# Tests are about what a compilation does, and not about what an earlier one left.
os.environ["TVM_EXT_CACHE"] = "off"

# Nothing here is to survive a power cut, and a disk may take longer than all else of a test.
os.fsync = lambda descriptor: None

# Without a GPU nothing runs the device code, and making it takes seconds a model.
if driver_state().problem:
    os.environ.setdefault("TVM_EXT_CUDA_COMPILER", "none")


def _stack(context: int = 1) -> list[inspect.FrameInfo]:
    """``inspect.stack`` with source lines of the nearest frames alone.

    TVM asks for the stack at every kernel in its script and reads the line of the third frame.
    ``inspect`` looks through all modules for the file of each frame, which takes longer than
    parsing the kernel.
    """
    frame, infos = sys._getframe(1), []
    while frame is not None:
        infos.append(_frame_info(frame, has_line=len(infos) < 3))
        frame = frame.f_back
    return infos


def _frame_info(frame: FrameType, has_line: bool) -> inspect.FrameInfo:
    path, number = frame.f_code.co_filename, frame.f_lineno
    line = linecache.getline(path, number, frame.f_globals) if has_line else ""
    lines = ([line], 0) if line else (None, None)
    return inspect.FrameInfo(frame, path, number, frame.f_code.co_name, *lines)


inspect.stack = _stack


def pytest_configure(config: pytest.Config) -> None:
    """As within ``compile``, for templates asked alone; ``make test-all`` has the checks."""
    if not ALL_CASES:
        unchecked = without_type_checks()
        unchecked.__enter__()
        config.add_cleanup(lambda: unchecked.__exit__(None, None, None))


# Thousands of cases and all modules stay to the end: no need to look at them for garbage.
gc.disable()


# Templates for GPUs, whose code runs in the emulator: tests of their own, `make test-emulated`.
# Those of code for AArch64 have the marker where they are.
_EMULATED = [
    Path(__file__).parent / name / "cuda" for name in ("tir_schedules", "tuning", "tvm_ext")
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tells the tests of GPU code, a fifth of the suite's time, from the others."""
    emulated = {
        path: any(folder in path.parents for folder in _EMULATED)
        for path in {item.path for item in items}
    }
    for item in items:
        if emulated[item.path]:
            item.add_marker(pytest.mark.emulated)


def pytest_collection_finish() -> None:
    """From here on there is garbage."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collectstart() -> None:
    """Modules that draw when they are imported draw the same in any order, and other than tests."""
    start_anew(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before any fixture of the test."""
    start_anew(0)


@pytest.fixture(scope="session")
def worker_stock():
    """Worker processes of tuning sessions, for all sessions of the tests."""
    from kept_workers import WorkerStock

    stock = WorkerStock()
    yield stock
    stock.stop()


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory) -> Path:
    """A convolution with bias and a ReLU: ``x`` float32[N, 3, 8, 8] to ``y`` [N, 4, 8, 8]."""
    return _write_conv(tmp_path_factory.mktemp("tiny") / "tiny.onnx", seed=0)


@pytest.fixture(scope="session")
def other_tiny_model_path(tmp_path_factory) -> Path:
    """``tiny_model_path`` with other weights."""
    return _write_conv(tmp_path_factory.mktemp("other") / "other.onnx", seed=1)


@pytest.fixture(scope="session")
def abs_model_path(tmp_path_factory) -> Path:
    """Two absolute values in a row and a tanh: ``x`` float32[2, 3] to ``y`` float32[2, 3]."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], name="abs1"),
        helper.make_node("Abs", ["a"], ["b"], name="abs2"),
        helper.make_node("Tanh", ["b"], ["y"], name="tanh"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    path = tmp_path_factory.mktemp("abs") / "abs.onnx"
    return _write(path, helper.make_graph(nodes, "abs", [x], [y]))


def _write_conv(path: Path, seed: int) -> Path:
    generator = np.random.default_rng(seed)
    weights = [
        numpy_helper.from_array(generator.standard_normal(shape, np.float32), name)
        for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"], name="relu1"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 8, 8])
    return _write(path, helper.make_graph(nodes, "tiny", [x], [y], weights))


def _write(path: Path, graph: onnx.GraphProto) -> Path:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path

"""On a real GPU: what goes wrong there is one line, and the process goes on."""

import subprocess
import sys

import numpy as np
import pytest
from needs_gpu import NEEDS_GPU
from small_models import mlp, mlp_reference, model, node, rand, value

import tvm_ext
from tvm_ext.errors import RunError, TargetError
from tvm_ext.hardware.cuda.host import driver_state
from tvm_ext.hardware.targets import resolve_target

pytestmark = NEEDS_GPU


def test_code_for_another_gpu_is_refused() -> None:
    here = driver_state().devices[0].capability
    other = "sm_90a" if here != (9, 0) else "sm_100a"
    machine = resolve_target("nvidia-h100").model_copy(update={"arch": other})
    compiled = tvm_ext.compile(mlp(), target=machine)
    with pytest.raises(TargetError, match=rf"\({other}\), and the GPU is .*; expected a GPU"):
        compiled.run({"x": rand(2, 6)})


def test_too_little_memory_is_one_line_and_no_end() -> None:
    nodes = [node("Add", ["x", "y"], ["z"])]
    inputs = [value("x", ["N", 1]), value("y", [1, "M"])]
    outer = tvm_ext.compile(model(nodes, inputs, [value("z", ["N", "M"])]), target="cuda")
    rows = np.zeros((1 << 20, 1), "float32")
    with pytest.raises(RunError, match="no memory left"):
        outer.run({"x": rows, "y": rows.T}, on_device=True)
    small = outer.run({"x": rows[:3], "y": rows[:5].T})["z"]
    np.testing.assert_array_equal(small, np.zeros((3, 5), "float32"))


_LOST = """
import numpy as np, tvm, tvm_ffi, tvm_ext
from needs_gpu import NEEDS_GPU
from small_models import mlp, mlp_reference, rand
from tvm_ext.cuda import device_memory

model = tvm_ext.compile(mlp(4), target="cuda")
x = rand(4, 6)
model.run({"x": x})
# A tensor whose memory is not there.
class Nowhere:
    def __dlpack_device__(self):
        return (2, 0)
    def __dlpack__(self, stream=None):
        import ctypes
        class DL(ctypes.Structure):
            _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int * 2),
                        ("ndim", ctypes.c_int), ("dtype", ctypes.c_uint8 * 4),
                        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                        ("offset", ctypes.c_uint64), ("ctx", ctypes.c_void_p),
                        ("deleter", ctypes.c_void_p)]
        self.shape = (ctypes.c_int64 * 2)(4, 6)
        shape = ctypes.addressof(self.shape)
        self.managed = DL(1 << 44, (2, 0), 2, (2, 32, 1, 0), shape, 0, 0, 0, 0)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)
nowhere = Nowhere()
for _ in range(2):
    try:
        model.run({"x": nowhere}, on_device=False)
    except tvm_ext.TvmExtError as error:
        print(type(error).__name__, error)
cpu = tvm_ext.compile(mlp(4))
assert np.allclose(cpu.run({"x": x})["z"], mlp_reference(x)["z"], atol=1e-4)
print("the process goes on")
"""


def test_a_lost_context_is_said_and_the_cpu_goes_on(tmp_path) -> None:
    script = tmp_path / "lost.py"
    script.write_text("import sys\nsys.path[:0] = " + repr(sys.path) + _LOST)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stdout + done.stderr
    assert "failed on the GPU" in lines[0]
    assert "lost its CUDA context" in lines[0]
    assert "cannot be used any more in this process" in lines[1]
    assert lines[2] == "the process goes on"


def test_the_cpu_needs_no_gpu() -> None:
    x = rand(4, 6)
    outputs = tvm_ext.compile(mlp(4)).run({"x": x})
    np.testing.assert_allclose(outputs["z"], mlp_reference(x)["z"], rtol=1e-4, atol=1e-5)

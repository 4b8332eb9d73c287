"""Errors of the fake device: each is one line, and the process goes on."""

import sys
import types

import numpy as np
import tvm
from small_models import mlp, mlp_reference
from use_fake import ALONE, chain, chain_reference, compiled, error_of, rand, state

import tvm_ext
from tvm_ext.cuda import device_errors as requirements
from tvm_ext.hardware.cuda.host import CudaDevice, DriverState

device = state()
x = rand(4, 8)
program = compiled(chain(), disabled_passes=ALONE)
large = compiled(chain("N"))
wanted = chain_reference(x)
np.testing.assert_allclose(program.run({"x": x})["y"], wanted, rtol=1e-5)

# PyTorch uses another device: the thread's current one stays that, after failures too.
for held in (x, tvm.runtime.tensor(x, tvm.cuda())):
    device.current = 1
    for _ in range(2):
        np.testing.assert_allclose(program.run({"x": held}, on_device=False)["y"], wanted, 1e-5)
        assert device.current == 1
program.profile({"x": x}, repeat=1)
assert device.current == 1

# Another device than the code was made for.
own = requirements.driver_state
requirements.driver_state = lambda: DriverState("", (13, 0), (CudaDevice("Old GPU", (8, 0), 1),))
print(error_of(program.run, {"x": x}))
requirements.driver_state = own

# No memory left; as soon as there is some, all goes on.
device.limit = device.used + 4096
print(error_of(large.run, {"x": rand(4096, 8)}))
# Nobody takes the error for one of their own.
assert (device.last, device.current) == (0, 1)
np.testing.assert_allclose(program.run({"x": x})["y"], wanted, rtol=1e-5)
device.limit = 0
many = rand(4096, 8)
np.testing.assert_allclose(large.run({"x": many})["y"], chain_reference(many), rtol=1e-5)

# The system locks no pages: arrays are copied from where they are.
device.no_pinned = 1
pageable = compiled(chain(), disabled_passes=ALONE)
np.testing.assert_allclose(pageable.run({"x": x})["y"], wanted, rtol=1e-5)
assert device.last == 0

# A graph that PyTorch records cannot hold a run.
capturing = types.SimpleNamespace(
    is_initialized=lambda: True, is_current_stream_capturing=lambda: True
)
sys.modules["torch"] = types.SimpleNamespace(cuda=capturing)
print(error_of(program.run, {"x": x}))
del sys.modules["torch"]

# A kernel that leaves its arrays: the context is lost, the CPU is not.
held = program.run({"x": x}, on_device=True)["y"]
device.fail_next = 700
print(error_of(program.run, {"x": x}))
assert device.sticky == 700
for model in (program, large, pageable):
    print(error_of(model.run, {"x": x}))
print(error_of(program.profile, {"x": x}))
cpu = tvm_ext.compile(mlp())
np.testing.assert_allclose(
    cpu.run({"x": rand(2, 6)})["z"], mlp_reference(rand(2, 6))["z"], rtol=1e-4
)
# Nothing that is freed now, or at the end of the process, may ask the device.
del program, large, pageable, model, held
assert tvm.cuda().exist
print("done")

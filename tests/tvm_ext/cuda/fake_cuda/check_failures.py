"""Errors of the fake device: each is one line, and the process goes on."""

import numpy as np
import tvm
from small_models import mlp, mlp_reference
from use_fake import ALONE, chain, chain_reference, compiled, error_of, rand, state

import tvm_ext
from tvm_ext.cuda import requirements
from tvm_ext.hardware.cuda.driver import CudaDevice, DriverState

device = state()
x = rand(4, 8)
program = compiled(chain(), disabled_passes=ALONE)
large = compiled(chain("N"))
wanted = chain_reference(x)
np.testing.assert_allclose(program.run({"x": x})["y"], wanted, rtol=1e-5)

# Another device than the code was made for.
own = requirements.driver_state
requirements.driver_state = lambda: DriverState("", (13, 0), (CudaDevice("Old GPU", (8, 0), 1),))
print(error_of(program.run, {"x": x}))
requirements.driver_state = own

# No memory left; as soon as there is some, all goes on.
device.limit = device.used + 4096
print(error_of(large.run, {"x": rand(4096, 8)}))
np.testing.assert_allclose(program.run({"x": x})["y"], wanted, rtol=1e-5)
device.limit = 0
many = rand(4096, 8)
np.testing.assert_allclose(large.run({"x": many})["y"], chain_reference(many), rtol=1e-5)

# A kernel that leaves its arrays: the context is lost, the CPU is not.
held = program.run({"x": x}, on_device=True)["y"]
device.fail_next = 700
print(error_of(program.run, {"x": x}))
assert device.sticky == 700
for model in (program, large):
    print(error_of(model.run, {"x": x}))
print(error_of(program.profile, {"x": x}))
cpu = tvm_ext.compile(mlp())
np.testing.assert_allclose(
    cpu.run({"x": rand(2, 6)})["z"], mlp_reference(rand(2, 6))["z"], rtol=1e-4
)
# Nothing that is freed now, or at the end of the process, may ask the device.
del program, large, model, held
assert tvm.cuda().exist
print("done")

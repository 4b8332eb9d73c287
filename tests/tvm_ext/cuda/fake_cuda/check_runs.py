"""Runs on the fake device: numbers, copies, graphs, memory, streams, profile, saved models."""

import sys
import types
from pathlib import Path
from unittest import mock

import numpy as np
import tvm
from small_models import model, node, value
from tvm import relax
from use_fake import ALONE, CHAIN, chain, chain_reference, compiled, error_of, rand, state

import tvm_ext
from tvm_ext.compiler import build as program_module
from tvm_ext.compiler.build import Built
from tvm_ext.passes import registry


def near(found, x: np.ndarray) -> bool:
    return np.allclose(np.asarray(found), chain_reference(x), rtol=1e-5, atol=1e-6)


device = state()
program = compiled(chain(), disabled_passes=ALONE)
record = program.report.device
# The first kernel reads the input and the last one writes the output.
assert (record.graphs, record.graph_kernels, record.no_graphs) == (1, len(CHAIN) - 2, "")
assert (record.arch, record.code, record.compiler) == ("sm_90a", "cubin", "g++")

# Arrays of the host: one copy in, one out, the same memory at every run.
for seed in range(4):
    x = rand(4, 8, seed=seed)
    before = (device.host_copies, device.allocations, device.graph_launches)
    found = program.run({"x": x})
    assert near(found["y"], x)
    assert device.host_copies - before[0] == 2
    if seed:
        assert device.graph_launches - before[2] == 1
    # The virtual machine holds the result of the run before.
    if seed > 1:
        assert device.allocations == before[1]

# Tensors of the device: no copies, and outputs of their own.
arrays = [rand(4, 8, seed=seed) for seed in range(3)]
tensors = [tvm.runtime.tensor(array, tvm.cuda()) for array in arrays]
copies = device.host_copies
results = [program.run({"x": tensor})["y"] for tensor in tensors]
assert device.host_copies == copies
assert len({result.data_ptr() for result in results}) == 3
assert all(near(result.numpy(), array) for result, array in zip(results, arrays, strict=True))
assert isinstance(program.run({"x": tensors[0]}, on_device=False)["y"], np.ndarray)


# An output that a user's pass makes an input's memory is copied.
def gives_the_input_back(mod: tvm.IRModule) -> tvm.IRModule:
    main = mod["main"]
    body = relax.SeqExpr(main.body.blocks, main.params[0])
    changed = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule({**dict(mod.functions.items()), mod.get_global_var("main"): changed})


tvm_ext.register_pass(gives_the_input_back, level="memory")
given = compiled(chain()).run({"x": tensors[0]})["y"]
registry.remove("gives_the_input_back")
assert given.data_ptr() != tensors[0].data_ptr()
assert np.array_equal(given.numpy(), arrays[0])

# Arrays of the host, outputs on the device: the buffer is not written over while it may be read.
kept = program.run({"x": arrays[0]}, on_device=True)["y"]
syncs = device.syncs
other = program.run({"x": arrays[1]}, on_device=True)["y"]
assert device.syncs == syncs + 1
assert near(kept.numpy(), arrays[0])
assert near(other.numpy(), arrays[1])

# A tensor at an odd address goes through a buffer, and so does one behind another's beginning.
for skipped in (1, 64):
    elements = np.concatenate([np.zeros(skipped), arrays[2].ravel()]).astype("float32")
    view = tvm.runtime._ffi_api.TVMTensorCreateView
    shape, long = tvm.runtime.ShapeTuple([4, 8]), tvm.runtime.tensor(elements, tvm.cuda())
    behind = view(long, shape, "float32", 4 * skipped)
    assert (behind.data_ptr() % 64 == 0) == (skipped == 64)
    assert near(program.run({"x": behind})["y"].numpy(), arrays[2])
short = tvm.runtime.tensor(rand(4, 7), tvm.cuda())
assert "expected size 8 on axis 1" in error_of(program.run, {"x": short})
double = tvm.runtime.tensor(arrays[0].astype("float64"), tvm.cuda())
assert "'x' is float64[4, 8]" in error_of(program.run, {"x": double})


# Another stream of PyTorch: the run waits for it, and it waits for the run.
class Stream:
    cuda_stream = 4711


cuda = types.SimpleNamespace(
    is_initialized=lambda: True,
    is_current_stream_capturing=lambda: False,
    current_stream=lambda index: Stream(),
)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
waits = device.waits
program.run({"x": arrays[0]})
assert device.waits == waits + 2
Stream.cuda_stream = 0
program.run({"x": arrays[0]})
assert device.waits == waits + 2
del sys.modules["torch"]


# A tensor of a library whose streams are not known: the host waits for the run.
class Foreign:
    def __dlpack_device__(self):
        return tensors[0].__dlpack_device__()

    def __dlpack__(self, stream=None):
        return tensors[0].__dlpack__()


for given, waits in ((tensors[0], 0), (Foreign(), 1)):
    syncs = device.syncs
    assert near(program.run({"x": given})["y"].numpy(), arrays[0])
    # One for the copy back.
    assert device.syncs == syncs + waits + 1

# Memory goes back, and is taken again.
used = device.used
del results, kept, other
program.gpu_program.release_memory()
assert device.used < used / 2, (device.used, used)
assert near(program.run({"x": arrays[0]})["y"], arrays[0])

# The profile launches every kernel by itself; a run goes on with graphs.
profile = program.profile({"x": arrays[0]}, repeat=2)
assert sum(kernel.calls for kernel in profile.kernels) == len(CHAIN)
launched = device.graph_launches
assert near(program.run({"x": arrays[0]})["y"], arrays[0])
assert device.graph_launches == launched + 1

# Saved and loaded; the file holds the device code.
path = Path(sys.argv[1], "chain.tvmx")
program.save(path)
loaded = tvm_ext.load(path)
assert near(loaded.run({"x": arrays[1]})["y"], arrays[1])
assert loaded.report.device == record


# Graphs that are taken out again, as for kernels that turn out to allocate memory.
def as_it_is(mod, target, machine, unscheduled, choices, origins) -> Built:
    return Built(None, mod, {**choices, "changed": None})


with (
    mock.patch.object(program_module, "launches_only", return_value=False),
    mock.patch.object(program_module, "build_with_fallback", as_it_is),
):
    taken_out = compiled(chain(), disabled_passes=ALONE)
assert taken_out.report.device.graphs == 0
assert "allocates" in taken_out.report.device.no_graphs
launched = device.graph_launches
assert near(taken_out.run({"x": arrays[1]})["y"], arrays[1])
assert near(taken_out.run({"x": arrays[2]})["y"], arrays[2])
assert device.graph_launches == launched

# Without graphs.
plain = compiled(chain(), disabled_passes=(*ALONE, "CudaGraphs"))
assert plain.report.device.no_graphs == "disabled"
assert near(plain.run({"x": arrays[1]})["y"], arrays[1])
open_rows = compiled(chain("N"), disabled_passes=ALONE)
assert "run time" in open_rows.report.device.no_graphs
for rows in (3, 64, 1):
    x = rand(rows, 8)
    assert near(open_rows.run({"x": x})["y"], x)

# An output that is an input or a weight has memory of its own.
weight = rand(3, 5)
same = model(
    [node("Identity", ["x"], ["y"])],
    [value("x", [4, 8])],
    [value("y", [4, 8]), value("w", [3, 5])],
    w=weight,
)
copier = compiled(same)
outputs = copier.run({"x": tensors[0]})
assert outputs["y"].data_ptr() != tensors[0].data_ptr()
again = copier.run({"x": tensors[0]})
assert outputs["w"].data_ptr() != again["w"].data_ptr()
np.testing.assert_array_equal(outputs["y"].numpy(), arrays[0])
np.testing.assert_array_equal(again["w"].numpy(), weight)
print("done")

"""A tuning session on the fake device, by TVM's CUDA runtime, and a model with what it found.

The session's processes would not know of the fake device's compiler: their work is done here.
"""

import sys
from pathlib import Path

import numpy as np
from use_fake import ALONE, chain, chain_reference, rand, state

import tvm_ext
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tuning import runner as runner_pool
from tvm_ext.tuning import worker as worker_pool
from tvm_ext.tuning.cuda import presence as gpu_presence
from tvm_ext.tuning.logs.trial_log import read_trials


class WorkerInThisProcess:
    """Does a worker's work in this process."""

    def __init__(self, memory_bytes=None):
        pass

    def call(self, function, *arguments, timeout):
        return function(*arguments)

    def stop(self):
        pass

    def kill(self):
        pass


for module in (gpu_presence, runner_pool, worker_pool):
    module.Worker = WorkerInThisProcess

folder = Path(sys.argv[1])
# A copy of a large cache takes long on the host.
GPU = resolve_target("nvidia-h200").model_copy(update={"l2_bytes": 1 << 16})
device = state()
for l2 in ("warm", "cold"):
    launches = device.launches
    progress = tvm_ext.tune(
        chain(),
        GPU,
        work_dir=folder / l2,
        effort="quick",
        trials=6,
        disabled_passes=ALONE,
        l2=l2,
    )
    assert progress.notes == [], progress.notes
    trials = read_trials(folder / l2).trials
    assert {trial.status for trial in trials} == {"ok"}, [t.message for t in trials]
    assert {trial.template for trial in trials} >= {"elementwise"}
    assert trials[0].versions["gpu"].endswith("compute capability 9.0"), trials[0].versions
    # The fake device's clock says one millisecond for all that is between two events: the calls of
    # a turn, or a single one behind an emptied cache.
    samples = {sample for trial in trials for sample in trial.samples}
    assert samples == ({1e-3} if l2 == "cold" else {1e-3 / 4}), samples
    assert device.launches - launches > 6 * 4

options = {"disabled_passes": ALONE, "records": folder / "cold", "require_records": True}
program = tvm_ext.compile(chain(), GPU, **options)
x = rand(4, 8, seed=3)
assert np.allclose(program.run({"x": x})["y"], chain_reference(x), rtol=1e-5, atol=1e-6)
print("done")

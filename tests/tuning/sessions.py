"""A session on small kernels; run as a program, one that a test can kill.

python sessions.py FOLDER TRIALS SEED
"""

import sys
from pathlib import Path

# What is there already, but for a program.
sys.path.append(str(Path(__file__).parents[1] / "shared"))

from small_kernels import add_task, matmul_task
from unoptimised import HOST

from tvm_ext.hardware.targets import compiling_for
from tvm_ext.tuning.progress import SessionProgress
from tvm_ext.tuning.session import TuningSession
from tvm_ext.tuning.session_options import Effort, Limits, SessionOptions

# Times do not matter here; limits are for a machine that is busy with something else.
QUICK = Effort(
    summary="for tests",
    trials_per_kernel=12,
    patience=1000,
    batch=4,
    confirmed=2,
    turn_seconds=0.0005,
    most_turns=4,
    cost_model="random",
)


def run_session(
    folder: Path, tasks=None, effort: Effort = QUICK, listener=None, **options
) -> SessionProgress:
    """Runs a session to its end; ``options`` are those of ``SessionOptions``."""
    tasks = [matmul_task(), add_task()] if tasks is None else tasks
    options = {"limits": Limits(300, 300, 300, 2 << 30), "trials": 24, **options}
    with compiling_for(HOST):
        session = TuningSession(
            "small",
            tasks,
            HOST,
            folder,
            lambda mod: mod,
            effort.cost_model,
            SessionOptions(effort, **options),
            {task.hash: 1e-6 for task in tasks},
            listener,
        )
        return session.run()


if __name__ == "__main__":
    run_session(Path(sys.argv[1]), trials=int(sys.argv[2]), seed=int(sys.argv[3]))

"""A session that is killed loses no finished trial, repeats none, and leaves readable files."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tvm.s_tir import meta_schedule as ms

from tvm_ext.tuning.logs.trial_log import TRIALS, read_trials

PROGRAM = Path(__file__).with_name("sessions.py")


def killed_sessions(folder: Path, kills: int, trials: int) -> None:
    """Starts a session again and again, kills it at random trials, and lets the last one end."""
    generator = random.Random(kills)
    log = folder / TRIALS
    for _ in range(kills):
        before = log.read_bytes() if log.exists() else b""
        wanted = before.count(b"\n") + generator.randrange(4)
        session = subprocess.Popen([sys.executable, PROGRAM, folder, str(trials), "0"])
        while session.poll() is None and lines_of(log) < wanted:
            time.sleep(0.01)
        # Anywhere within what it does for the next trial.
        time.sleep(generator.uniform(0.0, 0.5))
        session.kill()
        session.wait()
        after = log.read_bytes() if log.exists() else b""
        kept = before if before.endswith(b"\n") else before[: before.rfind(b"\n") + 1]
        assert after.startswith(kept), "a finished trial was lost"
    subprocess.run([sys.executable, PROGRAM, folder, str(trials), "0"], check=True)


def lines_of(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def check_folder(folder: Path, trials: int) -> None:
    found = read_trials(folder)
    searched = [(t.kernel, t.candidate) for t in found.trials if t.purpose == "search"]
    assert len(searched) == trials
    assert len(set(searched)) == trials, "a trial was measured twice"
    assert found.problems == []
    database = ms.database.JSONDatabase(work_dir=str(folder))
    assert len(database.get_all_tuning_records()) > 0
    stored = {str(record.workload.mod) for record in database.get_all_tuning_records()}
    assert len(stored) == len({kernel for kernel, _ in searched})


@pytest.mark.slow
def test_a_kill(tmp_path):
    killed_sessions(tmp_path, 1, 8)
    check_folder(tmp_path, 8)


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    # Fewer than there are schedules that the predictor does not dismiss.
    killed_sessions(tmp_path, 20, 100)
    check_folder(tmp_path, 100)

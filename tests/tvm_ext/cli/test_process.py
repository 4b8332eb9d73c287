"""The command line as a process: exit codes, streams, interrupts, and that help is cheap."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# A process that a script starts in the background ignores interrupts, and so do its children.
START = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from tvm_ext.cli.main import main
main()
"""
COMMAND = (sys.executable, "-c", START)


def run(*arguments, cwd, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        **options,
    )


def test_success_is_0_and_stdout_holds_only_json(abs_model_path, tmp_path):
    done = run("compile", abs_model_path, "-O0", "--json", "-o", "m.tvmx", cwd=tmp_path)
    assert done.returncode == 0
    assert json.loads(done.stdout)["output"] == "m.tvmx"
    assert done.stderr == ""
    assert os.listdir(tmp_path) == ["m.tvmx"]


# Refused before TVM is imported, and after that.
@pytest.mark.extended
@pytest.mark.parametrize("arguments", [("logs", "show", "gone"), ("compile",), ("nonsense",)])
def test_bad_input_is_2_and_one_line(tmp_path, arguments):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "-c" not in done.stderr


def test_help_imports_neither_tvm_nor_onnx(tmp_path):
    code = (
        "import sys\nfrom tvm_ext.cli.main import app\n"
        "try:\n    app(['run', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'tvm', 'onnx', 'numpy', 'jinja2'} & set(sys.modules)\n"
        "print(sorted(heavy), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"


@pytest.mark.extended
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_behind_stdout_is_one_line(tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "passes", "list"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the result cannot be printed")
    assert done.stderr.count("\n") == 1


@pytest.mark.extended
def test_a_reader_that_leaves_causes_no_traceback(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "passes", "list", "--json"],
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


SLOW_PASS = """
import pathlib, time

def Slow(mod):
    pathlib.Path("begun").touch()
    time.sleep(600)
    return mod
"""


@pytest.mark.extended
def test_an_interrupt_inside_of_a_pass_is_130(abs_model_path, tmp_path):
    """TVM hands the interrupt on as an error of the pass, which it must not be reported as."""
    info = tmp_path / "slow-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tvm_ext.passes]\nSlow = slow_pass:Slow\n")
    (tmp_path / "slow_pass.py").write_text(SLOW_PASS)
    process = subprocess.Popen(
        [*COMMAND, "compile", str(abs_model_path), "-o", "out.tvmx"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not (tmp_path / "begun").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (stdout, stderr) == ("", "")
    assert not (tmp_path / "out.tvmx").exists()


DROPPED = """
import os, signal, time
from tvm_ext.cli.main import remember_interrupts

class Deleted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        # Here it is raised, and dropped with "Exception ignored in".
        sum(range(1000))

signal.signal(signal.SIGINT, signal.default_int_handler)
remember_interrupts()
Deleted()
print("it was dropped", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    # One that is being handled does not come again.
    time.sleep(1.5)
    print("it came again")
"""


@pytest.mark.extended
def test_an_interrupt_that_python_drops_comes_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout == "it was dropped\nit came again\n"
    assert "KeyboardInterrupt" in done.stderr

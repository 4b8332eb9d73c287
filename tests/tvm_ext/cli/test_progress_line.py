"""What a compilation is at: told to who listens, shown on a terminal only, gone at the end."""

import os
import pty
import subprocess
import sys

import pytest
from commands import invoke
from small_models import mlp
from unoptimised import HOST

import tvm_ext
from tvm_ext.check.bisect import last_agreement
from tvm_ext.configs.progress import listening, part_of, tell

COMMAND = [sys.executable, "-c", "from tvm_ext.cli.main import main; main()"]


def test_every_phase_pass_and_kernel_is_told():
    told = []
    with listening(told.append):
        tvm_ext.compile(mlp(4), HOST)
    names = ("import", "graph passes", "lower and fuse", "schedule", "memory", "build")
    assert list(dict.fromkeys(what for what in told if what in names)) == list(names)
    assert "lower and fuse: pass LegalizeOps" in told
    for begin in ("import: node 1 of ", "schedule: pass ScheduleKernels", "build: code for "):
        assert any(what.startswith(begin) for what in told), begin
    assert any(what.startswith("schedule: kernel 1 of ") for what in told)


def test_a_part_is_told_with_what_it_is_a_part_of():
    told = []
    with part_of("nobody listens"):
        tell("nothing")
    with listening(told.append), part_of("bisection"):
        tell("build")
        with part_of("link"):
            tell("library")
    assert told == ["bisection", "bisection: build", "bisection: link", "bisection: link: library"]


def test_a_bisection_tells_how_many_steps_are_left():
    told = []
    with listening(told.append):
        assert last_agreement(9, lambda position: position < 6) == (5, 6)
    assert told[0] == "bisection, 8 steps left"
    assert len(told) == 3


def test_nobody_is_told_outside():
    told = []
    with listening(told.append):
        pass
    tell("something")
    assert told == []


@pytest.mark.slow
def test_a_terminal_shows_a_line_and_a_pipe_does_not(abs_model_path):
    arguments = [*COMMAND, "compile", str(abs_model_path), "-q", "-O", "0"]
    ours, theirs = pty.openpty()
    shown = subprocess.Popen(arguments, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    text = b""
    while True:
        try:
            read = os.read(ours, 4096)
        except OSError:  # Linux says so at the end of a terminal
            break
        if not read:
            break
        text += read
    os.close(ours)
    stdout, _ = shown.communicate()
    assert shown.returncode == 0
    assert stdout == b""
    assert any(word in text for word in (b"import", b"pass ", b"code for", b"shared library"))
    # The line is taken back: erased, and the cursor shown again.
    assert text.rstrip().endswith((b"\x1b[2K", b"\x1b[?25h")) or b"\x1b[2K" in text[-40:]
    # What is no terminal is the same within this process.
    piped = invoke("compile", abs_model_path, "-q", "-O", "0")
    assert (piped.exit_code, piped.stdout, piped.stderr) == (0, "", "")

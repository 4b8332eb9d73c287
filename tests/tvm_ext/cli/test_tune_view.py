"""The display of a running tuning session: lines, table, sizes, and streams that fail."""

import io
import re
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console
from tuning_sessions import session, tuned

from tvm_ext.cli.tune_view import TuneView, session_display, stderr_console
from tvm_ext.report.terminal_tables import shortened
from tvm_ext.tuning.progress import SessionProgress

TITLE = "resnet50.onnx  tuned for cpu"
SIZES = [(20, 2), (30, 8), (50, 12), (80, 10), (80, 24), (140, 50)]


class StandingClock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> StandingClock:
    found = StandingClock()
    monkeypatch.setattr("tvm_ext.tuning.progress.time", found)
    return found


def running(count: int = 12, **other) -> SessionProgress:
    """A session in its fourth kernel, 57 of 256 trials in."""
    fields = {"ended": None, "outcome": "", "trials_done": 57}
    found = session(count, **{**fields, **other})
    for index, kernel in enumerate(found.kernels[:-1]):
        kernel.hash = f"{index:016x}"
        kernel.state = "done" if index < 3 else "tuning" if index == 3 else "waiting"
    return found


def pipe() -> Console:
    return Console(file=io.StringIO(), force_interactive=False, width=40)


def terminal(width: int = 100, height: int = 24, stream: io.StringIO | None = None) -> Console:
    environment = {"TERM": "xterm", "COLUMNS": str(width), "LINES": str(height)}
    return Console(
        file=stream or io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        color_system="standard",
        _environ=environment,
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drawn(progress: SessionProgress, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None)
    display = session_display(progress, width, height)
    lines = console.render_lines(display, console.options, pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def _fail(view: TuneView, error: BaseException) -> None:
    view.update(running())
    raise error


# Without a terminal


def test_lines_come_at_the_start_every_minute_and_at_the_end(clock):
    console, progress = pipe(), running()
    with TuneView(console, clock.monotonic) as view:
        for seconds in (0, 1, 59, 60, 61, 119, 121):
            clock.now = 100.0 + seconds
            view.update(progress)
        progress.outcome, progress.ended, progress.trials_done = "all trials are used", 250.0, 256
        view.update(progress)
    assert view.failure is None
    default, best = progress.default_latency * 1e3, progress.best_latency * 1e3
    gain = f"{default:.2f} ms -> {best:.2f} ms ({default / best:.2f}x)"
    # 60 s for 57 trials make 209 s for the other 199, and 121 s make 422 s.
    assert written(console).splitlines() == [
        "00:00 tuning resnet50.onnx for cpu: 13 kernels, at most 256 trials, records in records",
        f"01:00 trial 57/256 · 3 of 12 kernels done · {gain} · 3 min left",
        f"02:01 trial 57/256 · 3 of 12 kernels done · {gain} · 7 min left",
        f"02:30 trial 256/256 · 3 of 12 kernels done · {gain} · all trials are used",
    ]


def test_a_budget_of_time_gives_the_time_left(clock):
    console, progress = pipe(), running(trials_planned=0, budget_seconds=300.0)
    with TuneView(console, clock.monotonic) as view:
        view.update(progress)
        clock.now += 270.0
        view.update(progress)
    assert "at most 5 min," in written(console)
    assert "04:30 trial 57 · " in written(console)
    assert "· 30 s left\n" in written(console)


def test_new_notes_are_lines_of_their_own_once(clock):
    console, progress = pipe(), running(notes=["the clock drifted"])
    with TuneView(console, clock.monotonic) as view:
        view.update(progress)
        clock.now += 60.0
        view.update(progress)
        progress.notes += ["one", "no cost model"]
    notes = [line for line in written(console).splitlines() if "note:" in line]
    assert notes == [
        "00:00 note: the clock drifted",
        "01:00 note: no cost model (and 1 other note)",
    ]


def test_a_session_that_fails_ends_with_where_it_stood(clock):
    console = pipe()
    with pytest.raises(OSError, match="disk"), TuneView(console, clock.monotonic) as view:
        _fail(view, OSError("no disk"))
    assert written(console).endswith("· stopped before its end\n")


def test_nothing_is_written_before_anything_is_known():
    console = pipe()
    with TuneView(console):
        pass
    assert written(console) == ""


def test_a_session_without_a_measured_kernel_says_no_latency(clock):
    console = pipe()
    with TuneView(console, clock.monotonic) as view:
        view.update(session(0, ended=None, outcome="", trials_done=0, trials_planned=-64))
    assert written(console).splitlines()[1:] == [
        "00:00 trial 0 · 0 of 0 kernels done · stopped before its end"
    ]
    assert view.failure is None


# On a terminal


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("count", [0, 5, 60])
def test_the_table_fits_every_terminal(width, height, count):
    lines = drawn(running(count, notes=["a note"]), width, height)
    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    # A shell's echo of Ctrl-C goes there.
    assert lines[-1] == ""


def test_a_large_terminal_shows_every_kernel_and_every_column():
    lines = drawn(running(30), 140, 50)
    assert lines[0] == TITLE
    assert lines[1].split() == [
        *("Computes", "Default", "Best", "Gain", "Trials", "Share", "State"),
    ]
    text = "\n".join(lines)
    assert all(re.search(rf" /fused_conv{index}/Conv ", text) for index in range(30))
    assert re.search(r"  gather +– +– +– +0 +– +skipped", text)  # noqa: RUF001
    assert "more:" not in text
    assert re.search(r" 2\.00 ms +1\.60 ms +1\.25x +64 +\d+\.\d % +done", text)


def test_a_small_terminal_shows_the_most_expensive_kernels_and_the_running_one():
    progress = running(60)
    progress.current = progress.kernels[45].hash
    lines = drawn(progress, 80, 15)
    rows = [line for line in lines if "_conv" in line or "/Conv" in line]
    numbers = [int(re.findall(r"conv(\d+)/", row)[0]) for row in rows]
    assert numbers == [0, 1, 2, 3, 4, 5, 6, 45]
    assert [row[0] for row in rows] == [" "] * 7 + [">"]
    assert "  53 more: 52 waiting, 1 skipped" in lines


def test_only_the_kernel_that_is_measured_is_marked():
    progress = running()
    for kernel in progress.kernels[:4]:
        kernel.state = "tuning"
    progress.current = progress.kernels[1].hash
    marked = [line for line in drawn(progress, 120, 40) if line.startswith(">")]
    assert len(marked) == 1
    assert marked[0].startswith("> /fused_conv1/Conv ")


def test_below_the_table_are_progress_latency_and_the_last_note(clock):
    clock.now += 754.0
    lines = drawn(running(notes=["first", "last"]), 100, 30)
    assert lines[-4].endswith(" 22 % · trial 57/256 · 12:34 · 44 min left")
    assert lines[-3].startswith("3 of 12 kernels done · ")
    assert lines[-2] == "! last"
    assert "first" not in "\n".join(lines)


def test_redraws_are_at_most_four_a_second(clock):
    console, progress = terminal(), running()
    with TuneView(console, clock.monotonic) as view:
        for _ in range(20):
            clock.now += 0.05
            view.update(progress)
        assert written(console).count(TITLE) == 4
        clock.now += 0.9
        view.update(progress)
        assert written(console).count(TITLE) == 5
    assert view.failure is None


def test_an_interrupt_gives_the_terminal_back(clock):
    console, stderr = terminal(), sys.stderr
    with pytest.raises(KeyboardInterrupt), TuneView(console, clock.monotonic) as view:
        _fail(view, KeyboardInterrupt())
    assert "\x1b[?25l" in written(console).split(TITLE)[0]
    assert view.failure is None
    assert sys.stderr is stderr
    after = written(console).rsplit("\x1b[?25h", 1)[1]
    assert "kernels done" in after
    assert TITLE not in after


def test_stdout_is_left_alone(clock, capsys):
    with TuneView(terminal(), clock.monotonic) as view:
        view.update(running())
        print("{}")
    assert capsys.readouterr() == ("{}\n", "")


def test_names_do_not_reach_the_terminal_as_commands():
    progress = running(0, model="m\x1b[2J.onnx", target="[red]cpu", notes=["[bold]\x1b[31m"])
    progress.kernels = [tuned("k\x1b]0;title\x07", origins=("[link=x]/a\x1b[31m/Conv",))]
    text = "\n".join(drawn(progress, 140, 30))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[link=x]/a\\x1b[31m/Conv" in text
    assert "! [bold]\\x1b[31m" in text
    assert "m\\x1b[2J.onnx  tuned for [red]cpu" in text


# Streams that fail


class Refusing(io.StringIO):
    """A stream whose reader went away."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("make", [pipe, terminal])
def test_a_closed_stream_ends_the_display_not_the_session(clock, make):
    console, progress = make(), running()
    with TuneView(console, clock.monotonic) as view:
        view.update(progress)
        console.file.close()
        clock.now += 100.0
        view.update(progress)
        view.update(progress)
        progress.trials_done += 1
    assert isinstance(view.failure, ValueError)
    assert progress.trials_done == 58


def test_a_broken_pipe_does_not_end_the_program(monkeypatch, clock):
    monkeypatch.setattr(sys, "stderr", Refusing())
    with TuneView(clock=clock.monotonic) as view:
        view.update(running())
    assert isinstance(view.failure, BrokenPipeError)


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_without_a_usable_stderr_nothing_fails(monkeypatch, capsys, stream, clock):
    if stream is not None:
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    with TuneView(clock=clock.monotonic) as view:
        view.update(running())
    assert capsys.readouterr().out == ""


def test_a_pipe_is_no_terminal_though_colours_are_forced(monkeypatch, clock):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not stderr_console().is_interactive
    with TuneView(clock=clock.monotonic) as view:
        view.update(running())
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().startswith("00:00 tuning resnet50.onnx")


# Names


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        ("/a/Conv + /a/Relu", 17, "/a/Conv + /a/Relu"),
        ("/a/Conv + /a/Relu + /a/Add", 17, "/a/Conv +2"),
        ("/encoder/layer.3/attention/query/MatMul + x", 34, "…/layer.3/…/query/MatMul +1"),
        ("/encoder/layer.3/attention/query/MatMul + x", 22, "…/layer.3/…/MatMul +1"),
        ("/encoder/layer.3/attention/query/MatMul", 10, "…/MatMul"),
        ("a_very_long_name_without_a_path", 10, "a_ve…_path"),
        ("/層/層層層層/Conv", 9, "…/Conv"),
    ],
)
def test_names_keep_what_tells_them_apart(name, width, expected):
    assert shortened(name, width) == expected
    assert cell_len(shortened(name, width)) <= width

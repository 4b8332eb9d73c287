"""The end of a tuning session: text, page with curves, and JSON."""

import io
import json
import re
import shlex

import pytest
from page_parser import Page
from rich.console import Console
from tuning_sessions import session, tuned

from tvm_ext.report import tuning_curve
from tvm_ext.report.tuning_figures import (
    figures,
    format_clock,
    format_duration,
    format_gain,
    latency_gain,
    tuning_json,
)
from tvm_ext.report.tuning_page import render_tuning_html
from tvm_ext.report.tuning_text import tuning_summary
from tvm_ext.tuning.progress import KernelProgress, SessionProgress

HOSTILE = '<script>alert("1")</script>'
FACTS = {"seed": "17", "tvm": "0.27.0.post1"}


def interrupted() -> SessionProgress:
    """A session in which one kernel was searched, one measured, one failed, one not reached."""
    kernels = [
        tuned("searched", 1e-3, 8e-4),
        tuned("measured", 5e-4, 5e-4, trials=1, failed=0, curve=[(1, 5e-4)]),
        tuned("failed", None, None, trials=4, failed=4, curve=[], best_schedule=""),
        KernelProgress("unknown", "ff" * 8),
    ]
    return session(0, kernels=kernels, outcome="interrupted", trials_done=70)


def text_of(progress: SessionProgress, width: int = 120, **other) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(tuning_summary(progress, **other))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def page_of(progress: SessionProgress) -> Page:
    return Page(render_tuning_html(progress, FACTS))


SESSIONS = {
    "full": session,
    "no kernel": lambda: session(0, kernels=[], trials_done=0, outcome=""),
    "interrupted": interrupted,
    "running": lambda: session(3, ended=None, outcome=""),
}


# Figures


def test_latency_counts_the_same_kernels_before_and_after():
    progress = interrupted()
    progress.kernels.append(tuned("no default", None, 7e-4))
    progress.kernels.append(tuned("no best yet", 2e-4, None, calls=3))
    assert progress.default_latency == pytest.approx(1e-3 + 5e-4 + 6e-4)
    assert progress.best_latency == pytest.approx(8e-4 + 5e-4 + 6e-4)
    assert latency_gain(progress) == pytest.approx(2.1 / 1.9)


def test_figures_tell_searched_kernels_from_measured_ones():
    found = figures(session(12))
    assert (found.tunable, found.done, found.searched) == (12, 12, 12)
    assert (found.improved, found.default_is_best, found.near) == (8, 4, 4)
    assert (found.untimed, found.failed, found.pruned) == (1, 36, 144)
    found = figures(interrupted())
    assert (found.searched, found.improved, found.default_is_best) == (1, 1, 0)
    assert found.untimed == 2


def test_gains_and_times_read_as_they_are():
    assert [format_gain(gain) for gain in (None, 1.0, 1.001, 1.11, 1234.5)] == [
        *("–", "1.00x", "<1.01x", "1.11x", "1,234.50x"),  # noqa: RUF001
    ]
    assert [format_clock(seconds) for seconds in (-1, 59.9, 754, 3661)] == [
        *("00:00", "00:59", "12:34", "1:01:01"),
    ]
    assert [format_duration(seconds) for seconds in (0.2, 59.4, 59.6, 3540, 3600, 4200)] == [
        *("0 s", "59 s", "1 min", "59 min", "1 h", "1 h 10 min"),
    ]


# Text


def test_summary_has_every_kernel_with_its_figures():
    text = text_of(session(12))
    for index in range(12):
        (line,) = (line for line in text.splitlines() if f"/fused_conv{index}/" in line)
        assert ("1.00x" in line) == (index % 3 == 2)
        assert re.search(r"x +64 +3 +\d+\.\d % +register tile", line)
    shares = [float(share) for share in re.findall(r"(\d+\.\d) % +register", text)]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) == 12
    assert "8 of 12 searched kernels faster" in text
    assert "4 of 12 kernels: default is the best found" in text
    assert "Not searched, skipped: a size is known only at run time (gather)" in text


def test_summary_of_a_large_model_adds_up_what_it_leaves_out():
    text = text_of(session(40))
    more = re.search(r"15 more +960 +45 +(\d+\.\d) %", text)
    assert more is not None
    shares = [float(share) for share in re.findall(r"64 +3 +(\d+\.\d) %", text)]
    assert len(shares) == 25
    assert sum(shares) + float(more[1]) == pytest.approx(100.0, abs=1.5)


def test_summary_says_what_was_not_searched_and_why_it_ended():
    text = text_of(interrupted())
    assert "Not searched, only the default was measured: 1 kernel" in text
    assert "Not searched, no schedule could be measured: 1 kernel" in text
    assert "Not searched, not reached: 1 kernel" in text
    assert re.search(r"Ended +interrupted", text)
    assert "2 kernels without a time not counted" in text


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_compile_line_survives_copying(width):
    progress = session(3, folder="my records")
    arguments = ("--target", "x86-64-v4", "--input-shape", "x=1,3,224,224")
    text = text_of(progress, width, model="a model.onnx", compile_arguments=arguments)
    assert max(map(len, text.splitlines())) <= width
    command = text.split("Compile with them")[1].replace("\\\n", " ")
    assert shlex.split(command) == [
        *("tvm-ext", "compile", "a model.onnx", "--records", "my records"),
        *arguments,
    ]


def test_the_compile_line_is_left_out_where_it_changes_nothing():
    progress = session(0, kernels=[tuned("k", 1e-3, 1e-3)])
    assert "tvm-ext compile" not in text_of(progress)
    assert "records" in text_of(progress)
    assert re.search(r"Report +out/report\.html", text_of(progress, report="out/report.html"))


@pytest.mark.parametrize("make", SESSIONS.values(), ids=SESSIONS)
@pytest.mark.parametrize("width", [40, 120])
def test_every_session_has_a_summary_that_keeps_to_the_width(make, width):
    text = text_of(make(), width)
    assert "Expected latency" in text
    assert max(map(len, text.splitlines())) <= width


def test_summary_shows_names_as_they_are():
    kernel = tuned("k", origins=("[red]/a\x1b[31m",), best_schedule="[bold]s\x1b")
    text = text_of(session(0, kernels=[kernel], notes=["[blink]\x1b"], target="[x]\x1b"))
    assert "\x1b" not in text
    for shown in ("[red]/a\\x1b[31m", "[bold]s\\x1b", "! [blink]\\x1b", "tuned for [x]\\x1b"):
        assert shown in text


# Curves


def test_a_curve_has_a_step_at_each_improvement():
    drawn = tuning_curve.curve(tuned("k", 1e-3, 8e-4))
    assert drawn is not None
    first, second, third = drawn.dots
    width = tuning_curve.RIGHT - tuning_curve.LEFT
    for dot, trial in zip(drawn.dots, (1, 9, 40), strict=True):
        assert dot.x == pytest.approx(tuning_curve.LEFT + width * trial / 64)
    assert second.y - first.y == pytest.approx(third.y - second.y)
    assert second.y > first.y
    assert first.y == drawn.default_y
    assert third.label == "trial 40: 800 µs"
    assert drawn.path == (
        f"M{first.x:.1f} {first.y:.1f}H{second.x:.1f}V{second.y:.1f}"
        f"H{third.x:.1f}V{third.y:.1f}H{tuning_curve.RIGHT:.1f}"
    )


def test_the_axes_have_round_numbers_at_the_right_places():
    drawn = tuning_curve.curve(tuned("k", 1e-3, 8e-4))
    assert drawn is not None
    assert drawn.unit == "ms"
    assert [tick.label for tick in drawn.x_ticks] == ["0", "20", "40", "60"]
    assert [tick.label for tick in drawn.y_ticks] == ["0.80", "0.85", "0.90", "0.95", "1.00"]
    assert drawn.y_ticks[0].at == pytest.approx(drawn.dots[2].y)
    assert drawn.y_ticks[-1].at == pytest.approx(drawn.default_y)


def test_far_slower_beginnings_are_cut_off_the_top():
    curve = [(1, 0.5), (2, 0.1), (5, 1.5e-3), (9, 9e-4)]
    drawn = tuning_curve.curve(tuned("k", 1e-3, 9e-4, curve=curve))
    assert drawn is not None
    assert [dot.label for dot in drawn.dots] == ["trial 5: 1.50 ms", "trial 9: 900 µs"]
    assert drawn.path.startswith(f"M{drawn.dots[0].x:.1f} {tuning_curve.TOP:.1f}V")
    assert "500 ms at trial 1" in drawn.description


def test_the_defaults_label_is_above_both_lines_where_they_are_close():
    for best, is_close in ((1.01e-3, True), (1.9e-3, False), (9e-4, False)):
        drawn = tuning_curve.curve(tuned("k", 1e-3, 1e-3, curve=[(1, 2e-3), (9, best)]))
        assert drawn is not None
        assert drawn.default_y is not None
        expected = drawn.dots[-1].y if is_close else drawn.default_y
        assert drawn.label_y == pytest.approx(expected - 5)


@pytest.mark.parametrize("curve", [[], [(1, 4e-4)], [(1, 4e-4), (3, 3.9999e-4)], [(7, 9.0)]])
@pytest.mark.parametrize("default", [None, 4e-4, 3e-9])
def test_every_curve_stays_inside_its_drawing(curve, default):
    drawn = tuning_curve.curve(tuned("k", default, None, curve=curve, trials=2))
    if not curve and default is None:
        assert drawn is None
        return
    assert drawn is not None
    heights = [dot.y for dot in drawn.dots] + [tick.at for tick in drawn.y_ticks]
    heights += [drawn.default_y] if drawn.default_y is not None else []
    assert all(tuning_curve.TOP <= y <= tuning_curve.BOTTOM for y in heights)
    assert all(tuning_curve.LEFT <= tick.at <= tuning_curve.RIGHT for tick in drawn.x_ticks)
    assert len({tick.label for tick in drawn.y_ticks}) == len(drawn.y_ticks) >= 2
    assert ("Default not measured" in drawn.description) == (default is None)


# Page


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [1, 12, 200])
def test_page_has_a_row_and_a_curve_for_each_tuned_kernel(kernels):
    progress = session(kernels)
    page = page_of(progress)
    assert page.open == []
    for kernel in progress.kernels:
        assert re.search(rf"\b{kernel.name}\b(?!/)", page.text)
    assert page.tags.count("svg") == kernels
    assert page.tags.count("circle") == 3 * kernels
    assert [kind for _, kind in _classes(page, "path")].count("default") == kernels


def _classes(page: Page, tag: str) -> list[tuple[str, str]]:
    return [(name, known.get("class", "")) for name, known in page.elements if name == tag]


def test_page_orders_kernels_by_measured_cost():
    kernels = [tuned("cheap", 1e-4), tuned("dear", 9e-3), tuned("often", 1e-3, calls=10)]
    page = page_of(session(0, kernels=kernels))
    titles = re.findall(r"/(\w+)/Conv \+", page.text)
    assert titles == ["often", "dear", "cheap"] * 2


def test_page_has_no_curve_for_kernels_that_were_not_searched():
    page = page_of(interrupted())
    assert page.tags.count("svg") == 1
    text = " ".join(page.text.split())
    assert "Only the default was measured: 1 kernel" in text
    assert "not reached: 1 kernel" in text
    assert " /searched/Conv + /searched/Relu faster " in text
    assert " /measured/Conv + /measured/Relu 1 500 µs " in text
    assert " /failed/Conv + /failed/Relu no time " in text
    assert "unknown" not in text


@pytest.mark.parametrize("make", SESSIONS.values(), ids=SESSIONS)
def test_every_session_has_a_page_that_loads_nothing(make):
    html = render_tuning_html(make(), FACTS)
    page = Page(html)
    assert page.open == []
    assert page.addresses
    for address in page.addresses:
        assert f'id="{address.removeprefix("#")}"' in html
    assert not {"link", "img", "iframe", "object", "script", "use"} & set(page.tags)
    assert not re.search(r"url\(|@import|https?:|nan|inf\b", html)


def test_page_without_kernels_says_so():
    page = page_of(session(0, kernels=[]))
    assert "No kernel was searched." in page.text
    assert "No candidate was tried." in page.text


def test_page_escapes_every_name():
    kernel = tuned(HOSTILE, hash=HOSTILE, origins=(HOSTILE, HOSTILE), reason=HOSTILE)
    kernel.best_schedule = HOSTILE
    skipped = KernelProgress(HOSTILE, HOSTILE, state="skipped", reason=HOSTILE)
    progress = SessionProgress(
        *(HOSTILE, HOSTILE, HOSTILE, [kernel, skipped]), notes=[HOSTILE], outcome=HOSTILE
    )
    page = Page(render_tuning_html(progress, {HOSTILE: HOSTILE}))
    assert "script" not in page.tags
    assert page.open == []
    # The name of the model's file is what follows its last slash.
    assert page.text.count(HOSTILE) >= 15


def test_page_shows_the_figures_of_the_session():
    progress = session(12, notes=["the clock drifted"])
    text = " ".join(page_of(progress).text.split())
    gain = progress.default_latency / progress.best_latency
    assert f"Gain {gain:.2f}x" in text
    assert "Kernels improved 8 of 12 default is the best found for 4" in text
    assert "Trials 256 at most 256 trials; 756 in all sessions; 36 failed" in text
    assert "Time 12:34 all trials were made" in text
    assert "1 note the clock drifted" in text
    assert "with default schedules; 1 kernel without a time not counted" in text
    assert "seed17" in text.replace(" ", "")
    assert "64 trials, 3 failed, 12 dismissed unbuilt; best measured again" in text


def test_a_given_fact_replaces_the_sessions_own():
    text = Page(render_tuning_html(session(1), {"target": "AVX2, 2 cores"})).text
    assert "targetAVX2, 2 cores" in text
    assert "Targetcpu" not in text
    assert "Targetcpu" in page_of(session(1)).text


# JSON


def test_json_has_the_session_and_each_kernel():
    values = json.loads(json.dumps(tuning_json(session(12), FACTS), allow_nan=False))
    assert values["facts"] == FACTS
    assert values["seconds"] == 754.0
    assert values["gain"] == pytest.approx(
        values["default_latency_seconds"] / values["best_latency_seconds"]
    )
    assert (values["kernels_improved"], values["kernels_searched"]) == (8, 12)
    assert len(values["kernels"]) == 13
    kernel = next(k for k in values["kernels"] if k["name"] == "fused_conv0")
    assert kernel["gain"] == pytest.approx(1.25)
    assert kernel["best_seconds"] == pytest.approx(1.6e-3)
    assert kernel["curve"][1] == {"trial": 9, "best_seconds": pytest.approx(1.8e-3)}
    skipped = values["kernels"][-1]
    assert skipped["state"] == "skipped"
    assert skipped["default_seconds"] is None
    assert skipped["gain"] is None


@pytest.mark.parametrize("make", SESSIONS.values(), ids=SESSIONS)
def test_every_session_has_json_without_numbers_that_json_lacks(make):
    progress = make()
    for kernel in progress.kernels:
        kernel.spread = float("inf")
    values = json.loads(json.dumps(tuning_json(progress, {}), allow_nan=False))
    assert [kernel["spread"] for kernel in values["kernels"]] == [None] * len(progress.kernels)
    if not progress.kernels:
        assert values["gain"] is None


def test_page_and_json_have_versions_beside_the_facts():
    versions = {"tvm": "0.27.0", "python": "3.12"}
    page = " ".join(
        Page(render_tuning_html(session(1), {"CPU": "x, 2 cores"}, versions)).text.split()
    )
    assert "tvm 0.27.0 python 3.12" in page
    assert "CPUx, 2 cores" in page
    assert tuning_json(session(1), FACTS, versions)["versions"] == versions


def test_page_folds_curves_of_kernels_whose_default_is_the_best():
    html = render_tuning_html(session(12), FACTS)
    assert "Nothing faster than the default was found: 4 kernels" in html
    before, folded = html.split('<details class="quiet">')
    assert (before.count("<svg"), folded.count("<svg")) == (8, 4)
    assert "<code>" not in re.sub(r"<details.*?</details>", "", html, flags=re.DOTALL)

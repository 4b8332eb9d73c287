"""A profile's derived figures, and its text, page, JSON and trace."""

import json
import re
from dataclasses import replace

import pytest
from page_parser import Page

from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.report.profile import CallCost, CallTime, Peaks, Profile
from tvm_ext.report.profile_text import renderable
from tvm_ext.report.terminal_tables import plain_text

HOSTILE = "<script>alert(1)</script>"
# Of 30 us: 10 modelled, 12 at the peak of arithmetic, 6 at that of memory.
COST = CallCost(
    flops=6e6,
    bytes=3e5,
    modelled_microseconds=10.0,
    flops_microseconds=12.0,
    bytes_microseconds=6.0,
)
PEAKS = Peaks(flops=5e11, bytes=5e10, source="as target cpu is described, not measured")


def call(kernel: str, *origins: str, begun: float, lasted: float, **other) -> CallTime:
    fields = {
        "calls": 1,
        "microseconds": lasted - 1,
        "cost": COST,
        "schedule": f"{kernel} schedule",
    }
    return CallTime(
        kernel=kernel, origins=origins, begun=begun, lasted=lasted, **{**fields, **other}
    )


CALLS = (
    call("conv", "a/Conv + a/Relu", begun=1.0, lasted=31.0),
    call("soft", "b/Softmax", begun=33.0, lasted=11.0),
    call("conv", "c/Conv + c/Relu", begun=45.0, lasted=31.0),
    call("soft", "b/Softmax", begun=77.0, lasted=11.0),
)
PROFILE = Profile(
    model="net",
    target="cpu",
    opt_level="O3",
    inputs=("x: float32[1, 3]",),
    repeat=10,
    run_microseconds=75.0,
    calls=CALLS,
    traced_microseconds=90.0,
    peaks=PEAKS,
)
HOST = call("host ZipMap", "zip", begun=88.0, lasted=3.0, cost=None, schedule="host")
HOSTED = replace(PROFILE, calls=(*CALLS, HOST))
UNKNOWN = replace(PROFILE, calls=(replace(CALLS[0], cost=None), *CALLS[1:]))


def test_calls_are_summed_by_kernel():
    conv, soft = PROFILE.kernels
    assert (conv.kernel, conv.calls, conv.microseconds) == ("conv", 2, 60.0)
    assert conv.origins == ("a/Conv + a/Relu", "c/Conv + c/Relu")
    assert conv.modelled_microseconds == 20.0
    assert conv.gflops == pytest.approx(12e6 / 60e-6 / 1e9)
    assert conv.gbs == pytest.approx(6e5 / 60e-6 / 1e9)
    assert (conv.flops_share, conv.bytes_share) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (soft.calls, soft.microseconds, soft.origins) == (2, 20.0, ("b/Softmax",))
    assert PROFILE.kernel_microseconds == 80.0


def test_calls_are_summed_by_nodes():
    assert [(time.origins, time.kernels, time.microseconds) for time in PROFILE.nodes] == [
        (("a/Conv + a/Relu",), ("conv",), 30.0),
        (("c/Conv + c/Relu",), ("conv",), 30.0),
        (("b/Softmax",), ("soft",), 20.0),
    ]


def test_kernels_of_two_parts_with_one_name_stay_apart():
    calls = (CALLS[0], replace(CALLS[2], part=1))
    assert [kernel.calls for kernel in replace(PROFILE, calls=calls).kernels] == [1, 1]


def test_one_unknown_call_leaves_the_sum_unknown():
    conv, _ = UNKNOWN.kernels
    assert conv.cost is conv.gflops is conv.flops_share is conv.modelled_microseconds is None
    assert UNKNOWN.total.modelled_microseconds is None
    assert UNKNOWN.unknown_calls == 1


def test_steps_on_the_host_are_no_kernels():
    assert HOSTED.kernel_microseconds == 80.0
    assert HOSTED.total.modelled_microseconds == 40.0
    assert HOSTED.unknown_calls == 0
    assert HOSTED.to_dict()["host_microseconds"] == 2.0
    assert "On the host" in HOSTED.to_text()


def test_json_has_everything():
    data = json.loads(PROFILE.to_json())
    assert data["kernel_microseconds"] == 80.0
    assert data["modelled_microseconds"] == 40.0
    assert data["peaks"] == {"flops": 5e11, "bytes": 5e10, "source": PEAKS.source}
    first = data["kernels"][0]
    assert first["origins"] == ["a/Conv + a/Relu", "c/Conv + c/Relu"]
    assert (first["flops"], first["flops_share"]) == (12e6, pytest.approx(0.4))
    assert data["nodes"][2]["kernels"] == ["soft"]


def test_text_keeps_measured_and_modelled_apart():
    lines = PROFILE.to_text(120).splitlines()
    facts = dict(re.split(r" {2,}", line, maxsplit=1) for line in lines[1:9] if "  " in line)
    assert facts["One run"] == "75.0 µs  (median of 10 runs, measured without a hook)"
    assert facts["Kernels"] == "80.0 µs  (4 calls; the hook adds time to each)"
    assert facts["Estimated latency"] == "40.0 µs  (modelled, not measured)"
    assert facts["Arithmetic"] == "300 GFLOP/s  (60.0 % of the peak, 500 GFLOP/s in float32)"
    assert facts["Memory"] == "15.0 GB/s  (30.0 % of the peak, 50.0 GB/s outside of caches)"
    (row,) = [re.split(r" {2,}", line.strip()) for line in lines if "a/Conv" in line]
    assert row[1:] == (
        ["conv schedule", "2", "60.0 µs", "75.0 %", "20.0 µs", "200.0", "40.0 %", "10.0", "20.0 %"]
    )


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_kernel_is_one_line_of_any_terminal(width):
    long = "/model/layers.17/attention/" + "x" * 80
    calls = tuple(replace(one, kernel=one.kernel * 30, origins=(f"{long}{i}",))
                  for i, one in enumerate(CALLS))  # fmt: skip
    profile = replace(HOSTED, calls=calls)
    for names in (False, True):
        text = plain_text(renderable(profile, shown=1, verbose=names), width)
        assert max(map(len, text.splitlines())) <= width
        assert len([line for line in text.splitlines() if "schedule" in line or "…" in line]) == 1
        assert ("Kernel " in text) is names
        assert "1 more" in text


def test_page_is_self_contained_and_escaped():
    profile = replace(
        PROFILE, model=HOSTILE, calls=(replace(CALLS[0], origins=(HOSTILE,)), *CALLS[1:])
    )
    page = Page(profile.to_html())
    assert page.open == []
    assert all(address.startswith("#") for address in page.addresses)
    assert page.tags.count("script") == 1
    assert HOSTILE in page.text
    for words in ("60.0 % of the peak", "40.0 % of peak", "200.0 GFLOP/s", "it is not divided"):
        assert words in " ".join(page.text.split())
    assert "modelled" in page.text


def test_page_says_what_is_not_known():
    text = " ".join(Page(UNKNOWN.to_html()).text.split())
    assert "Here the run decides the sizes of 1 call." in text
    assert "Not known" not in Page(HOSTED.to_html()).text


def test_trace_has_one_complete_event_a_call():
    trace = json.loads(HOSTED.to_trace())
    events = trace["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    run, *calls = complete
    assert (run["ts"], run["dur"]) == (0.0, 90.0)
    assert [(event["ts"], event["dur"]) for event in calls] == [
        (one.begun, one.lasted) for one in HOSTED.calls
    ]
    assert all(run["ts"] <= event["ts"] for event in calls)
    names = {
        event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"
    }
    assert [names[event["tid"]] for event in calls] == ["kernels"] * 4 + ["steps on the host"]
    assert {event["ph"] for event in events} == {"M", "X"}
    first = calls[0]
    assert first["name"] == "a/Conv + a/Relu"
    assert first["args"]["kernel"] == "conv"
    assert first["args"]["schedule"] == "conv schedule"
    assert first["args"]["modelled, us"] == 10.0
    # The rate of this very call, not of the median.
    assert first["args"]["GFLOP/s"] == pytest.approx(6e6 / 31e-6 / 1e9)
    assert calls[-1]["args"]["modelled, us"] is None


def test_files_are_written_whole_or_not_at_all(tmp_path):
    PROFILE.save_html(tmp_path / "p.html")
    PROFILE.save_trace(tmp_path / "t.json")
    assert (tmp_path / "p.html").read_text() == PROFILE.to_html()
    assert json.loads((tmp_path / "t.json").read_text()) == json.loads(PROFILE.to_trace())
    for save in (PROFILE.save_html, PROFILE.save_trace):
        with pytest.raises(OutputPathError):
            save(tmp_path / "none" / "p")

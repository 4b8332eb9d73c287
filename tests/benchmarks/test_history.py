"""What counts as slower, on synthetic results."""

import json

import history
import pytest

from tvm_ext.errors import InputError


def report(ratios, spread=0.01, date="2026-11-29T10:00:00+00:00", cpu="AMD EPYC", wrong=()):
    """The JSON of ``cpu.py``: ours takes 1 ms, ONNX Runtime as many as the ratio says."""
    models = [
        {
            "name": name,
            "programs": {
                "tvm_ext": {"milliseconds": 1.0, "spread": spread, "wrong": name in wrong},
                "onnxruntime": {"milliseconds": ratio, "spread": spread, "wrong": False},
            },
        }
        for name, ratio in ratios.items()
    ]
    versions = {"tvm_ext": "0.1.0", "onnxruntime": "1.32.0", "openvino": "2026.4"}
    machine = {"summary": f"this machine: {cpu}"}
    return {
        "date": date, "threads": 2, "machine": machine, "versions": versions, "models": models
    }  # fmt: skip


BEFORE = {"a": 1.0, "b": 2.0, "c": 1.5}


@pytest.fixture
def kept(tmp_path):
    """A history with one run."""
    history.add(report(BEFORE), tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("now", "spread", "code"),
    [
        (BEFORE, 0.01, 0),
        # Within 5 %, whatever the spread.
        ({**BEFORE, "b": 1.92}, 0.0, 0),
        ({**BEFORE, "b": 1.8}, 0.01, 1),
        # The same fall, in runs of which each varies by a tenth.
        ({**BEFORE, "b": 1.8}, 0.1, 0),
        # No spread excuses a third.
        ({**BEFORE, "b": 1.3}, 0.5, 1),
        # Each within its bound, and all of them together not.
        ({"a": 0.96, "b": 1.92, "c": 1.44}, 0.01, 1),
        ({"a": 2.0, "b": 4.0, "c": 3.0}, 0.01, 0),
    ],
)
def test_what_fails(kept, now, spread, code):
    assert history.check(report(now, spread), kept) == code


def test_a_verdict_says_how_far_a_ratio_fell(kept, capsys):
    assert history.check(report({**BEFORE, "b": 1.0}), kept) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("beside 0.1.0-2026-11-29.json of amd-epyc-2-threads")
    assert "SLOWER  b: 2.00 -> 1.00  (-50.0 %, allowed -5.0 %)" in lines


def test_a_wrong_answer_fails_where_a_right_one_was(kept, capsys):
    assert history.check(report(BEFORE, wrong=["c"]), kept) == 1
    assert "WRONG   c" in capsys.readouterr().out


def test_models_that_were_not_measured_are_not_judged(kept):
    assert history.check(report({"a": 1.0}), kept) == 0
    with pytest.raises(InputError, match="no model in common"):
        history.check(report({"other": 1.0}), kept)


def test_another_machine_has_a_history_of_its_own(kept, capsys):
    assert history.check(report({"a": 0.1}, cpu="Another (R) CPU"), kept) == 0
    assert "nothing is kept of another-r-cpu-2-threads" in capsys.readouterr().out


def test_the_newest_run_is_the_one_that_counts(kept):
    history.add(report({"a": 3.0}, date="2026-12-01T10:00:00+00:00"), kept)
    history.add(report({"a": 9.0}, date="2026-10-01T10:00:00+00:00"), kept)
    assert history.newest(kept, "amd-epyc-2-threads").models["a"].ratio == 3.0


def test_an_entry_is_read_as_it_was_written(kept):
    entry = history.entry_of(report(BEFORE))
    assert history.newest(kept, entry.machine_class) == entry


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps(report({}))])
def test_other_files_are_refused_in_one_line(tmp_path, text, capsys):
    path = tmp_path / "new.json"
    path.write_text(text)
    assert history.main(["check", str(path), "--history", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("history.py: error: ")
    assert error.count("\n") == 1


def test_the_entries_of_the_project_can_be_read():
    for path in history.FOLDER.glob("*/*.json"):
        entry = history.read_entry(path)
        assert (path.parent.name, path.name) == (entry.machine_class, entry.file_name)

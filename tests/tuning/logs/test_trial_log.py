"""A line of the log: written, read back, refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from record_folders import failed_trial, trial

from tvm_ext.tuning.logs.trial_log import FORMAT, NewerTrialError, TrialLineError, parse_trial

SECONDS = st.floats(1e-12, 1e6)


def line(**changes) -> str:
    data = json.loads(trial().to_line()) | changes
    return json.dumps({key: value for key, value in data.items() if value is not ...})


@pytest.mark.parametrize("one", [trial(), failed_trial(8, "timeout", "c" * 16)])
def test_round_trip(one):
    text = one.to_line()
    assert "\n" not in text
    assert parse_trial(text) == one


@pytest.mark.slow
@given(
    seconds=SECONDS,
    samples=st.lists(SECONDS, max_size=3),
    message=st.text(),
    decisions=st.dictionaries(st.text(), st.integers(-(2**63), 2**63 - 1), max_size=3),
)
@settings(max_examples=15, deadline=None)
def test_every_value_comes_back(seconds, samples, message, decisions):
    one = trial(seconds=seconds, samples=samples, message=message, decisions=decisions)
    assert parse_trial(one.to_line()) == one


def test_keys_of_later_versions_are_ignored():
    assert parse_trial(line(mood="good", nested={"a": [1]})) == trial()


def test_keys_with_a_default_may_be_missing():
    assert parse_trial(line(seed=..., device=..., samples=...)).device == "local"


def test_a_newer_format():
    with pytest.raises(NewerTrialError, match=rf"format {FORMAT + 1}, of a newer tvm-ext"):
        parse_trial(line(format=FORMAT + 1))
    # Nothing else about it is judged.
    with pytest.raises(NewerTrialError):
        parse_trial('{"format": 99}')


@pytest.mark.parametrize("found", [..., 0, -1, "1", None, 1.0])
def test_no_format(found):
    with pytest.raises(TrialLineError, match=r"format .*this version reads 1 to") as caught:
        parse_trial(line(format=found))
    assert not isinstance(caught.value, NewerTrialError)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("run", 3),
        ("kernel", "xyz"),
        ("kernel", "A" * 16),
        ("candidate", ...),
        ("origins", "MatMul"),
        ("origins.1", ["MatMul", 3]),
        ("decisions.rows", {"rows": "4"}),
        ("decisions.rows", {"rows": 4.0}),
        ("target", None),
        ("versions.tvm", {"tvm": 27}),
        ("status", "fine"),
        ("purpose", "fun"),
        ("seconds", "1e-6"),
        ("seconds", 0),
        ("seconds", -1.0),
        ("samples.1", [1.0, 0.0]),
        ("is_default", 1),
        ("time", None),
    ],
)
def test_wrong_types_name_the_key(key, value):
    with pytest.raises(TrialLineError, match=rf"^key '{key}': "):
        parse_trial(line(**{key.split(".")[0]: value}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "an empty line"),
        ("  ", "an empty line"),
        ("[1]", "a list, not an object"),
        ("3", "a int, not an object"),
        ("{", "not JSON"),
        (trial().to_line()[:-9], "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"format": 1, "seconds": NaN}', "not JSON"),
        ('{"format": 1, "seconds": 1e999}', "not JSON"),
        ('{"format": 1, "run": "\\ud800"}', "not JSON"),
    ],
)
def test_lines_that_hold_none(text, words):
    with pytest.raises(TrialLineError, match=words):
        parse_trial(text)


def test_infinite_times_are_not_written():
    with pytest.raises(ValidationError, match="seconds"):
        trial(seconds=float("inf"))
    with pytest.raises(ValueError, match="JSON"):
        trial(spread=float("nan")).to_line()


@pytest.mark.parametrize(
    ("changes", "is_measured"),
    [({}, True), ({"seconds": None}, False), ({"status": "modelled"}, False)],
)
def test_what_is_measured(changes, is_measured):
    found = trial(**changes)
    assert found.is_measured is is_measured
    assert found.is_modelled is (found.status == "modelled")
    assert found.is_timed is (found.is_measured or found.is_modelled)

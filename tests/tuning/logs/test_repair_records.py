"""Records that TVM does not read, each of which goes to a side file with its reason."""

import json

import pytest
from record_folders import insert_line, lines_of, opened, side_lines, standard_records, write_folder
from thoroughness import one_in

from tvm_ext.tuning.logs.database_files import RECORDS, WORKLOADS
from tvm_ext.tuning.logs.record_folder import repair_folder, side_file
from tvm_ext.tuning.logs.trial_log import TRIALS


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "records")


def changed_record(line, **parts):
    """A record's line with another trace, seconds, target or arguments."""
    number, body = json.loads(line)
    for place, name in enumerate(("trace", "seconds", "target", "arguments")):
        body[place] = parts.get(name, body[place])
    return json.dumps([parts.get("workload", number), body])


def of_primitives(*instructions, decisions=()):
    return [list(map(list, instructions)), list(map(list, decisions))]


BAD_RECORDS = {
    "nothing": (lambda good: "", "an empty line"),
    "spaces": (lambda good: "   ", "an empty line"),
    "words": (lambda good: "no record at all", "not JSON"),
    "nulls of a file system": (lambda good: "\0" * 64, "not JSON"),
    "deep": (lambda good: "[" * 200_000, "not JSON"),
    "another value": (lambda good: "null", "expected [workload's line, record]"),
    "half": (lambda good: good[:40], "not JSON"),
    "two joined": (lambda good: good + good, "not JSON"),
    "a workload too far": (lambda good: changed_record(good, workload=7), "there are 2"),
    "a workload below": (lambda good: changed_record(good, workload=-1), "does not exist"),
    "a truth": (lambda good: changed_record(good, workload=True), "expected [workload's line"),
    "not a number": (lambda good: changed_record(good, seconds=[float("nan")]), "NaN"),
    "too large": (lambda good: good.replace("3e-06", "1e999"), "1e999 is too large"),
    "huge": (lambda good: changed_record(good, seconds=[10**400]), "expected [trace, seconds"),
    "no time": (lambda good: changed_record(good, seconds=[0.0]), "not above zero"),
    "no target": (lambda good: changed_record(good, target=None), "no target"),
    "a strange target": (
        lambda good: changed_record(good, target={"kind": "abacus"}),
        "TVM cannot read it or apply it",
    ),
    "an escape": (
        lambda good: good.replace('"product"', '"pr\\u006fduct"'),
        "which TVM does not read",
    ),
    "a strange primitive": (
        lambda good: changed_record(good, trace=of_primitives(["Juggle", [], [], []])),
        "TVM cannot read it or apply it",
    ),
    "a block of another kernel": (
        lambda good: good.replace('"product"', '"quotient"'),
        "TVM cannot read it or apply it",
    ),
    "no trace": (lambda good: changed_record(good, trace=None), "no pair of instructions"),
    # The next ones end TVM with a segmentation fault or a division by zero.
    "a null": (
        lambda good: good.replace('["product","main"]', '[null,"main"]'),
        "it holds a null",
    ),
    "a decision for nothing": (
        lambda good: changed_record(good, trace=of_primitives(decisions=[[-1, 1]])),
        "instruction -1 of 0",
    ),
    "tiles of size zero": (
        lambda good: changed_record(
            good,
            trace=of_primitives(
                ["GetSBlock", [], ["product", "main"], ["b0"]],
                ["GetLoops", ["b0"], [], ["l1", "l2", "l3"]],
                ["SamplePerfectTile", ["l1"], [2, 16], ["v4", "v5"]],
                decisions=[[2, [4, 0]]],
            ),
        ),
        "no list of sizes",
    ),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", BAD_RECORDS)
@pytest.mark.parametrize("number", one_in(3, [1, 3, 5], pytest.mark.extended))
def test_a_bad_record_goes_aside_and_the_rest_stays(folder, name, number):
    damage, reason = BAD_RECORDS[name]
    bad = damage(lines_of(folder, RECORDS)[0])
    insert_line(folder, RECORDS, number, bad)
    log = (folder / TRIALS).read_bytes()
    (problem,) = repair_folder(folder)
    assert (problem.file, problem.line) == (folder / RECORDS, number)
    assert reason in problem.reason
    assert "\n" not in str(problem)
    assert opened(folder) == standard_records()
    assert side_lines(folder / RECORDS) == [{"line": number, "reason": problem.reason, "text": bad}]
    assert (folder / TRIALS).read_bytes() == log
    assert not side_file(folder / WORKLOADS).exists()
    assert repair_folder(folder) == []

"""Targets that are the same machine have the same key."""

import pytest
import tvm
from record_folders import OTHER_TARGET, TARGET

from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tuning.logs.database_files import target_key, target_text
from tvm_ext.tuning.logs.summary import target_filter

BASE = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4", "num-cores": 8}
GPU = {"kind": "cuda", "arch": "sm_90a", "max_threads_per_block": 1024}


@pytest.mark.parametrize(
    "notes",
    [
        {"tag": "my-machine"},
        {"keys": ["cpu", "x86"]},
        {"host": {"kind": "llvm", "mcpu": "znver2"}},
        {"feature.has_avx512": True},
    ],
)
def test_notes_do_not_count(notes):
    assert target_key(BASE | notes) == target_key(BASE)
    assert target_key(GPU | notes) == target_key(GPU)


@pytest.mark.parametrize(
    "other",
    [
        {"kind": "c"},
        {"mtriple": "aarch64-linux-gnu"},
        {"mcpu": "znver5"},
        {"mattr": ["+amx-tile"]},
        {"num-cores": 16},
        {"fast-math": True},
    ],
)
def test_what_changes_code_or_time_counts(other):
    assert target_key(BASE | other) != target_key(BASE)


def test_the_order_of_attributes_and_features_does_not_count():
    turned = dict(reversed(BASE.items()))
    assert target_key(BASE | {"mattr": ["+a", "-b"]}) == target_key(
        turned | {"mattr": ["-b", "+a"]}
    )


def test_gpus_differ_by_their_limits():
    assert target_key(GPU) != target_key(GPU | {"max_threads_per_block": 512})
    assert target_key(GPU) != target_key(GPU | {"arch": "sm_80"})


@pytest.mark.parametrize("target", [TARGET, OTHER_TARGET, tvm.target.Target("cuda")])
def test_a_target_that_tvm_reads_back_keeps_its_key(target):
    again = tvm.target.Target(dict(target.export()))
    assert target_key(dict(again.export())) == target_key(dict(target.export()))


def test_names_for_people():
    assert target_text(BASE) == "znver4, 8 cores"
    assert target_text({"kind": "llvm", "num-cores": 1}) == "llvm, 1 core"
    assert target_text(GPU) == "cuda sm_90a"


def test_a_filter_takes_a_known_name_or_a_part_of_what_is_shown():
    here = dict(resolve_target("cpu").tvm_target().export())
    assert target_filter(None)(BASE)
    assert target_filter("cpu")(here)
    assert not target_filter("cpu")(BASE | {"num-cores": 77})
    assert target_filter("ZNVER")(BASE)
    assert target_filter("8 cores")(BASE)
    assert not target_filter("znver5")(BASE)

"""The presets of effort and their files."""

import re

import pytest
from pydantic import ValidationError

from tvm_ext.configs.errors import TuningError
from tvm_ext.configs.loader import config_folder
from tvm_ext.tuning.session_options import Effort, effort_names, load_effort

NAMES = ["quick", "standard", "thorough"]
SETTING = re.compile(r"^(\w+) *=", re.MULTILINE)


def test_the_least_effort_first():
    assert effort_names() == NAMES
    efforts = [load_effort(name) for name in NAMES]
    for key in ("trials_per_kernel", "patience", "confirmed", "turn_seconds", "most_turns"):
        values = [getattr(effort, key) for effort in efforts]
        assert values == sorted(values), key
    assert len({effort.summary for effort in efforts}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_presets_make_sense(name):
    effort = load_effort(name)
    assert effort.patience < effort.trials_per_kernel
    assert effort.confirmed <= effort.batch <= effort.trials_per_kernel


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_explained(name):
    """Each group of lines that set keys has a comment above it."""
    text = (config_folder("efforts") / f"{name}.toml").read_text("utf-8")
    assert set(SETTING.findall(text)) == set(Effort.model_fields)
    for group in text.strip().split("\n\n"):
        assert group.startswith("# "), group
        assert SETTING.search(group)


@pytest.mark.parametrize("name", ["quik", "", "../efforts/quick", "quick.toml", "_quick"])
def test_names_that_are_none(name):
    with pytest.raises(TuningError, match=rf"unknown effort '{re.escape(name)}'"):
        load_effort(name)


def test_the_nearest_name_is_offered():
    with pytest.raises(TuningError, match="'standard'"):
        load_effort("standart")


@pytest.mark.parametrize(
    ("key", "value"),
    [("patience", 0), ("batch", 1.5), ("turn_seconds", 0.0), ("most_turns", 3), ("trails", 8)],
)
def test_values_that_are_none(key, value):
    values = load_effort("quick").model_dump() | {key: value}
    with pytest.raises(ValidationError, match=key):
        Effort.model_validate(values)

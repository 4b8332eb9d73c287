"""Picks targets by what a user types."""

from collections.abc import Callable, Mapping
from typing import Any

from tvm_ext.hardware.errors import TargetError
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tuning.target_key import target_key, target_text

TargetFilter = Callable[[Mapping[str, Any]], bool]


def target_filter(text: str | None) -> TargetFilter:
    """Whether a target is the one that is meant; None means every one.

    A name that ``resolve_target`` knows is that machine; any other text is a part of the name that
    lists of records show, such as "znver4". Raises ConfigError for a .toml file that is not valid.
    """
    if text is None:
        return lambda target: True
    try:
        wanted = target_key(dict(resolve_target(text).tvm_target().export()))
    except TargetError:
        part = text.lower()
        return lambda target: part in target_text(target).lower()
    return lambda target: target_key(target) == wanted

"""All cases of a parametrised test compiled as one model, side by side.

Most of the time of a model of one operator goes to what every model takes: passes, linking.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
import pytest
from random_numbers import start_anew
from thoroughness import ALL_CASES
from unoptimised import HOST

import tvm_ext

Arrays = Mapping[str, np.ndarray]


class _Asked(Exception):
    """Ends a case that has come to the model that it runs."""


class _Case:
    """One case: the model that it asks for, and later what that gives."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.proto: onnx.ModelProto | None = None
        self.feeds: Arrays = {}
        self.level = ""
        self.outputs: dict[str, np.ndarray] | None = None

    def run(self, proto: onnx.ModelProto, feeds: Arrays, level: str) -> dict[str, np.ndarray]:
        """Notes what is asked for the first time; answers that the second time."""
        if self.proto is None:
            self.proto, self.feeds, self.level = proto, feeds, level
            raise _Asked
        if self.outputs is None or (proto, level) != (self.proto, self.level):
            return _run(proto, feeds, level)
        outputs, self.outputs = self.outputs, None
        return outputs


_current: _Case | None = None


def run_model(proto: onnx.ModelProto, feeds: Arrays, level: str = "O3") -> dict[str, np.ndarray]:
    """Compiles a model and runs it; below ``in_one_model``, together with those of other cases."""
    return _run(proto, feeds, level) if _current is None else _current.run(proto, feeds, level)


def in_one_model(test: Callable[..., None]) -> Callable[[], None]:
    """Makes one test of a parametrised one, of models without functions and parameters alone.

    Each case runs up to its first ``run_model``, all models are compiled as one, and each case runs
    once more with what its part gives. A failure begins with the values of its case.
    """

    def together() -> None:
        cases = [(values, _Case(label)) for label, values in _cases(test)]
        for values, case in cases:
            with _running(case):
                test(**values)
                raise AssertionError("expected a call of run_model")
        groups: dict[Any, list[_Case]] = defaultdict(list)
        for _, case in cases:
            opsets = sorted((one.domain, one.version) for one in case.proto.opset_import)
            groups[case.level, case.proto.ir_version, tuple(opsets)].append(case)
        for group in groups.values():
            _run_side_by_side(group)
        for values, case in cases:
            with _running(case):
                test(**values)

    together.__name__, together.__doc__ = test.__name__, test.__doc__
    together.__module__ = test.__module__
    kept = [mark for mark in _marks(test) if mark.name != "parametrize"]
    together.pytestmark = kept
    return together


def _run(proto: onnx.ModelProto, feeds: Arrays, level: str) -> dict[str, np.ndarray]:
    return dict(tvm_ext.compile(proto, HOST, opt_level=level).run(feeds))


def _marks(test: Callable[..., None]) -> list[pytest.Mark]:
    return list(getattr(test, "pytestmark", []))


def _cases(test: Callable[..., None]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The values of each case with words for them; slow ones if all cases are asked for."""
    axes = []
    for mark in _marks(test):
        if mark.name == "parametrize":
            names, values = mark.args
            names = re.split(r",\s*", names) if isinstance(names, str) else names
            axes.append([_named(names, one) for one in values])
    for parts in itertools.product(*axes):
        if None not in parts:
            values = {name: one for part in parts for name, one in part.items()}
            yield ", ".join(f"{name}={one!r}" for name, one in values.items()), values


def _named(names: list[str], values: Any) -> dict[str, Any] | None:
    """Values by their names; None for a case that is left out because it is slow."""
    if getattr(values, "marks", ()) and not ALL_CASES:
        return None
    if hasattr(values, "marks"):
        values = values.values
    elif len(names) == 1:
        values = (values,)
    return dict(zip(names, values, strict=True))


@contextmanager
def _running(case: _Case) -> Iterator[None]:
    """One case, with data as if it were a test of its own, and its label on what it raises."""
    global _current
    start_anew(0)
    _current = case
    try:
        yield
    except _Asked:
        pass
    except Exception as error:
        raise AssertionError(f"{case.label}: {error}") from error
    finally:
        _current = None


def _run_side_by_side(cases: list[_Case]) -> None:
    """Fills in the outputs; where the models fail together, the first one that fails alone."""
    feeds = {
        f"case{place}_{name}": array
        for place, case in enumerate(cases)
        for name, array in case.feeds.items()
    }
    try:
        results = _run(_side_by_side([case.proto for case in cases]), feeds, cases[0].level)
    except Exception:
        for case in cases:
            with _running(case):
                _run(case.proto, case.feeds, case.level)
        raise
    for place, case in enumerate(cases):
        names = [output.name for output in case.proto.graph.output]
        case.outputs = {name: results[f"case{place}_{name}"] for name in names}


def _side_by_side(protos: list[onnx.ModelProto]) -> onnx.ModelProto:
    """One model of all of them; each has names and sizes of its own."""
    whole = onnx.ModelProto()
    for place, proto in enumerate(protos):
        assert not proto.functions
        prefix = f"case{place}_"
        part = onnx.compose.add_prefix(proto, prefix)
        for info in (*part.graph.input, *part.graph.output, *part.graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = prefix + dim.dim_param
        if not place:
            whole.CopyFrom(part)
            continue
        for field in ("node", "input", "output", "initializer", "value_info"):
            getattr(whole.graph, field).extend(getattr(part.graph, field))
    return whole

"""All cases of a parametrised test compiled as one model, side by side.

Most of the time of a model of one operator goes to what every model takes: passes, linking.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from random_numbers import start_anew
from thoroughness import ALL_CASES
from unoptimised import HOST

import tvm_ext

Arrays = Mapping[str, np.ndarray]


class _Asked(BaseException):
    """Ends a case that has come to a model that is not compiled yet; no test catches it."""


class _Model:
    """A model that a case asks for, and later the program that computes it with others."""

    def __init__(self, proto: onnx.ModelProto, feeds: Arrays, level: str) -> None:
        self.proto, self.feeds, self.level = proto, feeds, level
        self.run: Callable[[Arrays], dict[str, np.ndarray]] | None = None


class _Case:
    """One case with the models that it has asked for so far."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.models: list[_Model] = []

    def run(self, proto: onnx.ModelProto, feeds: Arrays, level: str) -> dict[str, np.ndarray]:
        """Notes what is asked for the first time; answers that from then on."""
        for one in self.models:
            if one.run and (one.proto, one.level) == (proto, level):
                return one.run(feeds)
        asked = onnx.ModelProto()
        asked.CopyFrom(proto)
        self.models.append(_Model(asked, feeds, level))
        raise _Asked


_current: _Case | None = None


def run_model(proto: onnx.ModelProto, feeds: Arrays, level: str = "O3") -> dict[str, np.ndarray]:
    """Compiles a model and runs it; below ``in_one_model``, together with those of other cases."""
    return _run(proto, feeds, level) if _current is None else _current.run(proto, feeds, level)


class _Program:
    """What ``program`` gives below ``in_one_model``."""

    def __init__(self, case: _Case, proto: onnx.ModelProto, level: str) -> None:
        self._case, self._proto, self._level = case, proto, level

    def run(self, feeds: Arrays) -> dict[str, np.ndarray]:
        return self._case.run(self._proto, feeds, self._level)


def program(proto: onnx.ModelProto, level: str = "O3") -> Any:
    """A model that is compiled once and run with several feeds; as ``run_model`` otherwise."""
    if _current is None:
        return tvm_ext.compile(proto, HOST, opt_level=level)
    return _Program(_current, proto, level)


def in_one_model(test: Callable[..., None]) -> Callable[[], None]:
    """Makes one test of a parametrised one, of models without functions and parameters alone.

    Each case runs up to its first ``run_model``, all models are compiled as one, and each case runs
    once more with what its part gives: to its end, or to its next model, which is compiled together
    with the next ones of the others. A failure begins with the values of its case.
    """

    def together() -> None:
        running = [(values, _Case(label)) for label, values in _cases(test)]
        while running:
            for values, case in running:
                with _running(case):
                    test(**values)
                    assert case.models, "expected a call of run_model"
            running = [(values, case) for values, case in running if not case.models[-1].run]
            groups: dict[Any, list[_Case]] = defaultdict(list)
            for _, case in running:
                asked = case.models[-1]
                opsets = sorted((one.domain, one.version) for one in asked.proto.opset_import)
                groups[asked.level, asked.proto.ir_version, tuple(opsets)].append(case)
            for group in groups.values():
                _compile_side_by_side(group)

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


def _compile_side_by_side(cases: list[_Case]) -> None:
    """Gives the last model of each case its program; where they fail, the first that fails alone.

    Each run computes all of them: the others with what they were fed first.
    """
    models = [case.models[-1] for case in cases]
    first = {
        f"case{place}_{name}": array
        for place, one in enumerate(models)
        for name, array in one.feeds.items()
    }
    try:
        whole = _side_by_side([one.proto for one in models])
        compiled = tvm_ext.compile(whole, HOST, opt_level=models[0].level)
        compiled.run(first)
    except Exception:
        for case, one in zip(cases, models, strict=True):
            with _running(case):
                _run(one.proto, one.feeds, one.level)
        raise

    def run_part(place: int, feeds: Arrays) -> dict[str, np.ndarray]:
        own = {f"case{place}_{name}": array for name, array in feeds.items()}
        results = compiled.run(first | own)
        names = [output.name for output in models[place].proto.graph.output]
        return {name: results[f"case{place}_{name}"] for name in names}

    for place, one in enumerate(models):
        one.run = partial(run_part, place)


def _side_by_side(protos: list[onnx.ModelProto]) -> onnx.ModelProto:
    """One model of all of them; each has names and sizes of its own."""
    whole = onnx.ModelProto()
    whole.CopyFrom(protos[0])
    for field in ("node", "input", "output", "initializer", "value_info"):
        whole.graph.ClearField(field)
    for place, proto in enumerate(protos):
        assert not proto.functions
        part = onnx.GraphProto()
        part.CopyFrom(proto.graph)
        _put_before_names(part, f"case{place}_")
        for field in ("node", "input", "output", "initializer", "value_info"):
            getattr(whole.graph, field).extend(getattr(part, field))
    return whole


def _put_before_names(graph: onnx.GraphProto, prefix: str) -> None:
    """All names of values, nodes and sizes, also in bodies, where outer ones are read.

    That of ``onnx.compose`` leaves the names of stored values that bodies alone read.
    """
    for info in (*graph.input, *graph.output, *graph.value_info):
        info.name = prefix + info.name
        for dim in info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ():
            if dim.dim_param:
                dim.dim_param = prefix + dim.dim_param
    for stored in graph.initializer:
        stored.name = prefix + stored.name
    for node in graph.node:
        node.name = node.name and prefix + node.name
        for names in (node.input, node.output):
            names[:] = [name and prefix + name for name in names]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _put_before_names(attribute.g, prefix)

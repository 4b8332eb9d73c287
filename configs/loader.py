"""Reads TOML files into pydantic models, with one-line errors that name the file and the key."""

import pathlib
import sys
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tvm_ext.configs.errors import ConfigError, nearest_hint

if sys.version_info >= (3, 11):
    from importlib.resources.abc import Traversable

    import tomllib
else:
    from importlib.abc import Traversable

    import tomli as tomllib

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

ModelT = TypeVar("ModelT", bound=BaseModel)


class ConfigModel(BaseModel):
    """Base of what a configuration file holds: read-only, no unknown keys, no type guessing."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


def config_folder(name: str) -> Traversable:
    """The folder ``name`` ("targets", "pipelines") among this package's own configuration files."""
    return files("tvm_ext.configs") / name


def load_toml(source: str | pathlib.Path | Traversable, model: type[ModelT]) -> ModelT:
    """Read ``source`` and return it as an instance of ``model``, usually a :class:`ConfigModel`.

    Raises :class:`ConfigError`, one line, if the file cannot be read, is not TOML, or does not fit.
    """
    return check_config(read_toml(source), model, _name_of(source))


def read_toml(source: str | pathlib.Path | Traversable) -> dict[str, Any]:
    """The content of a TOML file. Raises :class:`ConfigError` if it cannot be read or parsed."""
    path = pathlib.Path(source) if isinstance(source, str) else source
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(
            f"cannot read {source}: {reason}; expected a TOML file: check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{_name_of(source)} is not valid TOML: {_one_line(str(error))}; correct that line"
        ) from error


def check_config(data: Mapping[str, Any], model: type[ModelT], file_name: str) -> ModelT:
    """Validate ``data``, read from ``file_name``, against ``model``.

    Raises :class:`ConfigError` for the first problem; a misspelt key comes before the missing key
    that it causes, since it is what the reader has to change.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
        message = _describe(problems[0], model, file_name)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ConfigError(message + more) from error


def _describe(problem: "ErrorDetails", model: type[BaseModel], file_name: str) -> str:
    *section, key = problem["loc"] or ("",)
    place = f"[{'.'.join(map(str, section))}] of {file_name}" if section else file_name
    if problem["type"] == "extra_forbidden":
        known = _known_keys(model, section)
        return f"unknown key '{key}' in {place}; {nearest_hint(str(key), known)}"
    if problem["type"] == "missing":
        return f"missing key '{key}' in {place}; add it"
    if problem["type"] == "value_error":
        subject = f"key '{key}' in {place}" if key else place
        return f"{subject}: {_one_line(str(problem['ctx']['error']))}"
    found = problem["input"]
    expected = _one_line(problem["msg"]).removeprefix("Input should be ")
    return f"key '{key}' in {place} is {found!r} ({type(found).__name__}); expected {expected}"


def _known_keys(model: type[BaseModel], section: Iterable[int | str]) -> list[str]:
    for part in section:
        # A list index or the key of a free-form table is no field: the model stays the same.
        field = model.model_fields.get(str(part))
        if field is not None:
            model = _model_inside(field.annotation) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_inside(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation if issubclass(annotation, BaseModel) else None
    inner = (_model_inside(argument) for argument in get_args(annotation))
    return next((model for model in inner if model is not None), None)


def _name_of(source: str | pathlib.Path | Traversable) -> str:
    return pathlib.Path(source).name if isinstance(source, str) else source.name


def _one_line(text: str) -> str:
    return " ".join(text.split())


# Types of the numbers in a description.


Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]

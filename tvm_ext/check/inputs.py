"""Inputs of runs: random ones to check a model with, those of a file, zeros; values as files."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tvm_ext.configs.atomic_file import replacing
from tvm_ext.configs.errors import nearest_hint
from tvm_ext.errors import InputError, own_words
from tvm_ext.model_inputs import numpy_type
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.tensor_spec import STRING, TensorSpec, example_size

# Types that NumPy's format lacks: bfloat16 and its like, and strings as objects.
_STORED = {"V": np.dtype(np.float32), "O": np.dtype(np.str_)}


# Inputs and outputs as JSON, for what NumPy's formats have no place for.


def read_values(path: Path, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    """The inputs in a JSON file: an object of nested lists by name, objects for maps.

    Raises
    ------
    InputError
        The file cannot be read, or a value is not of its input's type.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read ({error}); expected JSON: write an object of lists by name"
        ) from error
    if not isinstance(found, dict):
        raise InputError(
            f"{path} does not hold a JSON object; expected one with a value for each input name"
        )
    known = {spec.name: spec for spec in specs}
    return {name: _read(known.get(name), value, path) for name, value in found.items()}


def _read(spec: TensorSpec | None, value: Any, path: Path) -> Any:
    if spec is None:
        return value
    try:
        if not spec.is_tensor:
            return _of_kind(spec.dtype, value)
        if spec.dtype == STRING:
            return np.array(value, object)
        dtype = numpy_type(spec.dtype)
        # Only NumPy's own types read "inf" and "nan".
        return np.array(value, np.float64 if dtype.kind == "V" else dtype).astype(dtype)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: the value of input '{spec.name}' cannot be read ({error}); expected "
            f"{spec.describe()}: write lists, objects for maps, null for an empty optional"
        ) from error


def _of_kind(kind: str, value: Any) -> Any:
    """A value of a type that is spelled as ONNX Runtime does."""
    name, _, rest = kind.partition("(")
    inner = rest.removesuffix(")")
    if name == "optional":
        return None if value is None else _of_kind(inner, value)
    if name == "seq":
        return [_of_kind(inner, one) for one in value]
    if name == "map":
        key, _, element = inner.partition(",")
        texts = "string" in element
        return {
            (one if key == "string" else int(one)): (number if texts else float(number))
            for one, number in value.items()
        }
    from tvm_ext.onnx_frontend.signature import element_dtype

    return np.array(value, element_dtype(inner))


def values_as_json(values: Mapping[str, Any]) -> str:
    """Outputs as JSON: lists for arrays, text for numbers that JSON lacks."""
    plain = {name: _plain(value) for name, value in values.items()}
    return json.dumps(plain, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(
            value.astype(np.float32).tolist() if value.dtype.kind == "V" else value.tolist()
        )
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    return value


def write_values(path: Path, values: Mapping[str, Any]) -> None:
    """Writes outputs by name, as JSON where the file's name ends so, else as ``write_npz``.

    Raises
    ------
    InputError
        A sequence or a map would have to go into an archive of arrays.
    OutputPathError
        The file cannot be written; an older one is then as it was.
    """
    if path.suffix == ".json":
        with replacing(path) as file:
            file.write(values_as_json(values).encode())
        return
    for name, value in values.items():
        if not isinstance(value, np.ndarray):
            raise InputError(
                f"output '{name}' is a {type(value).__name__}, which {path} cannot hold; expected "
                "arrays: save to a .json file"
            )
    write_npz(path, values)


def write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays by name; types that NumPy's format lacks (bfloat16, float8) as float32.

    Raises
    ------
    OutputPathError
        The file cannot be written; an older one is then as it was.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        # np.savez takes names as Python keywords: an output called "file" would not do.
        for name, array in arrays.items():
            known = array.astype(_STORED[array.dtype.kind]) if array.dtype.kind in "VO" else array
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, known, allow_pickle=False)
    with replacing(path) as file:
        file.write(buffer.getbuffer())


# Of what ``write_inputs`` writes.
INPUT_ENDINGS = (".npz", ".json")


def write_inputs(path: Path, values: Mapping[str, Any]) -> Path | None:
    """Writes inputs to a file that ``load_inputs`` reads; None, and no file, where there are none.

    The file is called like ``path`` and ends in ``.npz``, or in ``.json`` where an input is no
    array or of a type that NumPy's format lacks.

    Raises
    ------
    OutputPathError
        The file cannot be written; an older one is then as it was.
    """
    if not values:
        return None
    known = all(isinstance(one, np.ndarray) and one.dtype.kind != "V" for one in values.values())
    written = path.with_suffix(INPUT_ENDINGS[0 if known else 1])
    write_values(written, values)
    return written


# Sizes of symbolic dimensions when none are given: a batch of one, and more than one of whatever
# comes after it, so that an axis that is summed, shifted or broadcast shows.
DEFAULT_BATCH = 1
DEFAULT_SIZE = 16
# Sides of a picture: most networks halve them four or five times.
DEFAULT_SIDE = 64
_COLOURS = (1, 3, 4)


def random_inputs(
    specs: Sequence[TensorSpec], seed: int = 0, sizes: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """One array a spec, the same for the same seed.

    Floating-point values are drawn from the standard normal distribution, booleans evenly, uint8
    (pixels and bytes) evenly from 0 to 255. All other integers are 0 or 1: these are right as a
    mask, as an index into any axis of two, and as a token of any vocabulary. Strings are short
    words. An integer that means a length, a sample rate or a size cannot be guessed: give such
    inputs in a file.

    Parameters
    ----------
    specs : sequence of TensorSpec
        ``CompiledModel.inputs``.
    seed : int
        Seed of NumPy's default generator.
    sizes : mapping of symbolic dimension to size, optional
        Others are ``DEFAULT_BATCH`` when first met on axis 0, ``DEFAULT_SIDE`` in pictures (one,
        three or four channels, first or last), else ``DEFAULT_SIZE``, or the nearest size that the
        model allows.

    Raises
    ------
    InputError
        A size is not positive or its dimension is not in the model, or a dtype has no values here.
    """
    known = _checked_sizes(specs, sizes or {})
    generator = np.random.default_rng(seed)
    arrays = {}
    for spec in specs:
        shape = []
        length = DEFAULT_SIDE if _is_picture(spec) else DEFAULT_SIZE
        ranges = spec.ranges or (None,) * len(spec.shape)
        for axis, (size, allowed) in enumerate(zip(spec.shape, ranges, strict=True)):
            if isinstance(size, str):
                usual = length if axis else DEFAULT_BATCH
                if allowed is not None:
                    usual = allowed.nearest(usual)
                size = known.setdefault(size, usual)
            shape.append(size)
        arrays[spec.name] = _draw(spec, tuple(shape), generator)
    return arrays


def _is_picture(spec: TensorSpec) -> bool:
    return len(spec.shape) == 4 and (spec.shape[1] in _COLOURS or spec.shape[3] in _COLOURS)


def load_inputs(path: str | Path, specs: Sequence[TensorSpec] = ()) -> dict[str, Any]:
    """The values of a file: ``.npz``, ``.json``, a folder of ``<input name>.npy``, or one ``.npy``.

    Parameters
    ----------
    path : str or Path
        An ``.npz`` names its arrays as the inputs are named.
    specs : sequence of TensorSpec
        The model's inputs. A single ``.npy`` goes to the only input, whatever the file is called;
        without specs, to the input that the file is named after.

    Raises
    ------
    InputError
        There is no such file, it is not one of NumPy's, it holds no arrays, or it is a single
        array and the model has several inputs.
    """
    path = Path(path)
    if path.is_dir():
        found = {file.stem: _load_array(file) for file in sorted(path.glob("*.npy"))}
        if not found:
            raise InputError(f"{path} holds no .npy file; expected <input name>.npy for each input")
        return found
    if not path.exists():
        raise InputError(
            f"{path}: no such file; expected an .npz, a .json, an .npy or a folder of .npy"
        )
    if path.suffix == ".npz":
        return _load_archive(path)
    if path.suffix == ".json":
        return read_values(path, specs)
    if path.suffix != ".npy":
        raise InputError(
            f"{path} ends in '{path.suffix}'; expected .npz, .json, .npy or a folder of .npy: "
            "write it with numpy.savez(path, **inputs)"
        )
    if len(specs) > 1:
        names = ", ".join(spec.name for spec in specs)
        raise InputError(
            f"{path} holds one array and the model has {len(specs)} inputs ({names}); expected "
            "all of them: write an .npz with numpy.savez(path, **inputs)"
        )
    return {specs[0].name if specs else path.stem: _load_array(path)}


def inputs_for(
    specs: Sequence[TensorSpec],
    given: Mapping[str, Any] | Path | None,
    seed: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The inputs that were given, those of the file, or random ones; see the two above."""
    if isinstance(given, Path):
        return load_inputs(given, specs)
    return dict(given) if given is not None else random_inputs(specs, seed, sizes)


def _checked_sizes(specs: Sequence[TensorSpec], sizes: Mapping[str, int]) -> dict[str, int]:
    symbols = {size for spec in specs for size in spec.shape if isinstance(size, str)}
    for name, size in sizes.items():
        if name not in symbols:
            raise InputError(f"no input has a dimension '{name}'; {nearest_hint(name, symbols)}")
        if size < 1:
            raise InputError(f"size {size} was given for dimension '{name}'; expected at least 1")
    return dict(sizes)


def _draw(spec: TensorSpec, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if spec.dtype == "bfloat16":
        return generator.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
    try:
        dtype = np.dtype(spec.dtype)
    except TypeError:
        dtype = np.dtype(object)
    draw = _DRAWS.get(dtype.kind)
    if draw is None:
        raise InputError(
            f"random values cannot be made for {spec.describe()}; expected numbers or booleans: "
            "give this input in a file"
        )
    drawn = draw(generator, shape, dtype)
    return np.asarray(drawn, object if dtype.kind == "U" else dtype)


def _integers(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    return np.asarray(generator.integers(0, 256 if dtype == np.uint8 else 2, shape))


# Strings: words that can be read as numbers or be told apart by their case.
_WORDS = ("a", "B", "word", "two words", "1")

_DRAWS: dict[str, Callable[[np.random.Generator, tuple[int, ...], np.dtype], np.ndarray]] = {
    "f": lambda generator, shape, _dtype: np.asarray(generator.standard_normal(shape)),
    "i": _integers,
    "u": _integers,
    "U": lambda generator, shape, _dtype: generator.choice(np.array(_WORDS, object), shape),
    "b": lambda generator, shape, _dtype: np.asarray(generator.integers(0, 2, shape)),
}


def _load_array(path: Path) -> np.ndarray:
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, error) from error


def _load_archive(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error
    if not found:
        raise InputError(f"{path} holds no arrays; expected one under the name of each input")
    return found


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = own_words(error) or "it is damaged, of another format, or holds Python objects"
    return InputError(
        f"{path} cannot be read ({reason}); expected arrays of numbers in NumPy's format: write "
        "it with numpy.savez(path, **inputs)"
    )


# A run on zeros before the first one that a user waits for.
#
# It leaves code, weights, threads and, for the sizes that it takes, storage where a run finds
# them.


# Modelled time of a run, up to which a model is run ahead.
_SECONDS = 0.25


def zeros_to_run(
    inputs: Sequence[TensorSpec], report: CompileReport
) -> dict[str, np.ndarray] | None:
    """Inputs of a run ahead; None where it would take long, or could end in another way than well.

    Symbolic sizes are those that models of the kind usually have: one element of a batch, an image,
    a short text. Sizes that several inputs could contradict each other in are not guessed.
    """
    graph = report.graph
    if (report.seconds_of_run or 0.0) >= _SECONDS or graph.has_control_flow:
        return None
    if graph.may_divide_by_zero or graph.sizes_from_data:
        return None
    shapes = [_usual_shape(spec) for spec in inputs]
    guessed = {size for spec in inputs for size in spec.shape[1:] if isinstance(size, str)}
    if len(inputs) > 1 and len(guessed) > 1:
        return None
    found = {}
    for spec, shape in zip(inputs, shapes, strict=True):
        if shape is None:
            return None
        found[spec.name] = np.zeros(shape, numpy_type(spec.dtype))
    return found


def _usual_shape(spec: TensorSpec) -> list[int] | None:
    """Sizes to run with; None for signals, videos and the like, whose sizes nobody can guess."""
    ranges = spec.ranges or (None,) * len(spec.shape)
    rank = len(spec.shape)
    sizes: list[int] = []
    for axis, (size, allowed) in enumerate(zip(spec.shape, ranges, strict=True)):
        # Of texts, which are integers, and of images the usual size is known.
        is_signal = axis > 0 and rank != 4 and "int" not in spec.dtype
        if allowed is not None and allowed.has_end:
            sizes.append(allowed.low)
        elif isinstance(size, str) and is_signal:
            return None
        else:
            usual = example_size(size, axis, rank)
            sizes.append(usual if allowed is None else allowed.nearest(usual))
    return sizes

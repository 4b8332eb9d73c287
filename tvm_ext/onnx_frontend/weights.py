"""Weights of a model: external data in files, NaN, digests, and models without them."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import Error as ProtobufError
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from tvm_ext.configs.atomic_file import replacing
from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.onnx_graph import graphs_within, names_read, nodes_within

_CHUNK_BYTES = 1 << 20

# NaN in weights, which a damaged training or a damaged file leaves behind.
#
# Elsewhere NaN is a value like others: imputers look for it, and models mark with it what is
# missing.


_FLOATS = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
)

# Operators that add up products with a weight: one NaN spreads over whole rows of results.
_PRODUCTS = frozenset(
    {
        *("Attention", "BatchNormalization", "Conv", "ConvTranspose", "DeformConv", "Einsum"),
        *("FusedConv", "FusedGemm", "FusedMatMul", "GRU", "Gemm", "GroupNormalization"),
        *("InstanceNormalization", "LSTM", "LayerNormalization", "MatMul", "RNN"),
        *("RMSNormalization", "SimplifiedLayerNormalization"),
    }
)
# Operators that only move the elements of a weight.
_MOVES = frozenset(
    {
        *("Cast", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose"),
        "Unsqueeze",
    }
)


def refuse_nan_weights(graph: onnx.GraphProto, label: str) -> None:
    """Checks what products read, bodies of If, Loop and Scan included.

    Raises
    ------
    ModelError
        A stored tensor of floats that a product reads holds NaN.
    """
    weights: set[str] = set()
    # From the last node to the first: what a moved weight was made from is one too.
    for node in reversed(list(nodes_within(graph))):
        if node.op_type in _PRODUCTS:
            weights.update(names_read(node))
        elif node.op_type in _MOVES and not weights.isdisjoint(node.output):
            weights.update(node.input[:1])
    for name, tensor in _stored_tensors(graph):
        if name in weights and tensor.data_type in _FLOATS:
            refuse_nan(numpy_helper.to_array(tensor), name, label)


def _stored_tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Initializers and Constant nodes with their names, bodies of If, Loop and Scan included."""
    for inner in graphs_within(graph):
        for tensor in inner.initializer:
            yield tensor.name, tensor
        for node in inner.node:
            for attr in node.attribute:
                if node.op_type == "Constant" and attr.name == "value":
                    yield node.output[0], attr.t


def refuse_nan(values: np.ndarray, name: str, label: str) -> None:
    """Raises ModelError where a stored tensor of floats holds NaN."""
    bad = int(np.count_nonzero(np.isnan(values.astype(np.float32, copy=False))))
    if bad:
        raise ModelError(
            f"{label}: stored tensor '{name}' holds {bad} NaN of {values.size} values; "
            "expected numbers: every output would be NaN, so export the trained weights again"
        )


# Somewhat less than protobuf takes, since preparation adds nodes and shapes.
WHOLE_BYTES = 1_900_000_000
# Smaller tensors (shapes, scales, tables) are loaded: their values decide how nodes are converted.
LARGE_BYTES = 1 << 20


@dataclass
class StoredWeights:
    """Tensors in files in the model's folder, by name; none for a model that fits a message."""

    folder: Path = Path()
    tensors: dict[str, TensorProto] = field(default_factory=dict)

    def read(self, tensor: TensorProto) -> np.ndarray:
        """The values of a tensor in this folder.

        Raises
        ------
        ModelError
            The file is missing, too short or outside of the folder, or holds NaN.
        """
        label = str(self.folder)
        try:
            values = numpy_helper.to_array(tensor, label)
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise ModelError(
                f"{label}: stored tensor '{tensor.name}' cannot be read; expected all of its "
                "values in a file in the model's folder: copy that file there"
            ) from error
        if values.dtype.kind == "f":
            refuse_nan(values, tensor.name, label)
        return values


def folder_of_data(model: onnx.ModelProto, folder: Path) -> Path:
    """The folder that the files of external data are read from; that of the model itself but once.

    Elsewhere a link may lead to files that are nobody's weights, and is refused. In Hugging Face's
    cache every file is one: ``snapshots/REVISION/NAME`` leads to ``blobs/HASH`` beside
    ``snapshots``. Where all files of a model's data are such links, their tensors get the names
    that these have in ``blobs``, and this is the folder.
    """
    blobs = _blobs_of_cache(folder)
    tensors = [tensor for tensor in _all_tensors(model) if _is_external(tensor)]
    if blobs is None or not tensors:
        return folder
    names = {}
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                file = folder / entry.value
                if not file.is_symlink() or file.resolve().parent != blobs:
                    return folder
                names[entry.value] = file.resolve().name
    for tensor in tensors:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = names[entry.value]
    return blobs


def _blobs_of_cache(folder: Path) -> Path | None:
    for parent in folder.absolute().parents:
        if parent.name == "snapshots" and (parent.parent / "blobs").is_dir():
            return (parent.parent / "blobs").resolve()
    return None


def take_out_large_weights(model: onnx.ModelProto, folder: Path) -> StoredWeights:
    """Makes inputs of the large external initializers of a model that is above the limit."""
    stored = StoredWeights(folder)
    sizes = {t.name: _bytes(t) for t in model.graph.initializer if _is_external(t)}
    # What a model holds takes protobuf half a second to count for 100 MB.
    if not sizes or sum(sizes.values()) + model.ByteSize() < WHOLE_BYTES:
        return stored
    declared = {value.name for value in model.graph.input}
    kept = []
    for tensor in model.graph.initializer:
        if sizes.get(tensor.name, 0) < LARGE_BYTES:
            kept.append(tensor)
            continue
        stored.tensors[tensor.name] = TensorProto.FromString(tensor.SerializeToString())
        if tensor.name not in declared:
            shape = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(shape)
    copies = [TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
    del model.graph.initializer[:]
    model.graph.initializer.extend(copies)
    return stored


@contextmanager
def without_large_values(graph: onnx.GraphProto) -> Iterator[None]:
    """Inside of it, large initializers have a type and a shape but no values.

    For what looks at shapes only, and is handed the model as a message that holds all of it.
    """
    large = [one for one in graph.initializer if len(one.raw_data) >= LARGE_BYTES]
    values = [one.raw_data for one in large]
    for tensor in large:
        tensor.ClearField("raw_data")
    try:
        yield
    finally:
        for tensor, value in zip(large, values, strict=True):
            tensor.raw_data = value


def put_back(graph: onnx.GraphProto, stored: StoredWeights) -> None:
    """Turns the inputs that were taken for weights into initializers again, without values."""
    inputs = [value for value in graph.input if value.name not in stored.tensors]
    if len(inputs) == len(graph.input):
        return
    copies = [onnx.ValueInfoProto.FromString(value.SerializeToString()) for value in inputs]
    weights = [stored.tensors[v.name] for v in graph.input if v.name in stored.tensors]
    del graph.input[:]
    graph.input.extend(copies)
    graph.initializer.extend(weights)


# What a model is, in few bytes.


def model_digest(model: str | Path | onnx.ModelProto) -> str | None:
    """SHA-256 of a model, of its weights in other files too, and of its file's name.

    None where a file cannot be read, is no binary one or cannot be parsed, or where the model is in
    memory and its weights are elsewhere or above 2 GiB.
    """
    digest = hashlib.sha256()
    try:
        if isinstance(model, onnx.ModelProto):
            content, folder = model.SerializeToString(deterministic=True), None
        else:
            path = Path(model)
            if path.suffix != ".onnx" or not path.is_file():
                return None
            content, folder = path.read_bytes(), path.parent
            digest.update(path.name.encode("utf-8", errors="replace"))
        digest.update(hashlib.sha256(content).digest())
        # The word is in every description of weights in another file.
        for name in _files_of_data(content) if b"location" in content else ():
            if folder is None or not _is_file_within(folder, name):
                return None
            digest.update(file_digest(folder / name))
    except (OSError, ValueError, ProtobufError):
        return None
    return digest.hexdigest()


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file; raises OSError where it cannot be read."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.digest()


def _is_file_within(folder: Path, name: str) -> bool:
    """Whether it is a file, and no device or pipe, that a model in ``folder`` may read."""
    given = Path(name)
    return not given.is_absolute() and ".." not in given.parts and (folder / given).is_file()


def _files_of_data(content: bytes) -> list[str]:
    model = onnx.ModelProto.FromString(content)
    external = (tensor for tensor in _all_tensors(model) if _is_external(tensor))
    return sorted({ExternalDataInfo(tensor).location for tensor in external})


def write_model(model: onnx.ModelProto, path: Path) -> None:
    """Writes a model whole or not at all; above 2 GB its large tensors go to ``<name>.data``.

    These lose their values in ``model`` then.

    Raises
    ------
    OutputPathError
        A file cannot be written.
    """
    tensors = model.graph.initializer
    if sum(_bytes(tensor) for tensor in tensors) < WHOLE_BYTES:
        with replacing(path) as file:
            file.write(model.SerializeToString())
        return
    data = path.with_name(f"{path.name}.data")
    with replacing(path) as file, replacing(data) as weights:
        for tensor in tensors:
            if len(tensor.raw_data) >= LARGE_BYTES:
                onnx.external_data_helper.set_external_data(
                    tensor, data.name, weights.tell(), len(tensor.raw_data)
                )
                weights.write(tensor.raw_data)
                tensor.ClearField("raw_data")
        file.write(model.SerializeToString())


def _is_external(tensor: TensorProto) -> bool:
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def _bytes(tensor: TensorProto) -> int:
    """What the tensor declares; a type without a size in NumPy counts as one byte an element."""
    try:
        size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except KeyError:
        size = 1
    return math.prod(max(int(extent), 0) for extent in tensor.dims) * size


# A model without its weights: what is left shows how it is built, not what it has learned.


# Integers of so many elements are sizes, axes, pads and permutations, which decide what a model is
# converted to; so are a few floating-point numbers: scales of a Resize, an epsilon.
KEPT_INTEGERS = 64
KEPT_NUMBERS = 8
# A message of protobuf's holds 2 GB.
_LARGEST_BYTES = 1 << 30


def without_weights(path: Path) -> onnx.ModelProto:
    """The model of a file with ones for its weights.

    Integers and truth values of at most ``KEPT_INTEGERS`` elements and other numbers of at most
    ``KEPT_NUMBERS`` keep their values, and so do integer attributes. Many different texts are
    numbered; documentation and metadata are left out. All names stay.

    Raises
    ------
    ModelError
        The file cannot be read as a model, or is too large even so.
    """
    try:
        model = onnx.load_model(path, load_external_data=False)
    except Exception as error:
        raise ModelError(
            f"{path} cannot be read as an ONNX model; expected a serialised ModelProto: describe "
            "the file instead"
        ) from error
    folder = folder_of_data(model, path.parent)
    tensors = list(_all_tensors(model))
    if sum(4 * _elements(tensor) for tensor in tensors) > _LARGEST_BYTES:
        raise ModelError(
            f"{path} has more than {_LARGEST_BYTES >> 30} GiB of weights, too many to replace in "
            "one file; expected a smaller model: describe it instead"
        )
    for tensor in tensors:
        _replace(tensor, folder)
    for attribute in _attributes(model):
        _replace_lists(attribute)
    _forget_texts(model)
    return model


def _all_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Initializers and tensors of attributes, those of functions and bodies included."""
    for graph in _graphs(model):
        yield from graph.initializer
    for attribute in _attributes(model):
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The graph and the bodies in it."""
    yield model.graph
    for attribute in _attributes(model):
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _attributes(model: onnx.ModelProto) -> Iterator[onnx.AttributeProto]:
    """All attributes, those of functions and bodies included."""
    waiting = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    while waiting:
        for attribute in waiting.pop().attribute:
            yield attribute
            waiting += attribute.g.node
            waiting += [node for graph in attribute.graphs for node in graph.node]


def _elements(tensor: TensorProto) -> int:
    return int(np.prod([max(int(size), 0) for size in tensor.dims], dtype=object))


def _replace(tensor: TensorProto, folder: Path) -> None:
    """Fills a tensor with ones, unless it is small; a small one is then inside of the model."""
    kept = KEPT_INTEGERS if tensor.data_type in _INTEGERS else KEPT_NUMBERS
    if _elements(tensor) <= kept and tensor.data_location != TensorProto.EXTERNAL:
        return
    shape = list(tensor.dims)
    if tensor.data_type == TensorProto.STRING:
        values = np.array([f"text {i}" for i in range(_elements(tensor))], object).reshape(shape)
    elif _elements(tensor) <= kept:
        values = numpy_helper.to_array(tensor, str(folder))
    else:
        values = np.ones(shape, helper.tensor_dtype_to_np_dtype(tensor.data_type))
    new = numpy_helper.from_array(values, tensor.name)
    new.data_type = tensor.data_type
    tensor.CopyFrom(new)


def _replace_lists(attribute: onnx.AttributeProto) -> None:
    if len(attribute.floats) > KEPT_NUMBERS:
        count = len(attribute.floats)
        del attribute.floats[:]
        attribute.floats.extend([1.0] * count)
    # The modes of a tree's nodes are a few words again and again; labels are many.
    if len(set(attribute.strings)) > KEPT_NUMBERS:
        texts = [f"text {i}".encode() for i in range(len(attribute.strings))]
        del attribute.strings[:]
        attribute.strings.extend(texts)


def _forget_texts(model: onnx.ModelProto) -> None:
    model.ClearField("doc_string")
    model.ClearField("metadata_props")
    for function in model.functions:
        function.ClearField("doc_string")
    for graph in _graphs(model):
        graph.ClearField("doc_string")
        graph.ClearField("metadata_props")
        for node in graph.node:
            node.ClearField("doc_string")
            node.ClearField("metadata_props")
    for function in model.functions:
        for node in function.node:
            node.ClearField("doc_string")


_INTEGERS = frozenset(
    {
        *(TensorProto.BOOL, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32),
        *(TensorProto.INT64, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32),
        TensorProto.UINT64,
    }
)

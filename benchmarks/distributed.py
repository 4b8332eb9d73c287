"""One model on several processes of one thread each, beside one process of one thread.

The models are a decoder of Llama's form (its prompt, "prefill"), a layer of a BERT and a ResNet-18,
all with random weights. Both programs take turns. A ratio above 1 says how many times as fast
several processes are. The second ratio is of processor time, that of the device that takes most, so
that other programs on the same cores do not count: it leaves out what devices wait for each other
asleep. The bytes are those of a run beside the plan's.

    python benchmarks/distributed.py
    python benchmarks/distributed.py --models llama --devices 2 --turns 15
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from llama_model import LlamaForm, llama_model
from onnx import TensorProto, helper, numpy_helper

import tvm_ext
from tvm_ext.distributed.sharded_model import ShardedModel
from tvm_ext.report.units import format_bytes

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("examples", "tests/shared")]

_LAYERS, _LENGTH = 2, 256


def llama() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Two layers of 1,024 channels, and prompts of 256 tokens behind a first one."""
    form = LlamaForm(
        layers=_LAYERS, hidden=1024, heads=16, shared_heads=4, intermediate=2816, vocabulary=4096
    )
    numbers = np.random.default_rng(0)
    inputs: dict[str, np.ndarray] = {
        "input_ids": numbers.integers(0, form.vocabulary, (2, _LENGTH)),
        "attention_mask": np.ones((2, 1 + _LENGTH), np.int64),
        "position_ids": np.tile(np.arange(1, 1 + _LENGTH), (2, 1)),
    }
    for layer in range(_LAYERS):
        for kind in ("key", "value"):
            first = np.zeros((2, form.shared_heads, 1, form.depth), np.float32)
            inputs[f"past_key_values.{layer}.{kind}"] = first
    return llama_model(form), inputs


def resnet18() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """ResNet-18 of two images."""
    from resnet18 import build_resnet18

    with tempfile.TemporaryDirectory() as folder:
        model = onnx.load(build_resnet18(Path(folder) / "resnet18.onnx"))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    image = np.random.default_rng(0).standard_normal((2, 3, 224, 224), dtype=np.float32)
    return model, {"x": image}


def bert() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A layer as BERT has it, of 768 channels, and two texts of 128 tokens."""
    numbers = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    stored: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        array = numbers.standard_normal(shape, dtype=np.float32) * shape[0] ** -0.5
        stored.append(numpy_helper.from_array(array, name))
        return name

    def node(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def linear(x: str, name: str, before: int, behind: int) -> str:
        product = node("MatMul", x, weight(f"{name}.weight", before, behind))
        return node("Add", product, weight(f"{name}.bias", behind))

    def shaped(x: str, name: str, *shape: int) -> str:
        stored.append(numpy_helper.from_array(np.array(shape), f"{name}.shape"))
        return node("Reshape", x, f"{name}.shape")

    def heads(name: str) -> str:
        split = shaped(linear("x", name, 768, 768), name, 2, 128, 12, 64)
        return node("Transpose", split, perm=[0, 2, 1, 3])

    def normalized(x: str, name: str) -> str:
        scale, shift = (weight(f"{name}.{kind}", 768) for kind in ("scale", "shift"))
        return node("LayerNormalization", x, scale, shift, axis=-1)

    queries, keys, values = map(heads, ("query", "key", "value"))
    stored.append(numpy_helper.from_array(np.float32(0.125), "scale"))
    scores = node(
        "Mul", node("MatMul", queries, node("Transpose", keys, perm=[0, 1, 3, 2])), "scale"
    )
    mixed = node("Transpose", node("MatMul", node("Softmax", scores), values), perm=[0, 2, 1, 3])
    attended = linear(shaped(mixed, "joined", 2, 128, 768), "output", 768, 768)
    middle = normalized(node("Add", attended, "x"), "first")
    wide = node("Gelu", linear(middle, "wide", 768, 3072))
    last = normalized(node("Add", linear(wide, "narrow", 3072, 768), middle), "second")
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 128, 768])]
        for name in ("x", last)
    ]
    graph = helper.make_graph(nodes, "bert", *ends, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return model, {"x": numbers.standard_normal((2, 128, 768), dtype=np.float32)}


MODELS: dict[str, Callable[[], tuple[onnx.ModelProto, dict[str, np.ndarray]]]] = {
    "llama": llama,
    "bert": bert,
    "resnet18": resnet18,
}


def seconds_of(model: tvm_ext.CompiledModel, inputs: dict[str, np.ndarray]) -> tuple[float, float]:
    """Wall time of a run, and the processor time of the device that takes most."""
    begun, own = time.perf_counter(), time.thread_time()
    model.run(inputs)
    wall, processor = time.perf_counter() - begun, time.thread_time() - own
    devices = model.processor_seconds if isinstance(model, ShardedModel) else [processor]
    return wall, max(devices)


def measure(name: str, devices: int, shard: str, turns: int) -> None:
    """Prints a line for one model, split in one way."""
    model, inputs = MODELS[name]()
    shapes = {key: list(array.shape) for key, array in inputs.items()}
    one = tvm_ext.compile(model, input_shapes=shapes, threads=1)
    several = tvm_ext.compile(model, input_shapes=shapes, threads=1, devices=devices, shard=shard)
    if not isinstance(several, ShardedModel):
        raise SystemExit(f"{devices} devices were asked for; expected 2 or more")
    expected, found = one.run(inputs), several.run(inputs)
    differs = max(
        float(np.abs(found[key] - array).max() / np.abs(array).max())
        for key, array in expected.items()
    )
    pairs = [(seconds_of(one, inputs), seconds_of(several, inputs)) for _ in range(turns)]
    wall, processor = (
        statistics.median(first[place] / second[place] for first, second in pairs)
        for place in (0, 1)
    )
    planned = sum(int(call.nbytes) for call in several.sharding.collectives)
    moved = sum(several.exchanged.values())
    milliseconds = 1e3 * statistics.median(first[0] for first, _ in pairs)
    print(
        f"{name:10} {shard:7} {devices} devices  one process {milliseconds:7.1f} ms"
        f"  {wall:4.2f} times as fast, {processor:4.2f} by processor time"
        f"  {len(several.sharding.collectives):3} collectives, {format_bytes(moved)}"
        f" of {format_bytes(planned)} planned  differs by {differs:.1e}",
        flush=True,
    )
    several.close()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--shards", nargs="+", default=["data", "tensor"])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--turns", type=int, default=11)
    given = parser.parse_args()
    for name in given.models:
        for shard in given.shards:
            measure(name, given.devices, shard, given.turns)


if __name__ == "__main__":
    main()

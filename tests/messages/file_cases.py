"""Files that are wrong: models, saved models, inputs, records, configurations."""

import numpy as np
import onnx
from provoked import case, command, compiled, model, node, one, relu, saved, value

import tvm_ext

WEIGHTS = np.ones((64, 64), np.float32)


@case("no such file", "absent.onnx")
def _(folder):
    tvm_ext.compile(folder / "absent.onnx")


@case("a folder for a model", "folder")
def _(folder):
    tvm_ext.compile(folder)


@case("an empty file")
def _(folder):
    (folder / "m.onnx").touch()
    tvm_ext.compile(folder / "m.onnx")


@case("a file of text")
def _(folder):
    (folder / "m.onnx").write_text("not a model at all, only some words\n" * 20)
    tvm_ext.compile(folder / "m.onnx")


@case("a truncated protobuf", "truncated")
def _(folder):
    whole = one("Add", {"x": [64], "w": WEIGHTS[0]}).SerializeToString()
    (folder / "m.onnx").write_bytes(whole[: len(whole) // 2])
    tvm_ext.compile(folder / "m.onnx")


@case("a model in memory that is bytes")
def _(folder):
    tvm_ext.compile(relu().SerializeToString())


@case("external data that is missing", "weights.bin")
def _(folder):
    made = one("MatMul", {"x": [1, 64], "w": WEIGHTS})
    path = saved(folder, made, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (folder / "weights.bin").unlink()
    tvm_ext.compile(path)


@case("external data that is too short", "weights.bin", "3 bytes")
def _(folder):
    made = one("MatMul", {"x": [1, 64], "w": WEIGHTS})
    path = saved(folder, made, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (folder / "weights.bin").write_bytes(b"123")
    tvm_ext.compile(path)


@case("external data outside of the folder")
def _(folder):
    made = one("MatMul", {"x": [1, 64], "w": WEIGHTS})
    onnx.external_data_helper.set_external_data(made.graph.initializer[0], "../../etc/passwd")
    made.graph.initializer[0].ClearField("raw_data")
    made.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    tvm_ext.compile(folder / "m.onnx")


@case("an initializer whose data is too short", "w")
def _(folder):
    made = one("Add", {"x": [64], "w": WEIGHTS[0]})
    made.graph.initializer[0].raw_data = b"12345"
    tvm_ext.compile(made)


@case("an initializer of an unknown type")
def _(folder):
    made = one("Add", {"x": [64], "w": WEIGHTS[0]})
    made.graph.initializer[0].data_type = 77
    tvm_ext.compile(made)


@case("NaN among the weights", "'w'", "1 NaN")
def _(folder):
    tvm_ext.compile(one("MatMul", {"x": [2], "w": np.array([[np.nan, 1], [1, 1]], np.float32)}))


@case("a damaged saved model")
def _(folder):
    compiled(relu()).save(folder / "m.tvmx")
    content = bytearray((folder / "m.tvmx").read_bytes())
    content[len(content) // 2] ^= 255
    (folder / "m.tvmx").write_bytes(content)
    tvm_ext.load(folder / "m.tvmx")


@case("half of a saved model")
def _(folder):
    (folder / "m.tvmx").write_bytes(b"PK\x03\x04" + bytes(500))
    tvm_ext.load(folder / "m.tvmx")


@case("a saved model that is none")
def _(folder):
    tvm_ext.load(saved(folder, relu()))


@case("an archive that is no saved model")
def _(folder):
    np.savez(folder / "m.npz", x=np.zeros(3))
    tvm_ext.load(folder / "m.npz")


@case("a folder that cannot be written to", "out.tvmx")
def _(folder):
    compiled(relu()).save(folder / "no" / "such" / "out.tvmx")


@case("a records folder that is missing")
def _(folder):
    compiled(relu(), records=folder / "records")


@case("a records folder without records")
def _(folder):
    (folder / "records").mkdir()
    compiled(relu(), records=folder / "records")


@case("a records folder full of rubbish")
def _(folder):
    (folder / "records").mkdir()
    for name in ("records.jsonl", "workloads.jsonl", "database_tuning_record.json"):
        (folder / "records" / name).write_text("{not json\n[1, 2")
    compiled(relu(), records=folder / "records", require_records=True)


@case("a records folder that is a file")
def _(folder):
    (folder / "records").touch()
    compiled(relu(), records=folder / "records")


@case("a target file with bad TOML", "bad.toml")
def _(folder):
    (folder / "bad.toml").write_text("name = 'mine'\ncores = = 4\n")
    compiled(relu(), target=folder / "bad.toml")


@case("a target file with a wrong value", "bad.toml")
def _(folder):
    (folder / "bad.toml").write_text("kind = 'cpu'\nname = 'mine'\ncores = 'four'\n")
    compiled(relu(), target=folder / "bad.toml")


@case("inputs that are no NumPy file", "in.npz")
def _(folder):
    (folder / "in.npz").write_text("not an archive")
    return command("run", saved(folder, relu()), "--inputs", folder / "in.npz", "-O", "0")


@case("inputs that are Python objects", "in.npz")
def _(folder):
    np.savez(folder / "in.npz", x=np.array([{"a": 1}], object))
    return command("run", saved(folder, relu()), "--inputs", folder / "in.npz", "-O", "0")


@case("a sparse tensor that does not fit together", "w_indices")
def _(folder):
    values = onnx.numpy_helper.from_array(np.ones(3, np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.array([0, 5, 99]), "w_indices")
    made = model([node("Add", ["x", "w"], ["y"])], [value("x", [8])], [value("y", [8])])
    made.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [8]))
    tvm_ext.compile(made)

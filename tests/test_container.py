"""The container of examples/container: its versions, what it copies, and its service."""

import io
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import tvm_ext

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "container"
DOCKERFILE = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# What the runtime imports of all that tvm-ext requires; a new import belongs into the Dockerfile.
_LIST_IMPORTS = """
import sys
import numpy as np
import tvm_ext.runtime
model = tvm_ext.runtime.load("model.tvmx")
model.run({"x": np.zeros(model.inputs[0].shape, "float32")})
files = [str(getattr(module, "__file__", "")) for module in list(sys.modules.values())]
print(*sorted({file.split("site-packages/")[1].split("/")[0] for file in files
               if "site-packages/" in file}))
"""


def packages() -> set[str]:
    """The distributions that the second stage gets."""
    (names,) = re.findall(r"grep -E '\^\(([^)]+)\)=='", DOCKERFILE)
    return {name.replace("_", "-").lower() for name in names.split("|")}


def test_both_stages_have_one_python_that_the_project_supports():
    images = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) == 2
    assert len(set(images)) == 1
    (version,) = re.findall(r"^python:(\d+\.\d+)-slim$", images[0])
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)


def test_the_runtime_has_tvm_and_versions_come_from_the_project_alone():
    required = {Requirement(text).name.replace("_", "-") for text in PROJECT["dependencies"]}
    assert {"apache-tvm", "apache-tvm-ffi", "numpy", "pydantic"} <= packages() & required
    assert not re.findall(r"[a-z]==\d", DOCKERFILE)


def test_all_that_is_copied_gets_past_the_ignore_file():
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    ignored = (FOLDER / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sorted(f"!{name}" for name in copied) == sorted(
        line for line in ignored if line.startswith("!")
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory, relu_model) -> Path:
    """A folder as the second stage has it."""
    folder = tmp_path_factory.mktemp("model")
    tvm_ext.compile(relu_model).save(folder / "model.tvmx")
    (folder / "serve.py").write_bytes((FOLDER / "serve.py").read_bytes())
    return folder


@pytest.fixture(scope="module")
def relu_model(tmp_path_factory) -> Path:
    """A model of one node."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", [x], [y])
    path = tmp_path_factory.mktemp("onnx") / "relu.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.mark.slow
def test_the_runtime_imports_no_other_packages(served):
    done = subprocess.run(
        [sys.executable, "-c", _LIST_IMPORTS],
        cwd=served,
        capture_output=True,
        text=True,
        check=True,
    )
    # Where the modules of a distribution have another name than it.
    names = {"tvm-ffi": "apache-tvm-ffi", "tvm": "apache-tvm"}
    of_python = {"-distutils-hack", "distutils-precedence.pth"}
    found = {Path(name).stem.replace("_", "-") for name in done.stdout.split()} - of_python
    found = {name for name in found if not name.startswith(("--editable", "tvm-ext"))}
    assert {names.get(name, name) for name in found} <= packages()


@pytest.mark.slow
def test_the_service_runs_and_says_what_is_wrong(served):
    service = subprocess.Popen([sys.executable, "serve.py"], cwd=served, stderr=subprocess.DEVNULL)
    try:
        check = [sys.executable, "serve.py", "--check"]
        for _ in range(60):
            if subprocess.run(check, cwd=served, capture_output=True).returncode == 0:
                break
            time.sleep(0.5)
        else:
            pytest.fail("the service did not start")
        sent = io.BytesIO()
        np.savez(sent, x=np.array([[-1, 2, -3], [4, -5, 6]], "float32"))
        with urllib.request.urlopen("http://127.0.0.1:8000/run", sent.getvalue()) as answer:
            outputs = dict(np.load(io.BytesIO(answer.read())))
        assert outputs["y"].tolist() == [[0, 2, 0], [4, 0, 6]]
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen("http://127.0.0.1:8000/run", b"no arrays")
        assert refused.value.code == 400
    finally:
        service.terminate()
        service.wait()
    done = subprocess.run(check, cwd=served, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("the service does not run:")

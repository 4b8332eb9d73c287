"""A package that offers a pass, a template, a cost model and a backend: installing it is enough.

A broken one does no harm.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from commands import invoke
from wheels import built_wheel

from tvm_ext.passes import registry

pytestmark = pytest.mark.extended

RUN = """
import json, sys
sys.path.append(sys.argv[1])
import tvm
from tvm_ext.hardware.targets import resolve_target
# Before any command: this alone has to load the backends.
targets = [tvm.target.Target({"kind": "llvm", "keys": [key]}) for key in ("plain", "cpu")]
kinds = [resolve_target(target).kind for target in targets]
from commands import invoke
from kept_workers import WorkerStock
stock = WorkerStock()
with stock.lent():
    results = [invoke(*command) for command in json.load(sys.stdin)]
stock.stop()
found = [(result.exit_code, result.stdout, result.stderr) for result in results]
print(json.dumps([kinds, found]))
"""
SHARED = Path(__file__).parents[2] / "shared"
SOURCE = Path(__file__).parents[2] / "plugin_example"


@pytest.fixture(scope="module")
def plugin_folder(tmp_path_factory) -> Path:
    """Where the example is installed; built from a copy, as that writes beside it."""
    source = tmp_path_factory.mktemp("source") / "plugin_example"
    shutil.copytree(SOURCE, source)
    target = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(built_wheel(source, source.parent)).extractall(target)
    return target


def read(outcome: tuple[int, str, str]) -> Any:
    """The JSON of a command that has to succeed, without a word on stderr."""
    code, stdout, stderr = outcome
    assert (code, stderr) == (0, "")
    return json.loads(stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the commands write to."""
    return tmp_path_factory.mktemp("written")


@pytest.fixture(scope="module")
def process(plugin_folder, abs_model_path, folder) -> tuple[list[str], dict]:
    """Kinds of two targets of TVM, and what all commands of the tests below came to, by name.

    All of it in one process with the example installed, as starting it takes longest.
    """
    # Our own rules would leave nothing to the example's pass.
    compiling = ("compile", abs_model_path, "--json", "--disable-pass", "AlgebraicSimplification")
    tuning = ("tune", abs_model_path, "--json", "--trials", 3, "--cost-model", "shortest")
    commands = {
        "passes": ("passes", "list", "--json"),
        "compiled": compiling,
        "without the pass": (*compiling, "--disable-pass", "SingleAbs"),
        "plain": (*compiling, "--target", "plain", "--output", folder / "m"),
        "tuned": (*tuning, "--output", folder / "logs"),
        "targets": ("targets", "list", "--json"),
        "cores": ("plain", "cores", "--json"),
        "help": ("--help",),
        "unknown": ("plane",),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, SHARED],
        cwd=plugin_folder,
        env={**os.environ, "PYTHONPATH": str(plugin_folder)},
        input=json.dumps([[str(argument) for argument in one] for one in commands.values()]),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kinds, found = json.loads(done.stdout.splitlines()[-1])
    return kinds, dict(zip(commands, map(tuple, found), strict=True))


@pytest.fixture(scope="module")
def done(process) -> dict[str, tuple[int, str, str]]:
    """Exit code, stdout and stderr of each command."""
    return process[1]


@pytest.fixture
def compiled(done) -> dict:
    """What the command prints of a compilation."""
    return json.loads(done["compiled"][1])


def record_of(printed: dict) -> dict:
    (record,) = (r for r in printed["report"]["passes"] if r["name"] == "SingleAbs")
    return record


def test_an_installed_plugin_is_listed_with_its_distribution(done):
    listed = read(done["passes"])
    (entry,) = (entry for entry in listed["passes"] if entry["name"] == "SingleAbs")
    assert entry["source"] == "tvm-ext-plugin-example"
    assert entry["options"] == {"even_shared": False}
    for level in listed["levels"].values():
        assert "SingleAbs" in level["graph"]


def test_its_pass_runs_in_a_compilation(compiled):
    record = record_of(compiled)
    assert record["changed"] is True
    assert [decision["where"] for decision in record["decisions"]] == ["abs1 + abs2"]
    assert compiled["report"]["graph"]["relax_after"]["abs"] == 1


def test_its_pass_can_be_disabled(done):
    printed = json.loads(done["without the pass"][1])
    assert record_of(printed)["skipped"] == "disabled"
    assert printed["report"]["graph"]["relax_after"]["abs"] == 2


def test_its_template_wins_for_its_kernel(compiled):
    (kernel,) = compiled["report"]["kernels"]
    assert (kernel["schedule"], kernel["source"]) == ("one loop", "template")
    assert not any("elementwise" in refusal for refusal in kernel["refusals"])


def test_its_template_is_tuned_and_its_cost_model_ranks(done, folder):
    tuned = json.loads(done["tuned"][1])
    # A cost model that fails is noted.
    assert tuned["notes"] == []
    trials = (folder / "logs" / "trials.jsonl").read_text().splitlines()
    assert "one loop" in [json.loads(line).get("template") for line in trials]


def test_its_backend_is_a_target(done):
    printed = read(done["plain"])
    (kernel,) = printed["report"]["kernels"]
    assert (kernel["schedule"], kernel["source"]) == ("blockwise", "generic")
    assert printed["report"]["target"]["kind"] == "plain-cpu"
    assert "plain" in [target["name"] for target in json.loads(done["targets"][1])]


def test_its_backend_has_commands(done):
    assert read(done["cores"])["cores"] >= 1
    assert "Ask about the plain CPU." in done["help"][1]
    code, _, stderr = done["unknown"]
    assert (code, stderr.count("\n")) == (2, 1)


def test_its_backend_describes_targets_of_tvm(process):
    assert process[0] == ["plain-cpu", "cpu"]


def test_broken_plugins_only_warn(tmp_path, monkeypatch):
    contents = ("import not_there", "1 / 0", "def Broken2(): pass", "raise SystemExit(0)")
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    names = [f"Broken{number}" for number in range(len(contents))]
    entries = "".join(f"{name} = {name.lower()}:{name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[tvm_ext.passes]\n{entries}")
    for name, content in zip(names, contents, strict=True):
        (tmp_path / f"{name.lower()}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    # As in a process that has not looked for plug-ins yet.
    monkeypatch.setattr(registry, "_load_once", registry._load_once.__wrapped__)
    result = invoke("passes", "list", "--json")
    listed = json.loads(result.stdout)
    assert not set(names) & {entry["name"] for entry in listed["passes"]}
    lines = result.stderr.splitlines()
    assert len(lines) == len(names)
    for name in names:
        begin = f"warning: plugin '{name}' of tvm_ext.passes was left out: "
        assert sum(line.startswith(begin) for line in lines) == 1

"""A package that offers a pass, a template, a cost model and a backend: installing it is enough.

A broken one does no harm.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

MAIN = "from tvm_ext.cli.main import main; main()"
SOURCE = Path(__file__).parents[2] / "plugin_example"


@pytest.fixture(scope="module")
def plugin_folder(tmp_path_factory) -> Path:
    """Where the example is installed; pip works on a copy, as it writes next to the source."""
    # Not imported: setuptools replaces distutils in the whole process.
    if not all(map(find_spec, ("pip", "setuptools"))):
        pytest.skip("pip and setuptools are needed to install the example")
    copy = tmp_path_factory.mktemp("source") / "plugin_example"
    shutil.copytree(SOURCE, copy)
    target = tmp_path_factory.mktemp("site")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", *options, "--target", target, copy],
        cwd=target,
        check=True,
        capture_output=True,
        timeout=600,
    )
    return target


def run_tvm_ext(site: Path, *arguments) -> subprocess.CompletedProcess:
    """Runs the command with the packages in ``site`` installed."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def tvm_ext_json(site: Path, *arguments) -> tuple[dict, str]:
    """What the command prints as JSON, and its stderr."""
    done = run_tvm_ext(site, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def compiled(plugin_folder, abs_model_path) -> dict:
    """What the command prints of a compilation."""
    return tvm_ext_json(plugin_folder, "compile", abs_model_path)[0]


def record_of(printed: dict) -> dict:
    (record,) = (r for r in printed["report"]["passes"] if r["name"] == "SingleAbs")
    return record


def test_an_installed_plugin_is_listed_with_its_distribution(plugin_folder):
    listed, stderr = tvm_ext_json(plugin_folder, "passes", "list")
    (entry,) = (entry for entry in listed["passes"] if entry["name"] == "SingleAbs")
    assert entry["source"] == "tvm-ext-plugin-example"
    assert entry["options"] == {"even_shared": False}
    for level in listed["levels"].values():
        assert "SingleAbs" in level["graph"]
    assert stderr == ""


def test_its_pass_runs_in_a_compilation(compiled):
    record = record_of(compiled)
    assert record["changed"] is True
    assert [decision["where"] for decision in record["decisions"]] == ["abs1 + abs2"]
    assert compiled["report"]["graph"]["relax_after"]["abs"] == 1


def test_its_pass_can_be_disabled(plugin_folder, abs_model_path):
    options = ("--disable-pass", "SingleAbs")
    printed, _ = tvm_ext_json(plugin_folder, "compile", abs_model_path, *options)
    assert record_of(printed)["skipped"] == "disabled"
    assert printed["report"]["graph"]["relax_after"]["abs"] == 2


def test_its_template_wins_for_its_kernel(compiled):
    (kernel,) = compiled["report"]["kernels"]
    assert (kernel["schedule"], kernel["source"]) == ("one loop", "template")
    assert not any("elementwise" in refusal for refusal in kernel["refusals"])


def test_its_template_is_tuned_and_its_cost_model_ranks(plugin_folder, abs_model_path, tmp_path):
    options = ("--output", tmp_path / "logs", "--trials", 3, "--cost-model", "shortest")
    tuned, _ = tvm_ext_json(plugin_folder, "tune", abs_model_path, *options)
    # A cost model that fails is noted.
    assert tuned["notes"] == []
    trials = (tmp_path / "logs" / "trials.jsonl").read_text().splitlines()
    assert "one loop" in [json.loads(line).get("template") for line in trials]


def test_its_backend_is_a_target(plugin_folder, abs_model_path, tmp_path):
    printed, stderr = tvm_ext_json(
        plugin_folder, "compile", abs_model_path, "--target", "plain", "--output", tmp_path / "m"
    )
    (kernel,) = printed["report"]["kernels"]
    assert (kernel["schedule"], kernel["source"]) == ("blockwise", "generic")
    assert printed["report"]["target"]["kind"] == "plain-cpu"
    assert stderr == ""
    listed, _ = tvm_ext_json(plugin_folder, "targets", "list")
    assert "plain" in [target["name"] for target in listed]


def test_its_backend_has_commands(plugin_folder):
    printed, stderr = tvm_ext_json(plugin_folder, "plain", "cores")
    assert printed["cores"] >= 1
    assert stderr == ""
    assert "Ask about the plain CPU." in run_tvm_ext(plugin_folder, "--help").stdout
    unknown = run_tvm_ext(plugin_folder, "plane")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)


def test_its_backend_describes_targets_of_tvm(plugin_folder):
    code = (
        "import tvm; from tvm_ext.hardware.targets import resolve_target as r;"
        "T = tvm.target.Target;"
        "print([r(T({'kind': 'llvm', 'keys': [key]})).kind for key in ('plain', 'cpu')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(plugin_folder)},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert done.stdout.strip() == "['plain-cpu', 'cpu']"


def test_broken_plugins_only_warn(tmp_path):
    contents = ("import not_there", "1 / 0", "def Broken2(): pass")
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    names = [f"Broken{number}" for number in range(len(contents))]
    entries = "".join(f"{name} = {name.lower()}:{name}\n" for name in names)
    (info / "entry_points.txt").write_text(f"[tvm_ext.passes]\n{entries}")
    for name, content in zip(names, contents, strict=True):
        (tmp_path / f"{name.lower()}.py").write_text(content)
    listed, stderr = tvm_ext_json(tmp_path, "passes", "list")
    assert not set(names) & {entry["name"] for entry in listed["passes"]}
    lines = stderr.splitlines()
    assert len(lines) == len(names)
    for name in names:
        begin = f"warning: plugin '{name}' of tvm_ext.passes was left out: "
        assert sum(line.startswith(begin) for line in lines) == 1

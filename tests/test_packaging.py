"""What is installed, under which names, and who may import whom."""

import ast
import functools
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheels import built_wheel

ROOT = Path(__file__).resolve().parent.parent
MAPPED = ("relay_passes", "tir_schedules", "tuning", "hardware", "configs")
FOLDERS = ("tvm_ext", *MAPPED)

# Who may import whom: tvm_ext -> tuning -> tir_schedules -> hardware -> configs, and
# tvm_ext -> relay_passes -> hardware -> configs.
MAY_IMPORT = {
    "tvm_ext": {*FOLDERS},
    "tuning": {"tuning", "tir_schedules", "hardware", "configs"},
    "tir_schedules": {"tir_schedules", "hardware", "configs"},
    "relay_passes": {"relay_passes", "hardware", "configs"},
    "hardware": {"hardware", "configs"},
    "configs": {"configs"},
}

# Only these know ONNX: the front end, and what hands a model to it or compares with a reference.
KNOW_ONNX = (
    "tvm_ext/onnx_frontend/",
    "tvm_ext/check/",
    "tvm_ext/compiler/stages.py",
)

COMPAT = [Path("hardware/tvm_compat.py"), Path("tvm_ext/onnx_frontend/tvm_compat.py")]


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def relative(path: Path) -> Path:
    return path.relative_to(ROOT)


SOURCES = [path for folder in FOLDERS for path in sources(folder)]


@functools.cache
def imported_names(path: Path) -> list[str]:
    """Every module or name that a file imports, dotted, wherever in the file."""
    found = []
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)} has a relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All below a node, without the expressions in them: those are most of a file."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from statements(child)


def folder_of(name: str) -> str | None:
    """The source folder that an imported name lives in; None for another distribution's."""
    parts = name.split(".")
    if parts[0] != "tvm_ext":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAPPED else "tvm_ext"


@pytest.mark.parametrize("name", MAPPED)
def test_the_package_holds_a_relative_link_to_each_folder(name):
    link = ROOT / "tvm_ext" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
    assert link.resolve() == ROOT / name


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_with_sources_has_an_init(folder):
    for path in sources(folder):
        assert (path.parent / "__init__.py").exists(), relative(path.parent)


@pytest.mark.parametrize("name", MAPPED)
def test_bare_names_are_refused_with_the_full_one(name):
    done = subprocess.run(
        [sys.executable, "-c", f"import {name}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == f"ImportError: import this package as tvm_ext.{name}, not as {name}"


@pytest.mark.parametrize("name", MAPPED)
def test_bare_names_are_not_installed(name, tmp_path):
    program = f"import importlib.util; print(importlib.util.find_spec('{name}'))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "None"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of the tree, built from a copy so that nothing is left behind in it."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    names = [*FOLDERS, "setup.py", "pyproject.toml", "README.md", "LICENSE"]
    for path in (found for name in names for found in [ROOT / name, *(ROOT / name).rglob("*")]):
        copy = source / relative(path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            copy.symlink_to(path.readlink())
        elif path.is_file() and "__pycache__" not in path.parts:
            copy.write_bytes(path.read_bytes())
    return built_wheel(source, folder)


def test_a_wheel_holds_one_top_level_name_and_all_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tvm_ext"}
    assert len(tops) == 2
    wanted = set()
    for folder in FOLDERS:
        prefix = "" if folder == "tvm_ext" else "tvm_ext/"
        wanted |= {
            prefix + relative(path).as_posix()
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    assert {name for name in names if name.startswith("tvm_ext/")} == wanted
    kinds = {Path(name).suffix for name in wanted}
    assert {".toml", ".j2", ".typed", ".py", ".c", ".h"} <= kinds


def test_an_unpacked_wheel_works_without_the_tree(wheel, tmp_path):
    """Data is found where a wheel puts it, and the command line is declared."""
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = (
        "import sys; sys.path.insert(0, 'site')\n"
        "import tvm_ext, pathlib\n"
        "assert pathlib.Path(tvm_ext.__file__).parts[-3] == 'site', tvm_ext.__file__\n"
        "from tvm_ext.configs.loader import config_folder\n"
        "print(sorted(e.name for e in config_folder('pipelines').iterdir()))\n"
        "print(len([e for e in config_folder('targets').iterdir()]) > 5)\n"
        "import tvm_ext.relay_passes as r; print(pathlib.Path(r.__file__).parts[-4])\n"
    )
    # -S leaves the editable install out; its packages are then found by path.
    # The environment itself may lie in the tree, as .venv does.
    paths = [p for p in sys.path if "site-packages" in p or not Path(p).is_relative_to(ROOT)]
    paths = [path for path in paths if path]
    program = f"import sys; sys.path += {paths!r}\n" + program
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    pipelines, targets, folder = done.stdout.splitlines()
    assert pipelines == str([f"O{level}.toml" for level in range(4)])
    assert (targets, folder) == ("True", "site")
    (entries,) = (tmp_path / "site").glob("*.dist-info/entry_points.txt")
    assert "tvm-ext = tvm_ext.cli.main:main" in entries.read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_follow_the_arrows(folder):
    wrong = [
        f"{relative(path)} imports {name}"
        for path in sources(folder)
        for name in imported_names(path)
        if folder_of(name) is not None and folder_of(name) not in MAY_IMPORT[folder]
    ]
    assert wrong == []


def test_folders_are_imported_by_their_full_names():
    wrong = [
        f"{relative(path)} imports {name}"
        for path in SOURCES
        for name in imported_names(path)
        if name.split(".")[0] in MAPPED
    ]
    assert wrong == []


def test_only_the_front_end_and_the_check_know_onnx():
    distributions = {"onnx", "onnx_ir", "onnxscript", "onnxruntime"}
    wrong = [
        f"{relative(path)} imports {name}"
        for path in SOURCES
        for name in imported_names(path)
        if name.split(".")[0] in distributions
        and not relative(path).as_posix().startswith(KNOW_ONNX)
    ]
    assert wrong == []


def test_onnx_is_converted_in_the_front_end_only():
    """Elsewhere ONNX is read through the front end; these build or rewrite models."""
    wrong = [
        f"{relative(path)} imports {name}"
        for path in SOURCES
        for name in imported_names(path)
        if name.split(".")[0] in ("onnx_ir", "onnxscript")
        and not relative(path).as_posix().startswith("tvm_ext/onnx_frontend/")
    ]
    assert wrong == []


def private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def test_private_names_of_tvm_are_imported_in_one_file():
    wrong = [
        f"{relative(path)} imports {name}"
        for path in SOURCES
        for name in imported_names(path)
        if name.split(".")[0] in ("tvm", "tvm_ffi")
        and (private(name) or ".frontend.onnx" in name)
        and relative(path) not in COMPAT
    ]
    assert wrong == []


@pytest.mark.parametrize("path", COMPAT, ids=str)
def test_such_a_file_imports_tvm_and_nothing_of_ours(path):
    others = {name.split(".")[0] for name in imported_names(ROOT / path)} - {"tvm", "tvm_ffi"}
    assert others <= sys.stdlib_module_names


def test_no_file_reaches_for_another_file_s_private_names():
    wrong = [
        f"{relative(path)} imports {name}"
        for path in SOURCES
        for name in imported_names(path)
        if name.startswith("tvm_ext.") and private(name)
    ]
    assert wrong == []

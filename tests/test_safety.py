"""Nothing that is read can be run: no pickle but between our own processes, no evaluated text, no shell."""

import ast
from pathlib import Path

import pytest

import mlcil

SOURCE = Path(mlcil.__file__).parent
# What may be there after all, by file.
ALLOWED = {
    "core/pools.py": {"import pickle"},  # what a process and those that it has started say to one another
    "__init__.py": {"import by a computed name"},  # of a table in that file
    "training/config.py": {"yaml.load"},  # by a loader that is a safe one with bounds
    "testing.py": {"import by a computed name"},  # of a method that the caller has imported itself
}
PICKLES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle"}
RUNS_TEXT = {"eval", "exec", "compile", "__import__"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "commands.getoutput"}


def dangers(source: str) -> set[str]:
    """What a file does that could run what somebody else wrote."""
    return {one for node in ast.walk(ast.parse(source)) for one in (*_imports(node), *_calls(node))}


def _imports(node: ast.AST) -> list[str]:
    names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    return [f"import {name.split('.')[0]}" for name in names if name.split(".")[0] in PICKLES]


def _calls(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Call):
        return []
    name, given = ast.unparse(node.func), {one.arg: ast.unparse(one.value) for one in node.keywords}
    found = [name] if name in RUNS_TEXT | SHELLS or name.startswith(("os.exec", "os.spawn")) else []
    if given.get("shell", "False") != "False":
        found.append("a shell")
    if given.get("allow_pickle", "False") != "False":
        found.append("allow_pickle")
    if name == "torch.load" and given.get("weights_only") != "True":
        found.append("torch.load of more than weights")
    if name.startswith("yaml.") and name not in ("yaml.safe_load", "yaml.safe_dump", "yaml.YAMLError"):
        found.append(name)
    if name.endswith("import_module") and not (node.args and isinstance(node.args[0], ast.Constant)):
        found.append("import by a computed name")
    return found


@pytest.mark.parametrize(
    ("source", "danger"),
    [
        ("from joblib import load", "import joblib"),
        ("import os, cloudpickle.fast", "import cloudpickle"),
        ("import numpy as np\nnp.load(file, allow_pickle=True)", "allow_pickle"),
        ("os.system(text)", "os.system"),
        ("subprocess.run(text, shell=is_text)", "a shell"),
        ("__import__(name)", "__import__"),
        ("importlib.import_module(name)", "import by a computed name"),
        ("yaml.load(text, yaml.Loader)", "yaml.load"),
        ("torch.load(file)", "torch.load of more than weights"),
        ("eval(text)", "eval"),
    ],
)
def test_a_danger_is_seen(source, danger):
    assert dangers(source) == {danger}


def test_what_is_harmless_is_left_alone():
    harmless = ("model.eval()", "re.compile(text)", "torch.load(file, weights_only=True)", "run([name], shell=False)")
    assert [one for one in harmless if dangers(one)] == []


def test_no_file_runs_what_it_reads():
    files = {str(file.relative_to(SOURCE)): file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py")}
    found = {name: dangers(text) for name, text in files.items()}
    assert {name: some for name, some in found.items() if some} == ALLOWED

"""What is installed with an extra is needed by nothing else."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

# The packages of all extras by the names under which they are imported, with what only they bring.
EXTRAS = (
    *("pyarrow", "pandas", "openpyxl", "et_xmlfile", "pillow_heif", "tensorboard", "grpc", "ray", "jsonschema"),
    *("onnxscript", "onnx_ir", "fastapi", "starlette", "uvicorn", "python_multipart", "requests"),
)
BLOCKED = f"""
import importlib.machinery, pkgutil, sys

class Installed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        is_extra = name.partition(".")[0] in {EXTRAS}
        return None if is_extra else importlib.machinery.PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Installed if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
"""
ALL_MODULES = """
import mlcil
for found in pkgutil.walk_packages(mlcil.__path__, "mlcil."):
    if not found.name.startswith(("mlcil.web.", "mlcil.__main__")):
        importlib.import_module(found.name)
"""
COMMAND = """
from mlcil.__main__ import main
sys.argv = ["mlcil", *{}]
main()
"""
RUN = (
    *("run", "--method", "analytic", "--data", "digits:train=40,test=30,size=16", "--protocol", "0,1|2,3"),
    *("--image-size", "16", "--set", "threads=1", "--out", "run"),
)


def without_extras(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED + code]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_everything_but_the_server_is_imported_and_runs_without_extras(tmp_path):
    done = without_extras(ALL_MODULES + COMMAND.format(RUN), tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results.json").exists()


def test_what_needs_an_extra_says_so_in_one_line(tmp_path):
    done = without_extras(COMMAND.format(("serve", "tagger")), tmp_path)
    line = "mlcil: the server needs the extra: pip install 'mlcil[serve]'"
    assert (done.returncode, done.stderr.strip()) == (2, line)


def test_the_packages_of_every_extra_are_taken_away():
    project = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
    extras = {name: packages for name, packages in project["optional-dependencies"].items() if name != "dev"}
    named = {re.split(r"[\[>=<]", one)[0].replace("-", "_") for packages in extras.values() for one in packages}
    assert named <= set(EXTRAS)

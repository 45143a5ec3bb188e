"""The command line: what it prints, and one clear line for every mistake."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.torch import save_file
from torch import ones
from typer.testing import CliRunner

from mlcil.cli import app as cli

TINY = [
    *(
        "--data",
        "digits:train=40,test=30,size=16",
        "--protocol",
        "0,1|2,3",
        "--image-size",
        "16",
        "--epochs",
        "1",
    ),
    *("--set", "augment=none", "--set", "threads=1"),
]


def call(*arguments: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """Run `mlcil` in this process as the console script would."""
    monkeypatch.setattr(sys, "argv", ["mlcil", *arguments])
    monkeypatch.setattr(cli, "install", lambda: None)  # Ctrl-C is for the tests here
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


@pytest.fixture
def mlcil(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # type: ignore[no-untyped-def]
    """Call the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("MLCIL_CACHE", str(tmp_path / "cache"))
    return lambda *arguments: call(*arguments, capsys=capsys, monkeypatch=monkeypatch)


def one_line(error: str) -> str:
    assert error.startswith("mlcil: ")
    assert error.count("\n") == 1, f"more than one line: {error}"
    return error


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A table of small pictures: red, green and blue squares, alone or together."""
    rng, names, rows = np.random.default_rng(0), ("red", "green", "blue"), []
    (tmp_path / "photos").mkdir()
    for number in range(36):
        shown = rng.permutation(3)[: 1 + number % 2]
        pixels = rng.integers(0, 60, (24, 24, 3)).astype(np.uint8)
        for colour in shown:
            row, column = rng.integers(0, 16, 2)
            pixels[row : row + 8, column : column + 8] = 0
            pixels[row : row + 8, column : column + 8, colour] = 255
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
        split = "test" if number % 3 == 0 else "train"
        rows.append((f"photos/{number}.png", ";".join(names[c] for c in shown), split))
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", "labels", "split"), *rows])
    return tmp_path / "labels.csv"


def on_table(table: Path, *more: str) -> list[str]:
    return [
        *(
            "run",
            "--method",
            "krt",
            "--data",
            f"table:{table}",
            "--protocol",
            "red,green|blue",
            "--image-size",
            "16",
        ),
        *("--epochs", "1", "--set", "width=16", "--set", "threads=1", "--out", "out", *more),
    ]


def test_help_and_version_are_quick_and_import_no_torch() -> None:
    code = (
        "import sys, mlcil.cli.app as a; sys.argv = ['mlcil', '--help']\n"
        "try: a.main()\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'timm', 'torchvision', 'sklearn', 'matplotlib', 'lightning_fabric'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "run" in done.stdout
    assert CliRunner().invoke(cli.app, ["--version"]).stdout.startswith("mlcil 0.")


def test_what_is_checked_early_needs_no_torch() -> None:
    code = (
        "import sys, mlcil.data.sources, mlcil.data.protocol, mlcil.training.config, mlcil.cli.app, mlcil.cli.run\n"
        "heavy = {'torch', 'timm', 'torchvision', 'sklearn', 'lightning_fabric'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--protocol", "red|pink"], "unknown class in the protocol: 'pink'"),
        (["--order", "red,green"], "blue"),
        (["--epochs", "none"], "epochs: got 'none', expected a whole number"),
        (["--data", "table:nowhere.csv"], "nowhere.csv"),
        (["--weights", "nowhere.pth"], "weight file nowhere.pth does not exist"),
    ],
)
def test_a_mistake_is_found_before_torch_is_imported(photographs: Path, arguments: list[str], says: str) -> None:
    command = ["run", "--data", f"table:{photographs}", *arguments]
    code = f"import sys; sys.modules['torch'] = None; sys.argv = {['mlcil', *command]}\n"
    code += "from mlcil.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert says in one_line(done.stderr)


def test_run_without_arguments_shows_its_help(mlcil) -> None:  # type: ignore[no-untyped-def]
    code, out, error = mlcil("run")
    assert code in (0, 2)
    assert "run [OPTIONS] [FILE]" in out + error
    assert not Path("runs").exists()


def test_a_grid_with_a_mistake_starts_nothing(mlcil, photographs: Path) -> None:  # type: ignore[no-untyped-def]
    table = ["--data", f"table:{photographs}", "--out", "grid"]
    code, out, error = mlcil("grid", "--methods", "ft,krt", "--protocols", "red|green;red|pink", *table)
    assert code == 2
    assert "run red-pink/ft/seed-0: unknown class in the protocol: 'pink'" in one_line(error)
    assert out.count("reading table:") == 1
    assert not Path("grid").exists()


def test_run_show_and_continue(mlcil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = mlcil("run", "--method", "ft", *TINY, "--out", "a")
    assert code == 0
    assert "after session 2: mAP" in out
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert f"{results['last_map']:.1f}" in out
    code, out, _ = mlcil("show", "a")
    assert code == 0
    assert f"{results['sessions'][0]['metrics']['mAP']:.1f}" in out
    mlcil("run", "--method", "krt", *TINY, "--set", "width=16", "--out", "b")
    code, out, _ = mlcil("show", "a", "b")
    assert code == 0
    assert "ft" in out
    assert "krt" in out
    code, out, _ = mlcil("show", "a", "b", "--markdown")
    assert out.startswith("## Summary")
    code, _, error = mlcil("run", "--method", "ft", *TINY, "--epochs", "2", "--out", "a")
    assert code == 2
    assert "epochs: 1 -> 2" in one_line(error)
    report_compare_and_explain(mlcil, tmp_path)


def report_compare_and_explain(mlcil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = mlcil("report", "a", "b", "--out", "page")
    assert code == 0
    page = (tmp_path / "page" / "index.html").read_text()
    assert "page/index.html" in out
    assert "<svg" in page
    assert "data:image/png" in page  # attention maps of krt
    assert (tmp_path / "page" / "tables" / "summary.csv").exists()
    code, out, _ = mlcil("compare", "a", "b", "--resamples", "100", "--json", "difference.json")
    assert code == 0
    assert "krt is" in out
    assert json.loads((tmp_path / "difference.json").read_text())["resamples"] == 100
    code, out, error = mlcil("diagnose", "b", "--out", "why")
    assert code == 0
    assert "reading digits" in error  # what is not part of the result
    assert out.startswith("Drift of old classes")
    assert out.endswith("wrote why/diagnosis.json\n")
    assert json.loads((tmp_path / "why" / "diagnosis.json").read_text())["closed_form"]["last_trunk"]["all_labels"] > 0
    code, out, _ = mlcil("diagnose", "b", "--quick")
    assert code == 0
    assert "closed form" not in out
    Image.new("RGB", (30, 20)).save(tmp_path / "photo.png")
    code, out, _ = mlcil("explain", "b", "photo.png", "--out", "maps")
    assert code == 0
    line, _, drawing = out.strip().partition(" -> ")
    assert line.startswith("photo.png: ")
    with Image.open(tmp_path / drawing) as picture:
        assert picture.width > 300
    code, out, error = mlcil("explain", "b", "gone.png", "photo.png", "--threshold", "0", "--most", "2", "--json", "-")
    assert code == 1
    assert "gone.png: missing" in one_line(error)
    (found,) = json.loads(out)
    assert found["path"] == "photo.png"
    assert [tag["present"] for tag in found["tags"]] == [True, True]
    code, out, _ = mlcil("explain", "b", "photo.png", "--threshold", "1", "--json", "tags.json")
    assert out.startswith("photo.png: no tag (nearest: ")
    assert [tag["present"] for tag in json.loads((tmp_path / "tags.json").read_text())[0]["tags"]] == [False]


def test_a_preset_runs_with_data_of_ones_own(mlcil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    small = ["--backbone", "small_conv", "--weights", "none", "--batch-size", "8", "--set", "width=16"]
    code, _, error = mlcil("run", "--preset", "coco-b0-c10/krt", *TINY, *small, "--out", "a")
    assert code == 0, error
    assert json.loads((tmp_path / "a" / "results.json").read_text())["preset"] == "coco-b0-c10/krt"
    mlcil("report", "a", "--out", "page", "--images", "0")
    published = (tmp_path / "page" / "tables" / "published.md").read_text()
    assert "65.9" in published  # what the paper reports
    assert "backbone" in published  # what is different here


class FailingEngine:
    """Starts nothing, and says that it failed."""

    def start(self, work, slot):  # type: ignore[no-untyped-def]
        return self

    def ended(self) -> str:
        return "coco:nowhere has no annotations"

    def close(self) -> None:
        pass


def test_a_grid_says_what_failed(mlcil, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("mlcil.experiments.grid.make_engine", lambda *given: FailingEngine())
    code, out, _ = mlcil("grid", "--methods", "ft", "--data", "digits:train=40,test=30,size=16", "--out", "grid")
    assert code == 1
    assert "nowhere" in out
    assert "1 of 1 runs failed" in out
    code, _, error = mlcil("report", "grid")
    assert code == 2
    assert "nowhere" in one_line(error)


def test_a_configuration_file_of_a_run_repeats_it(mlcil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    mlcil("run", "--method", "ft", *TINY, "--seed", "3", "--out", "a")
    code, _, _ = mlcil("run", "a/config.yaml", "--out", "b")
    assert code == 0
    first, second = (yaml.safe_load((tmp_path / one / "config.yaml").read_text()) for one in "ab")
    assert first == second
    maps = [json.loads((tmp_path / one / "results.json").read_text())["last_map"] for one in "ab"]
    assert maps[0] == maps[1]


def test_the_lists(mlcil) -> None:  # type: ignore[no-untyped-def]
    assert "krt" in mlcil("methods")[1]
    code, out, _ = mlcil("methods", "krt")
    assert code == 0
    for word in ("token_weight", "100.0", "section 4.1", "online, fixed"):
        assert word in out
    assert "checkpoint_seconds" in mlcil("settings")[1]
    out = mlcil("datasets")[1]
    for word in ("coco:PATH", "voc:PATH", "table:FILE", "digits"):
        assert word in out
    assert "coco-b0-c10/krt-r-20" in mlcil("presets", "--group", "table1")[1]
    assert "70.17" in mlcil("presets", "coco-b0-c10/krt-r-20")[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["methods", "krtt"], "unknown method 'krtt', did you mean 'krt'?"),
        (["run", "--method", "krtt"], "unknown method 'krtt'"),
        (["run", "--set", "token_wieght=3"], "did you mean 'token_weight'?"),
        (["run", "--set", "nonsense"], "--set: got 'nonsense', expected key=value"),
        (["run", "--set", "dpl=maybe"], "dpl: got 'maybe', expected true or false"),
        (["run", "--epochs", "0"], "epochs: got 0, expected at least 1"),
        (["run", "--epochs", "many"], "epochs: got 'many', expected a whole number"),
        (["run", "--precision", "8"], "precision: got '8', expected one of 32-true, 16-mixed, bf16-mixed"),
        (["grid", "--methods", "ft", "--epochs", "0"], "epochs: got 0, expected at least 1"),
        (["run", "--data", "cooc:x"], "did you mean 'coco'?"),
        (["run", "--data", "coco:nowhere"], "nowhere"),
        (["run", "--data", "voc:nowhere"], "nowhere"),
        (["run", "--data", "table:nowhere.csv"], "nowhere.csv"),
        (["run", *TINY, "--protocol", "B0"], "malformed protocol 'B0'"),
        (["run", *TINY, "--protocol", "B9-C5"], "needs at least 14 classes, the data set has 10"),
        (["run", *TINY, "--protocol", "0,1|cat"], "'cat'"),
        (["run", *TINY, "--backbone", "resnet19"], "unknown backbone 'resnet19'"),
        (["run", *TINY, "--weights", "none.safetensors"], "none.safetensors does not exist"),
        (["run", *TINY, "--set", "accelerator=mps"], "accelerator: got 'mps', but PyTorch finds none here"),
        (["run", *TINY, "--buffer", "many"], "buffer: got 'many'"),
        (["run", *TINY, "--method", "ft", "--buffer", "5"], "method ft keeps no exemplars"),
        (["run", *TINY, "--set", "width=10", "--set", "heads=4"], "width 10 is not a multiple of heads 4"),
        (["run", "missing.yaml"], "missing.yaml does not exist"),
        (["show", "nowhere"], "nowhere"),
        (["run", "--preset", "coco-b0-c10/krt"], "needs --data coco:PATH"),
        (["run", "--preset", "coco-b0-c10/krtt", "--data", "coco:x"], "did you mean 'coco-b0-c10/krt'?"),
        (["run", "a.yaml", "--preset", "coco-b0-c10/krt"], "expected one of them"),
        (["presets", "--group", "table9"], "table9"),
        (["grid"], "name the runs by one of"),
        (["grid", "--methods", "ft", "--preset-group", "table1"], "got --preset-group and --methods"),
        (["grid", "--methods", "ft", "--seeds", "0;1"], "--seeds: got '0;1'"),
        (["grid", "--methods", "ft", "--seeds", "1,1"], "a seed occurs twice"),
        (["grid", "--methods", "ft", "--engine", "slurm"], "unknown engine 'slurm'"),
        (["grid", "--preset-group", "table1"], "needs --data coco:PATH"),
        (["report", "nowhere"], "nowhere does not exist"),
        (["compare", "nowhere", "there"], "nowhere"),
        (["diagnose", "nowhere"], "nowhere does not exist"),
        (["explain", "nowhere", "x.jpg"], "nowhere"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], says: str, mlcil) -> None:  # type: ignore[no-untyped-def]
    code, _, error = mlcil(*arguments)
    assert code == 2
    assert says in one_line(error)


def test_missing_annotations_name_the_file(mlcil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "coco" / "annotations").mkdir(parents=True)
    code, _, error = mlcil("run", "--data", "coco:coco")
    assert code == 2
    assert "instances_train" in one_line(error)


def test_weights_trained_on_the_benchmark_are_refused(mlcil, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    save_file({"head.fc.weight": ones(10, 8)}, tmp_path / "leak.safetensors")
    code, _, error = mlcil("run", *TINY, "--protocol", "B0-C5", "--weights", "leak.safetensors")
    assert code == 2
    assert "classifier of 10 outputs" in one_line(error)
    save_file({"something": ones(3)}, tmp_path / "wrong.safetensors")
    code, _, error = mlcil("run", *TINY, "--weights", "wrong.safetensors")
    assert "do not fit backbone small_conv" in one_line(error)


def test_a_table_of_ones_own(mlcil, photographs: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    code, _, error = mlcil(*on_table(photographs))
    assert code == 0, error
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["sessions"][-1]["classes"] == ["red", "green", "blue"]


def test_a_bad_image_is_named_or_skipped(mlcil, photographs: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    cut = (tmp_path / "photos" / "4.png").read_bytes()[:60]
    (tmp_path / "photos" / "4.png").write_bytes(cut)
    (tmp_path / "photos" / "6.png").unlink()
    code, _, error = mlcil(*on_table(photographs))
    assert code == 2
    assert "4.png" in one_line(error)
    assert "--on-bad-image skip" in error
    code, out, _ = mlcil(*on_table(photographs, "--on-bad-image", "skip", "--out", "skipped"))
    assert code == 0
    bad = json.loads((tmp_path / "skipped" / "results.json").read_text())["bad_images"]
    assert ["4.png" in bad[0], "6.png" in bad[1], len(bad)] == [True, True, 2]
    assert "4.png" in out


def test_a_class_without_training_images_is_named(mlcil, photographs: Path) -> None:  # type: ignore[no-untyped-def]
    rows = list(csv.reader(photographs.read_text().splitlines()))
    rows[1][1:] = ["pink", "test"]
    with photographs.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    code, _, error = mlcil(*on_table(photographs, "--protocol", "B0-C2"))
    assert code == 2
    assert "no training image has any of these classes: pink" in one_line(error)

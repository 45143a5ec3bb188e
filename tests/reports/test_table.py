import numpy as np
import pytest
from rich.console import Console

from mlcil.core.errors import UserError
from mlcil.evaluation.results import evaluate, summarise
from mlcil.reports.table import comparison_table, number, run_names, run_table, shorten, to_markdown

NAMES = ["ant", "bee", "cat", "dog"]


def one_session(count, first, earlier, session):
    rng = np.random.default_rng(count)
    labels = (rng.random((30, count)) < 0.4).astype(np.int8)
    return evaluate(rng.random((30, count)), labels, session, NAMES[:count], first, earlier, 40, 3.2, {})


def a_run(method="krt", counts=(2, 4), finished=True, **header):
    sessions = []
    for t, count in enumerate(counts):
        sessions.append(one_session(count, counts[t - 1] if t else 0, sessions, t + 1))
    return summarise({"method": method, "data": "zoo", "protocol": "B0-C2", **header}, sessions, finished)


def printed(table):
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def cells(markdown):
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in markdown.splitlines()]


def test_a_run_session_by_session():
    run = a_run()
    text = printed(run_table(run))
    assert "krt · zoo · B0-C2" in text
    assert "unfinished" not in text
    assert "cat, dog" in text
    assert f"average {run['average_map']:.1f}, last {run['last_map']:.1f}" in text
    for heading in ("session", "seen", "images", "mAP", "CF1@0.8", "OF1@0.8", "forgetting", "BWT", "seconds"):
        assert heading in text


def test_a_run_without_a_session_yet():
    text = printed(run_table(a_run(counts=(), finished=False)))
    assert "unfinished" in text
    assert "average -, last -" in text


def test_joint_stands_in_the_last_column():
    krt, joint = a_run(), a_run("joint", (4,))
    head, _, first, second = cells(to_markdown([krt, joint]))
    assert head == ["method", "2 classes", "4 classes", "average", "last", "CF1@0.8", "OF1@0.8", "forgetting"]
    assert first[:4] == ["krt", *(number(s["map"]) for s in krt["sessions"]), number(krt["average_map"])]
    last = number(joint["last_map"])
    assert second[:5] == ["joint", "-", last, "-", last]
    assert second[-1] == "-"


def test_stored_thresholds_have_columns_where_a_run_has_them():
    calibrated, other = a_run(), a_run("ft")
    for session in calibrated["sessions"]:
        session["f1"] |= {"cf1@stored": 61.0, "of1@stored": 62.0}
    head, _, first, second = cells(to_markdown([calibrated, other]))
    assert head[-5:] == ["CF1@0.8", "OF1@0.8", "CF1@stored", "OF1@stored", "forgetting"]
    assert first[-3:-1] == ["61.0", "62.0"]
    assert second[-3:-1] == ["-", "-"]
    unfinished = cells(to_markdown([calibrated, a_run("ft", (2,), finished=False)]))[-1]
    assert len(unfinished) == len(head)
    assert "OF1@stored" in printed(run_table(calibrated))


def test_an_unfinished_run_shows_its_sessions_but_no_final_figures():
    row = cells(to_markdown([a_run(), a_run("ft", (2,), finished=False)]))[-1]
    assert row[0] == "ft (unfinished)"
    assert row[1] != "-"
    assert set(row[2:]) == {"-"}


def test_the_buffer_is_shown_where_a_run_has_one():
    rows = cells(to_markdown([a_run("er", buffer=20), a_run("ft")]))
    assert [row[1] for row in rows] == ["buffer", "---:", "20", "-"]


def test_the_printed_comparison_says_the_same_as_markdown():
    runs = [a_run("er", buffer=20), a_run("joint", (4,))]
    text = printed(comparison_table(runs))
    for row in cells(to_markdown(runs))[2:]:
        assert all(cell in text for cell in row)


def test_markup_in_names_is_text():
    assert "[bold]x[/]" in printed(comparison_table([a_run("[bold]x[/]")]))
    assert "a\\|b" in to_markdown([a_run("a|b")])


def test_runs_of_one_method_are_told_apart():
    runs = [a_run("krt", seed=0), a_run("krt", seed=1), a_run("ft", seed=0)]
    assert run_names(runs) == ["krt (seed 0)", "krt (seed 1)", "ft"]
    assert run_names([runs[0], runs[0]]) == ["krt", "krt #2"]


@pytest.mark.parametrize("show", [comparison_table, to_markdown])
def test_no_run_is_the_users_mistake(show):
    with pytest.raises(UserError, match="no run"):
        show([])


def test_numbers():
    assert [number(x) for x in (None, -0.01, 3.14159, 100.0)] == ["-", "0.0", "3.1", "100.0"]


def test_long_lists_are_shortened():
    assert shorten(["ant", "bee"]) == "ant, bee"
    assert shorten([f"class {i}" for i in range(40)]) == "class 0, class 1 +38"
    assert len(shorten(["x" * 90, "y"])) < 40

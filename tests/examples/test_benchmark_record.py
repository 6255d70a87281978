"""What the benchmarks of speed record: a line of a whole run, from which the tables of the pages are made."""

from __future__ import annotations

import subprocess

import pytest

from benchmarks.__main__ import main, programs, with_tables
from benchmarks.speed import _record, _shared, label_checks

pytestmark = pytest.mark.programs
LINE = {
    "command": "python -m benchmarks label_checks --rounds 1",
    "commit": "1a2b3c4d",
    "cores": 2,
    "rounds": 1,
    "versions": {"TensorFlow": "2.15.1", "Keras": "2.15.0"},
    "rows": [{"model": "a", "ratio": 1.25}, {"model": "b", "ratio": 1.5}],
}


def line(version, *ratios, **others):
    rows = [{"model": name, "ratio": value} for name, value in zip("abc", ratios)]
    return {**LINE, "versions": {"TensorFlow": version} if version else {}, "rows": rows, **others}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(_record, "RESULTS", tmp_path)
    return tmp_path


def test_every_recorded_line_says_what_made_it():
    known = {_record.path_of(name) for name in programs()}
    files = set(_record.RESULTS.iterdir())
    assert files and files <= known
    for path in files:
        for each in _record.read(path):
            assert set(each) == set(LINE), path
            assert each["command"].startswith(f"python -m benchmarks {path.stem}") and "--quick" not in each["command"]
            assert each["commit"] is None or len(each["commit"]) == 8
            assert each["rows"] and each["cores"] > 0 and each["rounds"] > 0


def test_a_run_is_recorded_with_its_command_and_commit(results, monkeypatch, capsys):
    monkeypatch.setattr(_shared, "commit", lambda: "1a2b3c4d")
    monkeypatch.setattr(label_checks, "WORKLOADS", dict([list(label_checks.WORKLOADS.items())[-1]]))
    arguments = ["label_checks", "--rounds", "1", "--steps", "1"]
    assert main(arguments) == 0 and not _record.path_of("label_checks").exists()
    for _ in range(2):
        assert main([*arguments, "--record"]) == 0
    first, last = _record.read(_record.path_of("label_checks"))
    assert set(first) == set(LINE)
    assert first["command"] == "python -m benchmarks label_checks --rounds 1 --steps 1" and first["commit"] == "1a2b3c4d"
    assert first["versions"] == _record.versions() and first["rounds"] == 1
    assert capsys.readouterr().out.endswith(_record.page_of(label_checks.tables([last])))


def test_a_quick_run_is_not_recorded(results, capsys):
    with pytest.raises(SystemExit):
        main(["label_checks", "--quick", "--record"])
    assert "`--record` must not be given with `--quick`" in capsys.readouterr().err and not list(results.iterdir())


def test_code_that_is_not_committed_is_not_recorded(results, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "checkout"
    (folder / "benchmarks" / "speed").mkdir(parents=True)
    file = folder / "benchmarks" / "speed" / "step.py"
    file.write_text("one")

    def git(*command):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(["git", *who, *command], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    monkeypatch.setattr(_shared, "ROOT", folder)
    with pytest.raises(SystemExit):
        main(["label_checks", "--record"])
    assert "Commit the files that differ from it: ?? benchmarks/" in capsys.readouterr().err
    git("add", ".")
    git("commit", "-m", "one")
    (folder / "benchmarks" / "README.md").write_text("a page is not measured")
    assert git("rev-parse", "HEAD").startswith(_shared.commit()) and len(_shared.commit()) == 8
    file.write_text("two")
    with pytest.raises(RuntimeError, match=r"Commit the files that differ from it: +M benchmarks/speed/step.py"):
        _shared.commit()


def test_a_table_has_a_column_for_each_version_with_its_newest_line():
    lines = [line("2.21.0", 1.0, 2.0), line("2.15.1", 3.0), line("2.15.0", 4.0, commit=None), line(None, 9.0)]
    (made,) = label_checks.tables(lines)
    columns = "| model | TensorFlow 2.15 | TensorFlow 2.21 |\n| --- | ---: | ---: |\n"
    assert made.text == f"{columns}| a | 4.000 | 1.000 |\n| b |  | 2.000 |\n"
    expected = "label_checks --rounds 1`; commit not recorded and commit 1a2b3c4d; TensorFlow 2.15.0 and 2.21.0; 2 cores"
    assert expected in _record.page_of([made])
    (made,) = label_checks.tables([line(None, 9.0)])
    assert made.text.endswith("| a | 9.000 |\n") and "; versions not recorded; " in _record.page_of([made])


def test_of_several_numbers_a_cell_has_those_of_all_versions():
    made = _record.table([line("2.15.1", 1.0), line("2.21.0", 1.0)], "", ["model"], ["ratio"])
    assert "| a | 1.00 | 1.00 |" in made.text
    rows = [[{"model": "a", "ms": 2.0, "ratio": 1.5}], [{"model": "a", "ratio": 1.25}, {"model": "b"}]]
    both = [{**line(version), "rows": of_line} for version, of_line in zip(("2.15.1", "2.21.0"), rows)]
    made = _record.table(both, "", ["model"], [], ".2f", {"ms": ".0f"})
    assert made.text == "| model | ms | ratio |\n| --- | ---: | ---: |\n| a | 2, – | 1.50, 1.25 |\n| b |  |  |\n"


def test_what_is_recorded_must_have_a_place_on_a_page(results):
    assert with_tables().keys() and all(path.read_text(encoding="utf-8") == page for path, page in with_tables().items())
    _record.path_of("balancers").write_text('{"rows": [], "versions": {}}\n')
    with pytest.raises(
        ValueError, match="`<!-- python -m benchmarks balancers -->` and `<!-- end -->` must stand on a page"
    ):
        with_tables()

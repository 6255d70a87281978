"""Runs of the command are never overwritten unasked, and are continued with the options and the data that they began with."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from examples._command_line import InputError
from examples.seq2seq_price import command, report

pytestmark = pytest.mark.programs

SMALL = ["--epochs", "3", "--units", "4", "--embedding", "3", "--batch-size", "4", "--attention", "none"]


@pytest.fixture
def files(tmp_path):
    lines = ["text,meaning,price_range", *(f"{n} chairs,count[{n}],{'low' if n < 5 else 'high'}" for n in range(8))]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines))
    return path, ["--train", str(path), "--dev", str(path), *SMALL, "--output", str(tmp_path / "out")]


@pytest.fixture
def interrupt(monkeypatch):
    """Runs the command, which is interrupted after the first batch of an epoch."""

    def run_until(epoch, arguments):
        class Interrupting(report.Progress):
            def on_train_batch_end(self, batch, logs=None):
                super().on_train_batch_end(batch, logs)
                if self._epoch == epoch:
                    raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(report, "Progress", Interrupting)
            return command.main(arguments)

    return run_until


def refused(arguments, capsys):
    """The error of a command, in one line."""
    capsys.readouterr()
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("examples.seq2seq_price: error: ") and error.count("\n") == 1
    return error


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "run.lock"}


@pytest.mark.thorough
def test_an_interrupted_run(files, interrupt, capsys, tmp_path, without_graphs):
    path, arguments = files
    assert interrupt(2, arguments) == 0
    kept, data = contents(tmp_path / "out"), path.read_text()
    error = refused(arguments, capsys)
    assert (
        "which has an interrupted one. Add --resume to continue it, or pass another --output, or remove the folder." in error
    )
    error = refused([*arguments, "--resume", "--units", "5"], capsys)
    assert "`--resume` must have the data and the options with which the run began." in error
    path.write_text(data + "\nnine chairs,count[9],high")
    assert "`--resume` must have the data and the options with which the run began." in refused(
        [*arguments, "--resume"], capsys
    )
    path.write_text(data)
    assert contents(tmp_path / "out") == kept
    assert command.main([*arguments, "--resume", "--beam", "2"]) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["training"]["updates"] == 6
    kept = contents(tmp_path / "out")
    assert "which has a finished one. Pass another --output, or remove the folder." in refused(arguments, capsys)
    error = refused([*arguments, "--resume"], capsys)
    assert "which has a finished one. Pass the folder to --load to use its model, or another --output." in error
    assert contents(tmp_path / "out") == kept


def test_a_run_that_is_interrupted_early(files, interrupt, capsys, without_graphs):
    _, arguments = files
    assert interrupt(1, arguments) == 2
    assert "interrupted, before anything was saved. Start the same command again." in capsys.readouterr().err
    assert "which has none. Omit --resume." in refused([*arguments, "--resume"], capsys)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("strategy", ["none", "multi-worker"])
@pytest.mark.parametrize("state", ["nothing", "interrupted", "saved after an interruption", "finished"])
def test_each_state_of_a_folder(state, strategy, resume, tmp_path):
    options = Namespace(output=str(tmp_path), strategy=strategy, resume=resume)
    if "interrupt" in state:
        (tmp_path / "checkpoint").mkdir()
        (tmp_path / "checkpoint" / "run.checkpoint").touch()
    if state.startswith(("saved", "finished")):
        (tmp_path / "model.json").touch()
    is_kept = {
        (False, "nothing"), (True, "interrupted"), (True, "saved after an interruption")
    } | ({(True, "nothing"), (True, "finished")} if strategy == "multi-worker" else set())  # fmt: skip
    if (resume, state) in is_kept:
        assert command.check_output(options) == (state == "finished")
        return
    with pytest.raises(InputError, match=r"`--(output|resume)` (must|requires) .* Received: .*\. (Add|Pass|Omit) "):
        command.check_output(options)


def test_workers_of_ray_do_not_overwrite_a_run_either(tmp_path, capsys, monkeypatch):
    (tmp_path / "model.json").touch()
    monkeypatch.setattr("examples._cluster.run_by_ray", None)
    arguments = ["--strategy", "multi-worker", "--ray-workers", "2", "--output", str(tmp_path)]
    assert "which has a finished one" in refused(arguments, capsys)

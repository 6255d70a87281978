"""Nothing is deleted or overwritten that the library has not written: files of others stay in every folder that it gets."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer, callbacks
from multihead.comparison._jobs import open_lines
from multihead.plots import all_of

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = {"a": X[:, :1]}

OWN = (
    "run.checkpoint",
    "run.lock",
    "run.jsonl",
    "trainer.keras",
    "trainer.weights.h5",
    "saved_model.pb",
    "variables",
    "runs",
)
"""Names that the library gives, or gets here."""

OTHERS = [
    *(f"{name}{end}" for name, end in itertools.product(OWN, (".tmp", ".notes.tmp", ".1", ".txt", "~"))),
    *(
        "mine.txt",
        "run.notes.tmp",
        "run.tmp",
        "run.1.txt",
        ".hidden",
        "assets/words.txt",
        "variables/notes.txt",
        "sub/mine.txt",
    ),
]


def made():
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", run_eagerly=True)
    return trainer


def fit(*given, **options):
    trainer = made()
    trainer.fit(X, Y, batch_size=4, verbose=0, callbacks=list(given), **options)
    return trainer


def compared(folder):
    for settings in ({"seeds": [0]}, None):
        with open_lines(folder / "run.jsonl") as lines:
            if settings:
                lines.begin(settings)
            lines.append({"chosen": "a"})


WRITERS = {
    "Checkpoint": lambda folder: fit(callbacks.Checkpoint(folder, every=1)),
    "Checkpoint that is not kept": lambda folder: fit(callbacks.Checkpoint(folder, every=1, keep=False)),
    "BackupAndRestore": lambda folder: fit(keras.callbacks.BackupAndRestore(str(folder))),
    "UpdateLogger": lambda folder: fit(callbacks.UpdateLogger(folder / "run.jsonl"), epochs=2),
    "both": lambda folder: fit(callbacks.UpdateLogger(folder / "run.jsonl"), callbacks.Checkpoint(folder, keep=False)),
    "HeadTensorBoard": lambda folder: fit(callbacks.HeadTensorBoard(folder)),
    "plots": lambda folder: (fit(callbacks.UpdateLogger(folder / "run.jsonl")), all_of(folder / "run.jsonl", folder)),
    "save": lambda folder: fit().save(folder / "trainer.keras"),
    "save_weights": lambda folder: fit().save_weights(folder / "trainer.weights.h5"),
    "export": lambda folder: [trainer.export(str(folder)) for trainer in [fit()] for _ in range(2)],
    "compare": compared,
}


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("writer", WRITERS)
def test_files_of_others_stay_as_they_are(writer, tmp_path):
    for name in OTHERS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name, encoding="utf-8")
    WRITERS[writer](tmp_path)
    changed = [name for name in OTHERS if not (tmp_path / name).is_file() or (tmp_path / name).read_text() != name]
    assert not changed
    if writer == "Checkpoint that is not kept":
        assert not (tmp_path / "run.checkpoint").exists() and not (tmp_path / "run.lock").exists()


def test_a_folder_with_nothing_else_is_deleted_with_the_checkpoint(tmp_path):
    fit(callbacks.Checkpoint(tmp_path / "run", keep=False))
    assert not (tmp_path / "run").exists()


def test_what_is_no_plot_is_refused_and_stays(tmp_path):
    files = WRITERS["plots"](tmp_path)[1]
    assert all_of(tmp_path / "run.jsonl", tmp_path) == files  # which replaces its own
    for content in (b"mine", b"\x89PNG\r\n\x1a\n of another program", b""):
        files[-1].write_bytes(content)
        files[0].unlink(missing_ok=True)
        with pytest.raises(ValueError, match=r"`folder` must leave the names of plots .*Received: '.*png', another file"):
            all_of(tmp_path / "run.jsonl", tmp_path)
        assert files[-1].read_bytes() == content and not files[0].exists()


@pytest.mark.parametrize("text", ["x", "x\n", '{"step": 1}\nx\n', "[1]"])
def test_what_is_no_ledger_is_refused_and_stays(text, tmp_path):
    for name, write in (("run.jsonl", WRITERS["UpdateLogger"]), ("other.jsonl", None)):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="`path` must be the file of"):
            if write is not None:
                write(tmp_path)
            else:
                with open_lines(path):
                    pass
        assert path.read_text(encoding="utf-8") == text


def test_the_ledger_of_another_run_keeps_its_lines(tmp_path):
    path = tmp_path / "run.jsonl"
    trainer = fit(callbacks.UpdateLogger(path))
    first = path.read_text(encoding="utf-8")
    trainer.fit(X, Y, batch_size=4, verbose=0, callbacks=[callbacks.UpdateLogger(path)])  # which goes on
    both = path.read_text(encoding="utf-8")
    assert both.startswith(first) and both.count("\n") == 4
    for number in (1, 2):
        with pytest.warns(UserWarning, match=f"It is called run.{number}.jsonl from now on"):
            fit(callbacks.UpdateLogger(path))
    assert (tmp_path / "run.1.jsonl").read_text(encoding="utf-8") == both
    assert path.read_text(encoding="utf-8").count("\n") == 2

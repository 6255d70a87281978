"""The command: small runs from start to answers, and one line for whatever cannot be used."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import subprocess
import sys

import numpy as np
import pytest

from examples.seq2seq_price import command, run
from examples.seq2seq_price.data import load_data, workshop_data
from tests.helpers import alone

pytestmark = pytest.mark.programs

SMALL = ["--epochs", "2", "--units", "8", "--embedding", "4", "--batch-size", "16"]


@pytest.fixture(scope="module")
def workshop_run(tmp_path_factory):
    """The folder of a run, with its heads exported beside it, and what it printed."""
    folder = tmp_path_factory.mktemp("run") / "deep" / "er"
    # Steps so large that the loss soon grows.
    options = ["--epochs", "30", "--patience", "2", "--learning-rate", "0.03", "--units", "24", "--embedding", "8"]
    options += ["--dropout", "0.1", "--weight-decay", "0.3"]
    options += ["--batch-size", "16", "--attention", "luong", "--orders", "160", "--balancer", "NormFloor"]
    options += ["--output", str(folder)]
    options += ["--export", str(folder.parent / "exported")]
    with contextlib.redirect_stdout(io.StringIO()) as told:
        assert command.main(options) == 0
    return folder, told.getvalue()


@pytest.fixture(scope="module")
def loaded(workshop_run, ask):
    """The run's model, the names of its columns, and what the command prints as it exports its heads and answers `ASKED`.

    With a beam, TensorFlow Addons would leave an operation of its own in the exported file.
    """
    folder, _ = workshop_run
    return ask(folder, "--beam", "3", "--export", str(folder.parent / "deep" / "loaded"), "--predict", *ASKED)


ASKED = ["a walnut table for six", "", "🙂 שלום"]


def history_of(folder):
    """The run's values by name, one per epoch."""
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["history"]


def test_a_run_leaves_its_metrics(workshop_run):
    folder, _ = workshop_run
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    assert list(metrics["splits"]) == ["train", "dev"]
    for rows, of_split in zip((160, 16), metrics["splits"].values()):
        assert of_split["rows"] == of_split["labelled_rows"] == rows
        for name in ("price_accuracy", "reply_exact", "reply_token_accuracy"):
            assert 0 <= of_split[name] <= 1
        assert of_split["loss"] == pytest.approx(of_split["reply_loss"] + of_split["price_loss"], rel=1e-5)
    seen = 160 * metrics["training"]["epochs"]
    assert metrics["training"]["examples_per_second"] == pytest.approx(seen / metrics["training"]["seconds"])
    assert metrics["options"]["units"] == 24


def test_a_run_leaves_its_history_and_pictures(workshop_run):
    folder, _ = workshop_run
    history = history_of(folder)
    for head in ("reply", "price"):
        for name in (f"{head}_loss", f"val_{head}_loss", f"{head}_norm", f"{head}_share"):
            assert np.isfinite(history[name]).all()
    np.testing.assert_allclose(np.add(history["reply_share"], history["price_share"]), 1, atol=1e-4)
    for picture in ("losses", "shares"):
        assert (folder / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_the_best_epoch_is_kept_and_patience_ends(workshop_run):
    folder, told = workshop_run
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    losses = history_of(folder)["val_loss"]
    assert metrics["training"]["weights_of_epoch"] == np.argmin(losses) + 1
    assert metrics["training"]["epochs"] == len(losses) == np.argmin(losses) + 3 < 30
    assert metrics["splits"]["dev"]["loss"] == pytest.approx(min(losses), rel=1e-4)
    assert f"weights of epoch {np.argmin(losses) + 1} of {len(losses)}; " in told


def test_a_trained_model_answers_as_it_did(workshop_run, loaded):
    folder, _ = workshop_run
    model, columns, printed = loaded
    dev = workshop_data(160, 16, 0).splits["dev"]
    model.trainer.compile("sgd")
    again = run.evaluate(model, dev, model.answer(dev.texts), batch_size=5)
    written = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["splits"]["dev"]
    for name in ("reply_loss", "price_loss", "price_accuracy", "reply_exact"):
        assert again[name] == pytest.approx(written[name], rel=1e-4, abs=1e-6)
    answers = model.answer(ASKED, beam_width=3)
    assert columns == {"source": "text", "target": "order", "label": "price"}
    exported, *lines = printed.splitlines()
    assert exported == f"heads exported to {folder.parent / 'deep' / 'loaded'}"
    assert lines[::3] == [f"text: {text}".rstrip() if text else "text: " for text in ASKED]
    assert [line.rstrip() for line in lines[1::3]] == [f"order: {reply}".rstrip() for reply in answers["reply"]]
    for line, probabilities in zip(lines[2::3], answers["price"]):
        name = model.columns["price"].names[probabilities.argmax()]
        assert line == f"price: {name} (probability {probabilities.max():.2f})"


TEXTS = ["a walnut table for six", "", "🙂🙂 👩‍👩‍👧", "שלום, מה שלומך?", "Zyzzyva £20-25 isn't", "Two oak chairs, waxed."]
PARTS = [(head, texts) for head in ("reply", "price") for texts in (TEXTS, TEXTS[1:2])]


@pytest.mark.thorough
def test_a_run_and_a_loaded_run_export_alike(workshop_run, loaded, tmp_path):
    output, told = workshop_run
    model, _, _ = loaded
    folders = {1: output.parent / "exported", 3: output.parent / "deep" / "loaded"}  # by the width of the beam
    assert f"heads exported to {folders[1]}" in told
    parts = [(folder / head, {"inputs": texts}) for folder in folders.values() for head, texts in PARTS]
    given = iter(alone.answers(parts, tmp_path))
    for beam_width in folders:
        answers = model.answer(TEXTS, beam_width=beam_width)
        replies, empty_reply, prices, empty_price = (next(given) for _ in PARTS)
        assert replies == {"reply": answers["reply"]} and empty_reply == {"reply": answers["reply"][1:2]}
        probabilities = np.array(answers["price"])
        names = model.columns["price"].names
        assert prices["label"] == [names[number] for number in probabilities.argmax(axis=1)]
        assert empty_price["label"] == prices["label"][1:2]
        np.testing.assert_allclose(prices["probability"], probabilities.max(axis=1), rtol=1e-5)
        assert len(set(answers["reply"])) > 1 and any(answers["reply"])


def write_meanings(path, rows, prices):
    lines = ["name,sentence,mr,cost"]
    for number in range(rows):
        name = ("The Mill", "Aromi")[number % 2]
        lines.append(f'{name},"{name} is a, pub {number}","name[{name}], eatType[pub]",{prices[number % len(prices)]}')
    content = "\r\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


FILE_COLUMNS = ["--source", "sentence", "--target", "mr", "--label", "cost"]


@pytest.mark.thorough
def test_files_with_missing_prices_and_every_option(tmp_path, without_graphs):
    train = write_meanings(tmp_path / "train.csv.gz", 20, ["5", "", "20", "9"])
    dev = write_meanings(tmp_path / "dev.csv", 9, ["5", "", "20"])
    options = [
        *SMALL, *FILE_COLUMNS, "--train", train, "--dev", dev, "--test", dev, "--bands", "3", "--missing", "class",
        "--cell", "lstm", "--attention", "bahdanau", "--balancer", "UPGrad", "--micro-batches", "2", "--beam", "2",
        "--seed", "3", "--output", str(tmp_path / "out"),
    ]  # fmt: skip
    assert command.main(options) == 0
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text(encoding="utf-8"))
    assert list(metrics["splits"]) == ["train", "dev", "test"]
    assert metrics["splits"]["dev"]["labelled_rows"] == 9
    assert metrics["splits"]["dev"]["reply_exact"] == metrics["splits"]["test"]["reply_exact"]
    model, _ = run.load_model(tmp_path / "out")
    assert model.columns["price"].names == ("under 9", "9 to 12.6667", "12.6667 and more", "(missing)")


def test_missing_prices_are_no_labels(tmp_path):
    train = write_meanings(tmp_path / "train.csv", 12, ["low", "", "high"])
    options = command.parse([*FILE_COLUMNS, "--train", train, "--dev", train])
    data = load_data(options)
    assert data.heads["price"].names == ("high", "low")
    assert data.splits["dev"].labels["price"].tolist() == [1, -1, 0] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], r"argument --epochs: must be a whole number of at least 1. Received: '0'."),
        (["--dropout", "1"], "--dropout must be at least 0 and below 1, "),
        (["--learning-rate", "0"], "--learning-rate above 0, and "),
        (["--cell", "rnn"], r"argument --cell: invalid choice: 'rnn'"),
        (["--predict", "x"], "--load and --predict go together."),
        (["--load", "x"], "--load and --predict go together."),
        (["--dev", "x"], "--dev requires --train."),
        (["--train", "x"], "--train requires --dev."),
        (["--bands", "2"], "--bands requires --train."),
        (["--ep", "3"], "unrecognized arguments: --ep"),
    ],
)
def test_options_that_cannot_be_used(arguments, message, capsys):
    with pytest.raises(SystemExit) as left:
        command.main(arguments)
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--balancer", "UPGard"], "`--balancer` must be one of 'CAGrad'|`--balancer` must be one of"),
        (["--load", "nowhere", "--predict", "x"], "`--load` must be the folder of a finished run. Received: 'nowhere'"),
        (["--train", "nowhere.csv", "--dev", "x"], "`nowhere.csv` must be a readable file."),
    ],
)
def test_input_that_cannot_be_used(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("examples.seq2seq_price: error: ") and error.count("\n") == 1
    assert any(part in error for part in message.split("|"))
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("prices", "columns", "message"),
    [
        (["", ""], [], "The column `cost` must contain at least two different labels. Received: 0 in the training rows."),
        (["low"], [], "The column `cost` must contain at least two different labels. Received: 1 in the training rows."),
        (
            ["low", "high"],
            ["--bands", "2"],
            "must have numbers or empty cells in the column `cost`. Received: 'low' on lines 2, 4",
        ),
        (["1", "2"], ["--label", "price"], "must have the column 'price'. Received: the columns 'name', 'sentence', 'mr'"),
    ],
)
def test_files_that_cannot_be_used(prices, columns, message, capsys, tmp_path):
    train = write_meanings(tmp_path / "train.csv", 8, prices)
    arguments = [*FILE_COLUMNS, "--train", train, "--dev", train, "--output", str(tmp_path / "out"), *columns]
    assert command.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_an_output_that_is_no_folder(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert command.main(["--orders", "20", "--output", str(tmp_path / "file")]) == 2
    assert "`--output` must be a writable folder." in capsys.readouterr().err


def test_a_spoilt_model(capsys, tmp_path):
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / "model.weights.h5").write_text("")
    assert command.main(["--load", str(tmp_path), "--predict", "x"]) == 2
    error = capsys.readouterr().err
    assert "`--load` must be the folder of a finished run." in error and error.count("\n") == 1


@pytest.mark.parametrize("module", ["rich", "matplotlib"])
def test_a_missing_extra_is_named(module, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    assert command.main([]) == 2
    assert f"needs {module}. Install the extra: pip install -e '.[examples]'" in capsys.readouterr().err


def test_help_needs_no_tensorflow():
    code = (
        "import sys; from examples.seq2seq_price.command import main\n"
        "try: main(['--help'])\nfinally: print('tensorflow' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("False\n")
    for option in "--epochs --batch-size --units --embedding --cell --attention --balancer --seed --output".split():
        assert option in result.stdout

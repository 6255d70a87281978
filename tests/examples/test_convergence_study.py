"""The study: its variants run and repeat, its measurements are those of NumPy, and a summed price loss starves the decoder."""

from __future__ import annotations

import json

import keras
import pytest
import tensorflow as tf

from examples._command_line import InputError
from examples.convergence_study import command, study, training
from examples.convergence_study.variants import all_variants, references
from examples.seq2seq_price.data import load_data

pytestmark = pytest.mark.programs

ROWS = 32
SMALL = ["--seeds", "1", "--updates", "4", "--measurements", "2", "--orders", "200", "--batch-size", "16"]
SMALL += ["--units", "8", "--embedding", "4"]


def parse(*arguments):
    return command.parse([*SMALL, *arguments])


@pytest.fixture(scope="module")
def small():
    keras.utils.set_random_seed(0)
    options = parse("--variants", "sum", "--units", "16", "--orders", "320", "--batch-size", str(ROWS))
    return study.Study(options, load_data(options))


@pytest.mark.thorough
def test_summed_over_the_batch_the_price_loss_leaves_the_decoder_behind(small):
    network, rows = small.network, small._train
    batches = training.make_batches(rows, network.vectorizers, batch_size=ROWS, updates=60, seed=0)
    variants = {name: all_variants("sgd")[name] for name in ("unreduced_sgd", "repaired_sgd")}
    variants["alone"] = references("sgd", "sgd")[0]
    losses = {}
    for name, variant in variants.items():
        curve = training.LibraryRun(network, variant, batches).run(0, batches, 60, 1, lambda: None)
        losses[name] = training.final(curve, "reply_loss")
    assert losses["alone"] < 2.8, losses  # it learns: it starts from 3.3
    assert losses["unreduced_sgd"] > 1.05 * max(losses["alone"], losses["repaired_sgd"]), losses


@pytest.mark.thorough
def test_the_program(tmp_path, capsys, without_graphs):
    assert command.main([*SMALL, "--variants", "sum", "--output", str(tmp_path / "a")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Both heads as good as alone" in told and "The representation gradient of 'price' is" in told
    figures = json.loads((tmp_path / "a" / "figures.json").read_text(encoding="utf-8"))
    assert list(figures["variants"]) == ["decoder_alone", "price_alone", "sum"]
    curve = figures["variants"]["sum"]["curves"][0]
    assert [(point["updates"], point["examples"]) for point in curve] == [(0, 0), (2, 32), (4, 64)]
    finding = figures["findings"][0]
    assert all(
        words in finding for words in ("summed over the batch", "`NormFloor`", "almost nothing of the gradient of 'reply'")
    )
    for axis in ("examples", "seconds"):
        assert (tmp_path / "a" / f"by_{axis}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a" / "pace.png").read_bytes().startswith(b"\x89PNG")


def test_files_are_read(tmp_path):
    rows = load_data(parse()).splits["train"]
    for name in ("train", "dev"):
        lines = [f'"{t}","{r}",{"low" if label < 4 else "high"}' for t, r, label in zip(*rows[:3])]
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,order,price", *lines]), encoding="utf-8")
    files = [f"--{name}={tmp_path / name}.csv" for name in ("train", "dev")]
    options = parse(*files, "--target", "order", "--label", "price", "--variants", "sum")
    made = study.Study(options, load_data(options))
    assert made.network.price(tf.zeros([1, 8])).shape == (1, 2)


def test_what_cannot_be_used_is_said_in_one_line(capsys):
    for arguments, words in (
        (["--train", "a.csv"], "--train and --dev go together"),
        (["--bands", "3"], "--bands requires --train"),
        (["--variants", "summ"], "invalid choice: 'summ'"),
        (["--updates", "0"], "must be a whole number of at least 1. Received: '0'."),
    ):
        with pytest.raises(SystemExit) as left:
            command.parse(arguments)
        assert left.value.code == 2
        told = capsys.readouterr().err
        assert words in told and told.count("\n") == 1 and told.startswith("examples.convergence_study: error: ")
    assert command.main([*SMALL, "--batch-size", "64", "--output", "/dev/null/a"]) == 2
    assert "`--output` must be a writable folder" in capsys.readouterr().err
    with pytest.raises(
        InputError, match="`--batch-size` must be at most an eighth of the number of training rows. Received: 64,"
    ):
        options = parse("--batch-size", "64")
        study.Study(options, load_data(options))

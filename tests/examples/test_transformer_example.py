"""The example with `--cell transformer`: trained, saved, loaded, asked; options of the other kind of model are errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

from examples.seq2seq_price import command
from multihead.models import TransformerDecoder, TransformerEncoder

pytestmark = pytest.mark.programs

SMALL = ["--cell", "transformer", "--units", "8", "--embedding", "6", "--layers", "1", "--attention-heads", "2"]


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis:UserWarning")  # a first word attends to itself alone
def test_it_trains_is_saved_and_answers(tmp_path, ask, without_graphs):
    folder = tmp_path / "run"
    options = ["--orders", "60", "--epochs", "1", "--batch-size", "32", "--output", str(folder)]
    assert command.main([*SMALL, *options]) == 0
    settings = json.loads((folder / "model.json").read_text(encoding="utf-8"))["architecture"]
    assert (settings["cell"], settings["num_layers"], settings["num_heads"]) == ("transformer", 1, 2)
    assert (folder / "attention.png").is_file()
    text = "a walnut table for six"
    model, _, told = ask(folder, "--predict", text)
    assert isinstance(model.trainer.encoder, TransformerEncoder) and isinstance(model.decoder, TransformerDecoder)
    assert "order: " in told and "price: " in told
    (attention,) = model.attention_maps([text])
    assert attention.weights.shape == (len(attention.reply), len(attention.source))
    np.testing.assert_allclose(attention.weights.sum(axis=1), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["--cell", "transformer", "--attention", "luong"],
            "--attention requires --cell gru or lstm. Received: --attention luong --cell transformer. Omit it.",
        ),
        (
            ["--attention-heads", "2"],
            "--attention-heads requires --cell transformer. Received: --attention-heads 2 --cell gru. Omit it.",
        ),
        (
            ["--cell", "transformer", "--units", "9"],
            "--attention-heads must divide --units. Received: --attention-heads 4 --units 9. Choose a divisor, such as 1.",
        ),
    ],
)
def test_options_of_the_other_kind(arguments, message, capsys):
    with pytest.raises(SystemExit) as left:
        command.main(arguments)
    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_defaults_depend_on_the_cell():
    recurrent, transformer = (command.parse(["--cell", cell]) for cell in ("gru", "transformer"))
    assert (recurrent.layers, recurrent.attention, recurrent.learning_rate) == (1, "luong", 4e-3)
    assert (transformer.layers, transformer.attention_heads, transformer.learning_rate) == (2, 4, 2e-3)

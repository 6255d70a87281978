"""The example with `--cell transformer`: trained, saved, loaded, asked; options of the other kind of model are errors."""

from __future__ import annotations

import json

import pytest

from examples.seq2seq_price import command
from multihead.models import TransformerDecoder, TransformerEncoder

pytestmark = pytest.mark.programs

SMALL = ["--cell", "transformer", "--units", "8", "--embedding", "6", "--layers", "1", "--balancer", "Sum"]


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis:UserWarning")  # a first word attends to itself alone
@pytest.mark.thorough
def test_it_trains_is_saved_and_answers(tmp_path, ask, without_graphs):
    folder = tmp_path / "run"
    options = ["--orders", "60", "--epochs", "1", "--batch-size", "32", "--output", str(folder)]
    assert command.main([*SMALL, *options]) == 0
    settings = json.loads((folder / "model.json").read_text(encoding="utf-8"))["sizes"]
    assert (settings["cell"], settings["layers"]) == ("transformer", 1)
    model, _, told = ask(folder, "--predict", "a walnut table for six")
    assert isinstance(model.trainer.encoder, TransformerEncoder) and isinstance(model.decoder, TransformerDecoder)
    assert "order: " in told and "price: " in told


def test_attention_is_an_option_of_recurrent_layers(capsys):
    with pytest.raises(SystemExit) as left:
        command.main(["--cell", "transformer", "--attention", "luong"])
    assert left.value.code == 2
    error = capsys.readouterr().err
    assert "--attention requires --cell gru or lstm. Received: --attention luong. Omit it." in error


def test_defaults_depend_on_the_data_and_the_cell():
    def defaults(*arguments):
        options = command.parse(arguments)
        return options.layers, options.attention, options.units, options.learning_rate

    files = ["--train", "a", "--dev", "b"]
    assert defaults() == (1, None, 64, 1e-2) and defaults(*files) == (1, "auto", 128, 4e-3)
    assert defaults(*files, "--cell", "transformer") == (2, "multi-head", 128, 2e-3)
    assert defaults(*files, "--attention", "none", "--layers", "3", "--units", "5") == (3, None, 5, 4e-3)

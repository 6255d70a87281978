"""The example's heads leave as programs that take texts and give answers, as the model itself answers."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from examples.seq2seq_price import command, run
from multihead.models import Seq2SeqDecoder, Seq2SeqEncoder, _addons_loops
from tests.helpers import alone

TEXTS = ["a walnut table for six", "", "🙂🙂 👩‍👩‍👧", "שלום, מה שלומך?", "Zyzzyva £20-25 isn't", "Two oak chairs, waxed."]
ASKED = [(head, texts) for head in ("reply", "price") for texts in (TEXTS, TEXTS[1:2])]
SMALL = ["--epochs", "4", "--units", "24", "--embedding", "8", "--batch-size", "8", "--learning-rate", "0.02"]


def test_a_run_and_a_loaded_run_export_alike(tmp_path, capsys):
    output, elsewhere = tmp_path / "run", tmp_path / "empty"
    folders = {1: tmp_path / "trained", 3: tmp_path / "deep" / "loaded"}  # by the width of the beam
    elsewhere.mkdir()
    assert command.main([*SMALL, "--orders", "160", "--output", str(output), "--export", str(folders[1])]) == 0
    assert f"heads exported to {folders[1]}" in capsys.readouterr().out
    # With a beam, TensorFlow Addons would leave an operation of its own in the file.
    asked = ["--load", str(output), "--beam", "3", "--export", str(folders[3])]
    assert command.main([*asked, "--predict", "a table"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"heads exported to {folders[3]}", "text: a table"] and len(lines) == 4

    model, _ = run.load_model(output)
    parts = [(folder / head, {"inputs": texts}) for folder in folders.values() for head, texts in ASKED]
    given = iter(alone.answers(parts, elsewhere))
    for beam_width in folders:
        answers = model.answer(TEXTS, beam_width=beam_width)
        replies, empty_reply, prices, empty_price = (next(given) for _ in ASKED)
        assert replies == {"reply": answers.replies} and empty_reply == {"reply": answers.replies[1:2]}
        best = answers.probabilities.argmax(axis=1)
        assert prices["label"] == [model.ranges.names[number] for number in best]
        assert empty_price["label"] == prices["label"][1:2]
        np.testing.assert_allclose(prices["probability"], answers.probabilities.max(axis=1), rtol=1e-5)
        assert len(set(answers.replies)) > 1 and any(answers.replies)


@pytest.mark.parametrize("arguments", [["--orders", "20"], ["--load", "run"]], ids=str)
def test_an_export_folder_that_is_none(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(run, "load_model", lambda folder: (None, {}))
    assert command.main([*arguments, "--export", "file"]) == 2
    error = capsys.readouterr().err
    assert "`--export` must be a writable folder. Received: 'file'" in error and error.count("\n") == 1


def test_a_loaded_model_must_be_asked_for_something(capsys):
    with pytest.raises(SystemExit) as left:
        command.main(["--load", "run"])
    assert left.value.code == 2
    assert "the texts to predict for, or the folder to --export it to.\n" in capsys.readouterr().err


def test_the_engine_may_be_chosen_where_a_decoder_generates(monkeypatch):
    representation = Seq2SeqEncoder(9, 4, 6)(tf.constant([[4, 5, 6], [7, 8, 0]]))
    decoder = Seq2SeqDecoder(9, 4, 6, maximum_length=5)
    by_default = {width: decoder.generate(representation, beam_width=width) for width in (1, 3)}
    with monkeypatch.context() as patch:
        patch.setattr(_addons_loops, "decode_rows", None)
        patch.setattr(_addons_loops, "decode_beams", None)
        for width, ids in by_default.items():
            np.testing.assert_array_equal(decoder.generate(representation, beam_width=width, engine="native"), ids)
    with pytest.raises(ValueError, match=r"`engine` must be one of 'addons', 'native', None\. Received: engine='tfa'\."):
        decoder.generate(representation, engine="tfa")
    monkeypatch.setattr(_addons_loops, "is_installed", lambda: False)
    with pytest.raises(ImportError, match=r'`engine="addons"` needs TensorFlow Addons'):
        decoder.generate(representation, engine="addons")

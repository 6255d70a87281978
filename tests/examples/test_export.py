"""What the example's `--export` takes, and the engine of a decoder that is exported."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from examples.seq2seq_price import command, run
from multihead.models import Seq2SeqDecoder, Seq2SeqEncoder, _addons_loops

pytestmark = pytest.mark.programs


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

"""A KerasHub backbone in every way to train it, what is kept of it, and what the program says where it cannot run."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest

from examples import pretrained_encoder as program
from examples._backbones import NO_LABEL, backbone_from_config, encoder_of, what_keras_it_needs
from examples._command_line import InputError
from examples._orders import draw_rows

pytestmark = pytest.mark.programs
on_keras_3 = pytest.mark.skipif(what_keras_it_needs() is not None, reason="KerasHub needs Keras 3")


@pytest.fixture(scope="module")
def hub():
    return pytest.importorskip("keras_hub")


@pytest.fixture(scope="module")
def rows():
    return draw_rows(60, held_out=False, seed=0)


@pytest.fixture(scope="module")
def start(hub, rows, eager_updates):
    keras.utils.set_random_seed(0)
    return program.from_config("Bert", rows, 2, size=8, seed=0)[0]


@pytest.mark.addons
def test_on_keras_2_it_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr(keras, "__version__", "2.15.0")
    assert program.main([]) == 2
    assert re.fullmatch(
        r"examples\.pretrained_encoder: error: needs Keras 3, as KerasHub does\. Received: Keras 2\.15\.0\. "
        r"Run it in .*\n",
        capsys.readouterr().err,
    )


@on_keras_3
@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning")  # of KerasHub's T5
@pytest.mark.parametrize("name", ["Albert", "GPT2", "T5"])
def test_any_backbone_gives_both_outputs(hub, name):
    backbone = backbone_from_config(name, 30, 12, size=8, layers=1)
    encoder = encoder_of(backbone)
    ids = np.array([[5, 6, 7, 0, 0], [5, 6, 0, 0, 0]])
    blank = {"token_ids": ids, "padding_mask": (ids > 0).astype("int32"), "segment_ids": np.zeros_like(ids)}
    inputs = {each: blank[each.removeprefix("encoder_")] for each in encoder.input}
    found = encoder(inputs)
    pooled, sequence = (np.array(found[key]) for key in (program.POOLED, program.SEQUENCE))
    assert pooled.shape == (2, 8) and sequence.shape == (2, 5, 8)
    if encoder is not backbone:
        np.testing.assert_allclose(pooled[1], sequence[1, :2].mean(axis=0), rtol=1e-4, atol=1e-5)


@on_keras_3
def test_a_preset_is_loaded_with_its_tokenizer(hub, start, rows, tmp_path):
    backbone = hub.models.DistilBertBackbone(20, 1, 2, 8, 16, max_sequence_length=32)
    backbone.save_to_preset(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "two", "oak", "desk", "##s", ",", "a", "chair", "pine", "table"]
    hub.tokenizers.DistilBertTokenizer(vocabulary=words).save_to_preset(tmp_path)
    loaded = program.from_preset(str(tmp_path))
    assert loaded.rate == 1e-4
    assert all(map(np.array_equal, loaded.make(True).get_weights(), backbone.get_weights()))
    row = {"text": "two oak desks,", "tags": "count material product", "order": "2 oak desk", "price": "3780"}
    inputs, targets = loaded.tokens([row])
    assert inputs["token_ids"][0, :8].tolist() == [2, 5, 6, 7, 8, 9, 3, 0]
    assert targets["tags"][0, :8].tolist() == [NO_LABEL, 1, 4, 5, 5, 0, NO_LABEL, NO_LABEL]
    trainer = program.finetune(program.WAYS["frozen"], loaded, loaded.tokens(rows), 1)
    assert program.accuracies(trainer, loaded.tokens(rows[:9])).keys() == {"price", "tags"}


@on_keras_3
def test_what_is_said_of_backbones_that_cannot_be_used(hub, tmp_path, capsys):
    with pytest.raises(InputError, match=r"`--backbone` must be a backbone of KerasHub that reads tokens\. Received: 'Vit'"):
        backbone_from_config("Vit", 30, 12)
    with pytest.raises(InputError, match=r"`--backbone` must be one that a size .* Received: 'PaliGemma': .*Choose another"):
        backbone_from_config("PaliGemma", 30, 12)
    assert program.main(["--preset", str(tmp_path), "--quick", "--output", str(tmp_path / "out")]) == 2
    assert re.match(r"examples\.pretrained_encoder: error: `--preset` must be .*Received: ", capsys.readouterr().err)


@on_keras_3
@pytest.mark.parametrize(
    "ways", [["frozen, then unfrozen"], pytest.param(list(program.WAYS), marks=pytest.mark.thorough)], ids=["one", "all"]
)
def test_the_program(hub, ways, eager_updates, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(program, "WAYS", {way: program.WAYS[way] for way in ways})
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(way in said for way in [*ways, "with a new head"])
    loaded, exported = re.search(r"difference of predictions: (\S+) after loading, (\S+) from the export", said).groups()
    assert float(loaded) < 1e-5 and float(exported) < 1e-5

"""More heads for a trained encoder: each is three lines, and what is trained stays."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer, losses
from multihead.models import PriceClassifier, Seq2SeqDecoder, Seq2SeqEncoder
from tests.helpers import tiny

ROWS, TIME, VOCABULARY, TAGS, STYLES = 32, 7, 12, 4, 3


def sentences():
    """Padded tokens; each token's tag, its number modulo 3 (0 at padding); and a style that the first token tells."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(4, VOCABULARY, (ROWS, TIME))
    tokens[np.arange(TIME) >= generator.integers(3, TIME + 1, ROWS)[:, np.newaxis]] = 0
    return tokens.astype("int32"), np.where(tokens > 0, tokens % 3 + 1, 0).astype("int32"), tokens[:, 0] % STYLES


@pytest.mark.thorough
def test_a_tagger_and_a_second_classifier_join_a_trained_encoder():
    tokens, tags, styles = sentences()
    targets = {"reply": np.concatenate([tokens[:, :3], np.full([ROWS, 1], 3, "int32")], axis=1), "price": tokens[:, 1] % 2}
    trainer = MultiHeadTrainer(Seq2SeqEncoder(VOCABULARY, 8, 16, cell="gru"))
    decoder = Seq2SeqDecoder(VOCABULARY, 8, 16, cell="gru", maximum_length=5)
    trainer.add_head("reply", decoder, losses.SequenceCrossentropy(), teacher_forcing=True)
    trainer.add_head("price", PriceClassifier(2, pool=True), "sparse_categorical_crossentropy")
    trainer.compile(keras.optimizers.Adam(0.01))
    for _ in range(2):
        trainer.apply_gradients(trainer.compute_gradients((tokens, targets)))
    trained = tiny.weights_of(trainer)

    # A tagger: a dense layer on every step's output.
    outputs = keras.layers.Lambda(lambda representation: representation["outputs"])
    tagger = keras.Sequential([outputs, keras.layers.Dense(TAGS)])
    trainer.add_head("tags", tagger, losses.SequenceCrossentropy(), metrics=["accuracy"])
    # A second classifier.
    classifier = PriceClassifier(STYLES, pool=True, name="style")
    trainer.add_head("style", classifier, "sparse_categorical_crossentropy", metrics=["accuracy"])
    trainer.compile(keras.optimizers.Adam(0.03))

    targets |= {"tags": tags, "style": styles}
    trainer.compute_gradients((tokens, targets))
    for old, new in zip(trained, tiny.weights_of(trainer)):
        np.testing.assert_array_equal(old, new)
    history = trainer.fit(tokens, targets, epochs=25, verbose=0).history
    assert history["tags_accuracy"][-1] > 0.95 and history["style_accuracy"][-1] > 0.9
    assert history["reply_loss"][-1] < history["reply_loss"][0]
    answers = trainer.predict(tokens, verbose=0)
    real = tokens > 0
    assert answers["tags"].shape == (ROWS, TIME, TAGS)
    assert np.mean(answers["tags"].argmax(axis=2)[real] == tags[real]) > 0.95

"""The heads that do not decode: against NumPy, trained together on one encoder, saved and loaded."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, losses
from multihead.models import (
    Classifier,
    CRFTagger,
    PriceClassifier,
    Regressor,
    Seq2SeqDecoder,
    Seq2SeqEncoder,
    TokenTagger,
    TransformerDecoder,
    TransformerEncoder,
)
from tests.helpers import tiny
from tests.helpers.numpy_seq2seq import sigmoid, softmax, weights_of

POOLED = {Classifier: (3, softmax), PriceClassifier: (3, softmax), Regressor: (2, np.asarray)}
HEADS = [*POOLED, TokenTagger]
ROWS, TIME, VOCABULARY, TAGS, CLASSES = 48, 6, 12, 4, 3


def representation(dtype="float32"):
    random = np.random.default_rng(0)
    mask = np.arange(4) < np.array([[4], [2], [1]])
    return {
        "outputs": tf.constant(random.normal(size=[3, 4, 5]) - 2.0, dtype),
        "final": tf.constant(random.normal(size=[3, 5]), dtype),
        "mask": tf.constant(mask),
    }


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("kind", POOLED, ids=lambda kind: kind.__name__)
def test_pooled_heads_equal_numpy(kind, pool):
    size, activation = POOLED[kind]
    head, entries = kind(size, hidden_units=7, pool=pool), representation()
    result = head(entries)
    features = np.asarray(entries["final"], np.float64)
    if pool:
        rows = zip(np.asarray(entries["outputs"]), np.asarray(entries["mask"]))
        features = np.concatenate([features, [outputs[mask].max(axis=0) for outputs, mask in rows]], axis=1)
    kernel, bias, out_kernel, out_bias = weights_of(head)
    np.testing.assert_allclose(result, activation(sigmoid(features @ kernel + bias) @ out_kernel + out_bias), atol=1e-6)


def test_tagger_equals_numpy():
    tagger, entries = TokenTagger(TAGS), representation()
    result = tagger(entries)
    kernel, bias = weights_of(tagger)
    np.testing.assert_allclose(result, np.asarray(entries["outputs"], np.float64) @ kernel + bias, atol=1e-6)


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
def test_results_are_float32_in_mixed_precision(kind):
    result = kind(3, dtype="mixed_float16")(representation("float16"))
    assert result.dtype == tf.float32 and np.isfinite(result).all()


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
def test_config_makes_the_same_head(kind):
    options = {} if kind is TokenTagger else {"hidden_units": 7, "pool": True}
    head = kind(3, dropout=0.2, name="head", **options)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(head))
    assert type(again) is kind and again.get_config() == head.get_config()
    assert again.get_config()["dropout"] == 0.2 and set(options) <= set(again.get_config())


@pytest.mark.parametrize("kind", HEADS, ids=lambda kind: kind.__name__)
def test_dropout_is_for_training_only(kind):
    head = kind(3, dropout=0.5)
    plain = head(representation())
    np.testing.assert_array_equal(plain, head(representation(), training=False))
    assert np.abs(plain - head(representation(), training=True)).max() > 1e-4


@pytest.mark.parametrize(
    "kind, argument, missing",
    [
        (Classifier, "num_classes", "final"),
        (PriceClassifier, "num_ranges", "final"),
        (Regressor, "num_outputs", "final"),
        (TokenTagger, "num_tags", "outputs"),
    ],
)
def test_wrong_use(kind, argument, missing):
    with pytest.raises(ValueError, match=rf"`{argument}` must be an integer of at least \d\. Received: {argument}=0\."):
        kind(0)
    entries = representation()
    del entries[missing]
    with pytest.raises(ValueError, match=rf"`representation` must hold \['{missing}'\] for {kind.__name__}\. .*without"):
        kind(3)(entries)


def sentences():
    """Tokens; each token's tag, its number modulo 3; a class that the first token tells; the number of tokens."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(4, VOCABULARY, (ROWS, TIME))
    lengths = generator.integers(2, TIME + 1, ROWS)
    tokens[np.arange(TIME) >= lengths[:, np.newaxis]] = 0
    tokens = tokens.astype("int32")
    targets = {
        "tags": np.where(tokens > 0, tokens % 3 + 1, 0).astype("int32"),
        "kind": tokens[:, 0] % CLASSES,
        "length": (lengths - lengths.mean()).astype("float32"),
    }
    return tokens, targets


@pytest.mark.thorough
def test_heads_are_trained_together_saved_and_loaded(tmp_path):
    tokens, targets = sentences()
    labels = {name: values.copy() for name, values in targets.items()}
    labels["kind"][::5], labels["length"][1::5], labels["tags"][2::5, 0] = -1, np.nan, 0  # without a label
    trainer = MultiHeadTrainer(Seq2SeqEncoder(VOCABULARY, 8, 16, cell="gru"))
    trainer.add_head("tags", TokenTagger(TAGS), losses.SequenceCrossentropy(), metrics=["accuracy"])
    trainer.add_head("kind", Classifier(CLASSES, pool=True), "sparse_categorical_crossentropy", ignore_label=-1)
    trainer.add_head("length", Regressor(pool=True), "mse")
    trainer.compile(keras.optimizers.Adam(0.03), balancer=balancing.UPGrad())
    history = trainer.fit(tokens, labels, batch_size=ROWS, epochs=60, verbose=0).history
    assert history["tags_accuracy"][-1] > 0.95
    answers = trainer.predict(tokens, batch_size=ROWS, verbose=0)
    assert answers["tags"].shape == (ROWS, TIME, TAGS) and answers["length"].shape == (ROWS, 1)
    real = tokens > 0
    assert np.mean(answers["tags"].argmax(axis=2)[real] == targets["tags"][real]) > 0.95
    assert np.mean(answers["kind"].argmax(axis=1) == targets["kind"]) > 0.9
    assert np.mean((answers["length"][:, 0] - targets["length"]) ** 2) < 0.2 * np.var(targets["length"])

    trainer.save(str(tmp_path / "trainer.keras"))
    loaded = keras.models.load_model(str(tmp_path / "trainer.keras"))
    assert [type(head.module) for head in loaded.heads.values()] == [TokenTagger, Classifier, Regressor]
    for one, other in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_array_equal(one, other)
    again = loaded.predict(tokens, batch_size=ROWS, verbose=0)
    for name, answer in answers.items():
        np.testing.assert_allclose(again[name], answer, atol=1e-6)


SMOOTHED = {
    "tokens": (lambda: TokenTagger(TAGS), True),
    "chain": (lambda: CRFTagger(TAGS), False),
    "writer": (lambda: Seq2SeqDecoder(VOCABULARY, 3, 4), True),
    "copies known words": (lambda: Seq2SeqDecoder(VOCABULARY, 3, 4, copy_ids=0), True),
    "copies all words": (lambda: Seq2SeqDecoder(VOCABULARY, 3, 4, copy_ids=8), False),
    "transformer": (lambda: TransformerDecoder(VOCABULARY, 4, 4, num_layers=1, num_heads=1), True),
}


@pytest.mark.parametrize("case", SMOOTHED)
def test_labels_are_smoothed_only_where_each_is_possible(case):
    create, is_possible = SMOOTHED[case]
    forced, loss = case != "tokens", losses.SequenceCrossentropy(label_smoothing=0.1)
    is_transformer = case == "transformer"
    encoder = TransformerEncoder(9, 4, 4, num_layers=1, num_heads=1) if is_transformer else Seq2SeqEncoder(9, 3, 4)
    tokens = np.array([[4, 5, 3]])
    representation = encoder({"tokens": tokens, "copy_ids": tokens} if case.startswith("copies") else tokens)
    logits = create()(representation, *([np.array([[1, 2, 3]])] if forced else []))
    assert (tf.reduce_min(tf.nn.log_softmax(logits)) > -60) == is_possible
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("plain", create(), losses.SequenceCrossentropy(), teacher_forcing=forced)
    for form in (loss, keras.losses.serialize(loss)):
        if is_possible:
            trainer.add_head(f"smoothed {type(form).__name__}", create(), form, teacher_forcing=forced)
            continue
        with pytest.raises(ValueError, match=r"`loss` of head 'x' must not smooth labels.*label_smoothing=0\.1\. Pass 0"):
            trainer.add_head("x", create(), form, teacher_forcing=forced)

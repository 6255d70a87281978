"""Conditional random fields against the enumeration of all sequences and against Addons, and their head against a tape."""

from __future__ import annotations

import functools
import itertools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, losses
from multihead._ground.keras import tensor_variable
from multihead.models import CRFTagger, Seq2SeqEncoder, _addons_loops, crf
from tests.helpers import tiny

ROWS, TIME, TAGS = 5, 4, 3
RNG = np.random.default_rng(0)
SCORES = [RNG.normal(size=shape) * 2 for shape in ((ROWS, TIME, TAGS), (TAGS, TAGS), (TAGS,), (TAGS,))]
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0]], bool)
COMPLETE = np.array([[0, 1, 2, 1], [2, 2, 0, 9], [9, 1, 9, 0], [9, 9, 2, 9], [9, 9, 9, 9]])
PARTIAL = np.array([[0, -1, 2, -1], [-1, 2, -7, 9], [9, 1, 9, -1], [-1, -1, -1, -1], [0, 0, 0, 0]])
SOME = crf.Allowed(np.array([[1, 1, 0], [1, 1, 1], [1, 0, 1]], bool), np.array([1, 1, 0], bool), np.array([0, 1, 1], bool))
MODES = {"eagerly": lambda f: f, "graph": tf.function, "xla": functools.partial(tf.function, jit_compile=True)}


def sequences(row, mask, allowed):
    """The places of a row's words, and the score of each allowed sequence of their tags."""
    logits, transitions, start, end = SCORES
    places, found = np.flatnonzero(mask[row]), {}
    for tags in itertools.product(range(TAGS), repeat=len(places)):
        steps = list(itertools.pairwise(tags))
        if allowed and tags:
            if not (allowed.start[tags[0]] and allowed.end[tags[-1]] and all(allowed.transitions[step] for step in steps)):
                continue
        score = sum(logits[row, place, tag] for place, tag in zip(places, tags)) + sum(transitions[step] for step in steps)
        found[tags] = score + (start[tags[0]] + end[tags[-1]] if tags else 0.0)
    return places, found


def agrees(tags, known):
    return all(one < 0 or one == other for one, other in zip(known, tags, strict=True))


def log_sum(scores):
    return np.logaddexp.reduce(list(scores))


def tensors(dtype="float64"):
    return [tf.constant(each, dtype) for each in SCORES]


@pytest.mark.mathematics
@pytest.mark.first_cases(2)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("allowed", [None, SOME], ids=["all", "some"])
@pytest.mark.parametrize("mode", MODES)
def test_all_results_equal_those_of_enumeration(mode, allowed, dtype):
    def results(scores):
        options = {"mask": MASK, "allowed": allowed}
        likelihoods = [crf.log_likelihood(scores[0], tags, *scores[1:], **options) for tags in (COMPLETE, PARTIAL)]
        return likelihoods, crf.marginals(*scores, **options), crf.decode(*scores, **options)

    likelihoods, marginals, (tags, best) = MODES[mode](results)(tensors(dtype))
    assert marginals.dtype == best.dtype == likelihoods[0].dtype == dtype and tags.dtype == tf.int32
    tolerance = 1e-9 if dtype == "float64" else 1e-5
    for row in range(ROWS):
        places, found = sequences(row, MASK, allowed)
        total = log_sum(found.values())
        for given, likelihood in zip((COMPLETE, PARTIAL), likelihoods):
            agreeing = [score for each, score in found.items() if agrees(each, given[row, places])]
            if agreeing:
                np.testing.assert_allclose(likelihood[row], log_sum(agreeing) - total, atol=tolerance)
            else:
                assert -1e10 < likelihood[row] < -1e8
        expected = np.zeros([TIME, TAGS])
        for each, score in found.items():
            expected[places, list(each)] += np.exp(score - total)
        np.testing.assert_allclose(marginals[row], expected, atol=tolerance)
        winner, expected = max(found, key=found.get), np.full(TIME, -1)
        expected[places] = winner
        np.testing.assert_array_equal(tags[row], expected)
        np.testing.assert_allclose(best[row], found[winner], atol=tolerance)


@pytest.mark.mathematics
@pytest.mark.parametrize("mode", ["eagerly", "graph", "export"])
def test_sentences_of_any_time_equal_enumeration(mode, tmp_path):
    """From no words at all, with sizes that a graph does not know."""
    specs = [tf.TensorSpec([None, None, TAGS], tf.float64), tf.TensorSpec([None, None], tf.bool)]
    specs.append(tf.TensorSpec([None, None], tf.int64))

    def results(logits, mask, tags):
        _, *scores = tensors()
        likelihood = crf.log_likelihood(logits, tags, *scores, mask=mask)
        return likelihood, crf.marginals(logits, *scores, mask=mask), *crf.decode(logits, *scores, mask=mask)

    run = results if mode == "eagerly" else tf.function(results, input_signature=specs)
    if mode == "export":
        module = tf.Module()
        module.run = run
        tf.saved_model.save(module, str(tmp_path))
        run = tf.saved_model.load(str(tmp_path)).run
    for time in range(TIME + 1):
        logits, mask, known = SCORES[0][:, :time], MASK[:, :time], PARTIAL[:, :time]
        likelihood, marginals, tags, best = (each.numpy() for each in run(*map(tf.constant, (logits, mask, known))))
        assert marginals.shape == (ROWS, time, TAGS) and tags.shape == (ROWS, time)
        for row in range(ROWS):
            places, found = sequences(row, mask, None)
            total = log_sum(found.values())
            agreeing = [score for each, score in found.items() if agrees(each, known[row, places])]
            np.testing.assert_allclose(likelihood[row], log_sum(agreeing) - total, atol=1e-9)
            expected = np.zeros([time, TAGS])
            for each, score in found.items():
                expected[places, list(each)] += np.exp(score - total)
            np.testing.assert_allclose(marginals[row], expected, atol=1e-9)
            winner, expected = max(found, key=found.get), np.full(time, -1)
            expected[places] = winner
            np.testing.assert_array_equal(tags[row], expected)
            np.testing.assert_allclose(best[row], found[winner], atol=1e-9)


@pytest.mark.parametrize("wrong", [TAGS, 255])
@pytest.mark.parametrize("mode", MODES)
def test_a_tag_that_does_not_exist_has_no_likelihood(mode, wrong):
    """At any present word, and at no absent one."""

    def results(tags):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            likelihood = crf.log_likelihood(scores[0], tags, *scores[1:], mask=MASK)
        return likelihood, crf.next_tag_logits(scores[0], tags, *scores[1:], mask=MASK), tape.gradient(likelihood, scores[0])

    scores = tensors()
    run = MODES[mode](results)
    known = np.where(MASK, COMPLETE, 0)
    right = [each.numpy() for each in run(tf.constant(known))]
    for place in range(TIME):
        tags = known.copy()
        tags[:, place] = wrong
        of_sentences, of_words, gradients = (each.numpy() for each in run(tf.constant(tags)))
        is_wrong = MASK[:, place]
        np.testing.assert_array_equal(np.isnan(of_sentences), is_wrong)
        np.testing.assert_array_equal(np.isnan(of_words).all(axis=2), is_wrong[:, np.newaxis] & (np.arange(TIME) >= place))
        assert np.isnan(gradients[is_wrong]).any(axis=(1, 2)).all()
        for found, expected in zip((of_sentences, of_words, gradients), right):
            np.testing.assert_array_equal(found[~is_wrong], expected[~is_wrong])


@pytest.mark.first_cases(1)
@pytest.mark.mathematics
@pytest.mark.parametrize("mode", MODES)
def test_gradients_equal_finite_differences(mode):
    def likelihood(scores):
        return crf.log_likelihood(scores[0], PARTIAL, *scores[1:], mask=MASK)

    def gradients(scores):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            weighted = likelihood(scores) * tf.range(1.0, 6.0, dtype=tf.float64)
        return tape.gradient(weighted, scores)

    step, weights, value = 1e-5, np.arange(1.0, 6.0), tf.function(likelihood)
    for place, found in enumerate(MODES[mode](gradients)(tensors())):
        for index in np.ndindex(*found.numpy().shape):
            ends = []
            for sign in (1, -1):
                moved = [each.copy() for each in SCORES]
                moved[place][index] += sign * step
                ends.append(weights @ value([tf.constant(each) for each in moved]).numpy())
            np.testing.assert_allclose(found[index], (ends[0] - ends[1]) / (2 * step), atol=1e-6)


@pytest.mark.thorough
@pytest.mark.mathematics
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_long_sentences_in_half_precision_are_computed_in_single_precision(dtype):
    rng = np.random.default_rng(1)
    logits, tags = tf.constant(rng.normal(size=[2, 100, 7]) * 50, dtype), rng.integers(0, 7, [2, 100])
    transitions = tf.constant(rng.normal(size=[7, 7]) * 20, dtype)

    @tf.function(autograph=False)
    def results(logits, transitions):
        with tf.GradientTape() as tape:
            tape.watch([logits, transitions])
            likelihood = crf.log_likelihood(logits, tags, transitions)
        return likelihood, tape.gradient(likelihood, [logits, transitions]), crf.decode(logits, transitions)

    found, gradients, (path, best) = results(logits, transitions)
    assert found.dtype == tf.float32
    assert all(np.isfinite(tf.cast(each, tf.float32)).all() for each in gradients)
    wanted, _, (wanted_path, wanted_best) = results(tf.cast(logits, tf.float64), tf.cast(transitions, tf.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_array_equal(path, wanted_path)
    np.testing.assert_allclose(best, wanted_best, rtol=1e-6)


@pytest.mark.addons
@pytest.mark.skipif(not _addons_loops.is_installed(), reason="needs TensorFlow Addons")
def test_results_equal_those_of_addons():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_addons as tfa
    logits, transitions, *ends = tensors("float32")
    lengths, tags = tf.constant([4, 3, 2, 1, 4]), tf.constant(RNG.integers(0, TAGS, [ROWS, TIME]), tf.int32)
    wanted, _ = tfa.text.crf_log_likelihood(logits, tags, lengths, transitions)
    np.testing.assert_allclose(crf.log_likelihood(logits, tags, transitions, mask=lengths), wanted, rtol=1e-4)
    paths, best = tfa.text.crf_decode(logits, transitions, lengths)
    found, scores = crf.decode(logits, transitions, mask=lengths)
    mask = np.arange(TIME) < lengths.numpy()[:, np.newaxis]
    np.testing.assert_array_equal(found, np.where(mask, paths, -1))
    np.testing.assert_allclose(scores, best, rtol=1e-5)

    layer = tfa.layers.CRF(TAGS, use_kernel=False)
    layer(logits, mask=tf.constant(mask))
    for name, value in zip(("chain_kernel", "left_boundary", "right_boundary"), (transitions, *ends)):
        getattr(layer, name).assign(value)
    paths, *_ = layer(logits, mask=tf.constant(mask))
    found, _ = crf.decode(logits, transitions, *ends, mask=mask)
    np.testing.assert_array_equal(np.where(mask, found, 0), np.where(mask, paths, 0))


# Tags by scheme, sequences of tags that it allows, and some that it does not.
SPANS = {
    "IOB": ("O B-a I-a B-b I-b", "O,B-a I-a O,B-a I-a I-a B-b I-b,B-a B-a", "I-a,O I-a,B-a I-b,I-b I-a"),
    "IOBES": (
        "O B-a I-a E-a S-a B-b E-b",
        "O S-a S-a,B-a I-a I-a E-a B-b E-b",
        "I-a E-a,B-a,O B-a I-a,B-a O,B-a E-b,E-a,S-a E-a,B-a B-b",
    ),
}


@pytest.mark.parametrize("scheme", SPANS)
def test_a_scheme_allows_its_spans_and_no_others(scheme):
    names, right, wrong = (text.split(separator) for text, separator in zip(SPANS[scheme], " ,,"))
    transitions, start, end = crf.allowed_transitions(names, scheme)

    def is_allowed(tags):
        ids = [names.index(tag) for tag in tags.split()]
        return start[ids[0]] and end[ids[-1]] and all(transitions[step] for step in itertools.pairwise(ids))

    assert all(map(is_allowed, right)) and not any(map(is_allowed, wrong))
    padded = crf.allowed_transitions(["", *names], scheme)
    assert (
        not padded.transitions[0].any() and not padded.transitions[:, 0].any() and not padded.start[0] and not padded.end[0]
    )
    np.testing.assert_array_equal(padded.transitions[1:, 1:], transitions)


@pytest.mark.parametrize("tag", ["X", "E-a", "B-", "-a", "b-a"])
def test_names_of_another_scheme_are_refused(tag):
    with pytest.raises(ValueError, match=r"`tags` must be 'O' or.*Received: '.*' for the scheme 'IOB'"):
        crf.allowed_transitions(["O", tag])


def test_wrong_arguments_are_refused():
    logits, transitions, start, end = tensors()
    with pytest.raises(ValueError, match="`scheme` must be one of 'IOB', 'IOBES'"):
        crf.allowed_transitions(["O"], "BIO")
    with pytest.raises(ValueError, match=r"`transitions` must have shape \(3, 3\)"):
        crf.marginals(logits, start)
    with pytest.raises(ValueError, match=r"`start` must have shape \(3,\)"):
        crf.decode(logits, transitions, allowed=crf.Allowed(np.ones([3, 3], bool), np.ones(4, bool), np.ones(3, bool)))
    with pytest.raises(ValueError, match="`mask` must be booleans"):
        crf.marginals(logits, transitions, mask=MASK.astype("float32"))
    with pytest.raises(ValueError, match="`logits` must be floating"):
        crf.marginals(logits[0], transitions)


# The head

NAMES = ["", "O", "B-a", "I-a"]


def sentences(rows=12, time=6, seed=0):
    """Padded words, and tags, of which some inside of the sentences are missing."""
    rng = np.random.default_rng(seed)
    words = rng.integers(1, 9, [rows, time])
    words[np.arange(time) >= rng.integers(1, time + 1, rows)[:, np.newaxis]] = 0
    tags = np.where(words > 0, 1 + (words + np.roll(words, 1, axis=1)) % 3, 0)
    tags[rng.random(tags.shape) < 0.2] = 0
    return words, tags


def trainer_of(**options):
    keras.utils.set_random_seed(1)
    trainer = MultiHeadTrainer(Seq2SeqEncoder(9, 4, 5))
    tagger = CRFTagger(4, allowed=crf.allowed_transitions(NAMES))
    trainer.add_head("slots", tagger, losses.SequenceCrossentropy(), teacher_forcing=True, metrics=["accuracy"])
    trainer.compile(keras.optimizers.SGD(0.5), **options)
    return trainer


def by_hand(words, tags, weights=None):
    """One step on the log likelihood itself, divided by the words with a tag; the loss before it, and the weights after it."""
    trainer = trainer_of()
    tagger = trainer.heads["slots"].module
    start(trainer, words, tags)
    weights = np.ones(len(words), "float32") if weights is None else weights
    variables = [tensor_variable(each) for module in (trainer.encoder, tagger) for each in module.trainable_variables]
    with tf.GradientTape() as tape:
        representation = trainer.encoder(words)
        scores = [tf.convert_to_tensor(each) for each in (tagger.transitions, tagger.start, tagger.end)]
        logits = tagger.tags(representation["outputs"])
        likelihood = crf.log_likelihood(logits, tags - 1, *scores, mask=representation["mask"])
        loss = -tf.reduce_sum(likelihood * weights) / np.sum((tags > 0) * weights[:, np.newaxis])
    gradients = tape.gradient(loss, variables)
    return float(loss), [
        variable.numpy() - 0.5 * np.asarray(tf.convert_to_tensor(each)) for variable, each in zip(variables, gradients)
    ]


def start(trainer, words, tags):
    """Builds a trainer and gives its head other scores than zeros."""
    tagger = trainer.heads["slots"].module
    tagger(trainer.encoder(words), tags)
    rng = np.random.default_rng(2)
    for variable in tagger.trainable_variables:
        variable.assign(rng.normal(size=variable.shape).astype("float32"))


def assert_trained(trainer, expected):
    found = [each for module in (trainer.encoder, trainer.heads["slots"].module) for each in module.trainable_variables]
    for one, other in zip(tiny.values(found), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


GATHERINGS = {
    "both, eagerly": (6, {"gradient_accumulation_steps": 2, "micro_batches": 2, "run_eagerly": True}),
    "both": (6, {"gradient_accumulation_steps": 2, "micro_batches": 2}),
    "one batch": (12, {}),
    "micro-batches": (12, {"micro_batches": 3}),
    "accumulated": (4, {"gradient_accumulation_steps": 3}),
    "xla": (12, {"jit_compile": True}),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", ""])
@pytest.mark.parametrize("gathering", GATHERINGS)
def test_an_update_is_that_of_a_tape(gathering, weighted):
    words, tags = sentences()
    weights = np.random.default_rng(3).integers(0, 4, len(words)).astype("float32") if weighted else None
    loss, expected = by_hand(words, tags, weights)
    batch_size, options = GATHERINGS[gathering]
    trainer = trainer_of(**options)
    start(trainer, words, tags)
    data = (words, {"slots": tags}) if weights is None else (words, {"slots": tags}, {"slots": weights})
    before = trainer.evaluate(tf.data.Dataset.from_tensor_slices(data).batch(5), verbose=0, return_dict=True)
    np.testing.assert_allclose(before["slots_loss"], loss, rtol=1e-5)
    trainer.fit(tf.data.Dataset.from_tensor_slices(data).batch(batch_size), verbose=0)
    assert_trained(trainer, expected)


def test_metrics_are_those_of_the_predicted_tags():
    words, tags = sentences(40)
    trainer = trainer_of(run_eagerly=True)
    start(trainer, words, tags)
    predicted = trainer.predict(words, verbose=0)["slots"]
    assert predicted.shape == words.shape and predicted.dtype == np.int32
    np.testing.assert_array_equal(predicted == 0, words == 0)
    expected = np.mean((predicted == tags)[tags > 0])
    teacher_forced = np.argmax(trainer.heads["slots"].module(trainer.encoder(words), tags), axis=-1)
    assert np.mean((teacher_forced == tags)[tags > 0]) != pytest.approx(expected, abs=1e-3)
    found = trainer.evaluate(words, {"slots": tags}, verbose=0, return_dict=True)["slots_accuracy"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    trained = trainer.fit(words, {"slots": tags}, batch_size=40, verbose=0).history["slots_accuracy"][0]
    np.testing.assert_allclose(trained, expected, rtol=1e-6)


def test_predictions_keep_to_the_scheme():
    words, tags = sentences(40)
    trainer = trainer_of()
    start(trainer, words, tags)
    module = trainer.heads["slots"].module
    module.start.assign([0.0, 0.0, 9.0])
    for allowed in (module.allowed, None):
        module.allowed = allowed
        predicted = module.generate(trainer.encoder(words)).numpy()
        before = np.concatenate([np.ones([40, 1], int), predicted[:, :-1]], axis=1)
        assert np.any((predicted == 3) & (before == 1)) == (allowed is None)
        probabilities = module.marginals(trainer.encoder(words)).numpy()
        assert (probabilities[:, 0, 3].max() < 1e-6) == (allowed is not None)
        np.testing.assert_allclose(probabilities.sum(axis=2), words > 0, atol=1e-5)


def test_it_learns_and_is_saved_and_exported(tmp_path):
    words, tags = sentences(64)
    trainer = trainer_of()
    trainer.compile(keras.optimizers.Adam(0.05))
    history = trainer.fit(words, {"slots": tags}, epochs=12, batch_size=32, verbose=0).history
    assert history["slots_accuracy"][-1] > history["slots_accuracy"][0] + 0.2
    expected = trainer.predict(words, verbose=0)["slots"]
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    np.testing.assert_array_equal(loaded.predict(words, verbose=0)["slots"], expected)
    assert loaded.heads["slots"].module.get_config() == trainer.heads["slots"].module.get_config()
    trainer.export(tmp_path / "export")
    served = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"](tf.constant(words))
    np.testing.assert_array_equal(served["slots"], expected)


@pytest.mark.thorough
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_it_trains_in_mixed_precision(policy):
    words, tags = sentences()
    keras.mixed_precision.set_global_policy(policy)
    trainer = trainer_of()
    loss = trainer.fit(words, {"slots": tags}, epochs=3, verbose=0).history["slots_loss"]
    representation = trainer.encoder(words)
    assert representation["outputs"].dtype == policy.removeprefix("mixed_")
    assert trainer.heads["slots"].module(representation, tags).dtype == tf.float32
    assert np.isfinite(loss).all() and loss[-1] < loss[0]


def test_a_keras_mask_skips_words_wherever_they_are():
    words, tags = sentences()
    words[:, 1] = 0
    inputs = keras.Input((None,), dtype="int64")
    vectors = keras.layers.Embedding(9, 4, mask_zero=True)(inputs)
    trainer = MultiHeadTrainer(keras.Model(inputs, vectors))
    trainer.add_head("slots", CRFTagger(4), losses.SequenceCrossentropy(), teacher_forcing=True)
    trainer.compile("sgd", run_eagerly=True)
    predicted = trainer.predict(words, verbose=0)["slots"]
    np.testing.assert_array_equal(predicted == 0, words == 0)
    found = trainer.evaluate(words, {"slots": np.where(tags, tags, 1)}, verbose=0, return_dict=True)["slots_loss"]
    tagger = trainer.heads["slots"].module
    likelihood = crf.log_likelihood(
        tagger.tags(trainer.encoder(words)), np.where(tags, tags, 1) - 1, np.zeros([3, 3]), mask=words > 0
    )
    np.testing.assert_allclose(found, -np.sum(likelihood) / np.sum(words > 0), rtol=1e-5)


def test_wrong_use_is_refused():
    words, tags = sentences()
    with pytest.raises(ValueError, match="`num_tags` must be an integer of at least 2"):
        CRFTagger(1)
    with pytest.raises(ValueError, match="`allowed` must be for the 4 tags of the head"):
        CRFTagger(4, allowed=crf.allowed_transitions(NAMES[1:]))
    trainer = MultiHeadTrainer(Seq2SeqEncoder(9, 4, 5))
    trainer.add_head("slots", CRFTagger(4), losses.SequenceCrossentropy())
    trainer.compile("sgd", run_eagerly=True)
    with pytest.raises(
        ValueError, match="(?s)which it reads in training. Received: None. Pass `teacher_forcing=True` to `add_head`"
    ):
        trainer.fit(words, {"slots": tags}, verbose=0)
    trainer = MultiHeadTrainer(Seq2SeqEncoder(9, 4, 5))
    trainer.add_head("slots", CRFTagger(4), losses.SequenceCrossentropy(padding_id=-1), teacher_forcing=True)
    trainer.compile("sgd", run_eagerly=True)
    with pytest.raises(ValueError, match=r"`targets\['slots'\]` must hold no tag 0"):
        trainer.fit(words, {"slots": tags}, verbose=0)


def test_one_value_for_a_sequence_is_refused_with_the_name_of_the_tagger():
    class Natural(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.tags = keras.layers.Dense(3)

        def call(self, representation, targets):
            return -crf.log_likelihood(self.tags(representation["outputs"]), targets - 1, tf.zeros([3, 3]))

    words, tags = sentences()
    trainer = MultiHeadTrainer(Seq2SeqEncoder(9, 4, 5))
    trainer.add_head("slots", Natural(), lambda targets, outputs: outputs, teacher_forcing=True)
    trainer.compile("sgd", run_eagerly=True)
    with pytest.raises(ValueError, match="(?s)one label per value of the loss.*`multihead.models.CRFTagger`"):
        trainer.fit(words, {"slots": tags}, verbose=0)

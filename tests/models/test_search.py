"""The public searches against exhaustive search, NumPy and TensorFlow Addons, over steps that are not the library's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import tensorflow as tf

from multihead.models import search

pytestmark = pytest.mark.mathematics

VOCABULARY, UNITS, BATCH = 4, 5, 3
RANDOM = np.random.default_rng(0)
TABLE, RECURRENT, OUTPUT = (RANDOM.normal(size=size) for size in ([VOCABULARY, UNITS], [UNITS, UNITS], [UNITS, VOCABULARY]))
FIRST = RANDOM.normal(size=[BATCH, UNITS])
OFFSETS = RANDOM.normal(size=[BATCH, VOCABULARY])
END = 1


def step(ids, state):
    """A small recurrent network; the state is a dict with a number of steps, so that structures are tested."""
    hidden = tf.tanh(state["hidden"] @ tf.constant(RECURRENT, tf.float32) + tf.gather(tf.constant(TABLE, tf.float32), ids))
    return hidden @ tf.constant(2.0 * OUTPUT, tf.float32), {"hidden": hidden, "count": state["count"] + 1}


def first():
    return {"hidden": tf.constant(FIRST, tf.float32), "count": tf.zeros([BATCH], tf.int32)}


def step_with_memory(ids, state, memory):
    """The same, with logits of each example's own added; works with any number of rows per example."""
    logits, state = step(ids, state)
    offsets = tf.repeat(memory, tf.shape(ids)[0] // tf.shape(memory)[0], axis=0)
    return logits + offsets, state


def log_probabilities(row, ids, *, memory, start):
    """float64, `[time, vocabulary]`: of each id given those before it."""
    hidden, result = FIRST[row], []
    for previous in [start, *ids[:-1]]:
        hidden = np.tanh(hidden @ RECURRENT + TABLE[previous])
        logits = 2.0 * hidden @ OUTPUT + (OFFSETS[row] if memory else 0.0)
        result.append(logits - np.log(np.exp(logits).sum()))
    return np.array(result)


def score(row, ids, power=0.0, **options):
    each = log_probabilities(row, ids, **options)
    return each[np.arange(len(ids)), list(ids)].sum() / ((5 + len(ids)) / 6) ** power


def every_sequence(row, length, end, power, **options):
    others = [token for token in range(VOCABULARY) if token != end]
    found = []
    for size in range(1, length + 1):
        for ids in itertools.product(*([others] * (size - 1)), [end] if size < length else range(VOCABULARY)):
            found.append((score(row, ids, power, **options), ids))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("end, power, memory", [(1, 0.0, True), (0, 1.0, False), (3, 0.6, True)])
def test_a_wide_beam_equals_exhaustive_search(end, power, memory):
    steps, entries = (step_with_memory, tf.constant(OFFSETS, tf.float32)) if memory else (step, None)
    found = search.beam(
        steps,
        first(),
        entries,
        start_id=tf.constant([2, 0, 1]),
        end_id=end,
        maximum_length=4,
        beam_width=121,
        num_best=9,
        length_penalty=power,
    )
    for row, start in enumerate([2, 0, 1]):
        expected = every_sequence(row, 4, end, power, memory=memory, start=start)[:9]
        np.testing.assert_allclose(found.scores[row], [one for one, _ in expected], atol=1e-4)
        np.testing.assert_array_equal(found.lengths[row], [len(ids) for _, ids in expected])
        for ids, (_, others) in zip(found.ids[row].numpy().tolist(), expected):
            assert ids == [*others, *([0] * (4 - len(others)))]


def reference_beam(row, width, length, start):
    """Beam search in NumPy, without length penalty; ids and score of each beam, best first."""
    beams = [((), 0.0)]
    for _ in range(length):
        longer = []
        for ids, total in beams:
            if ids and ids[-1] == END:
                longer.append((ids, total))
                continue
            for token in range(VOCABULARY):
                longer.append(((*ids, token), score(row, (*ids, token), memory=False, start=start)))
        beams = sorted(longer, key=lambda beam: -beam[1])[:width]
    return beams


@pytest.mark.parametrize("remove", [False, True])
def test_a_narrow_beam_equals_numpy(remove):
    ends = dict(start_id=2, end_id=END, maximum_length=6)
    found = search.beam(step, first(), beam_width=2, num_best=2, remove_finished=remove, **ends)
    greedy = search.greedy(step, first(), remove_finished=remove, **ends)
    for row in range(BATCH):
        for width, result in ((2, found), (1, greedy)):
            expected = reference_beam(row, width, 6, 2)
            np.testing.assert_allclose(result.scores[row], [total for _, total in expected], atol=1e-4)
            for ids, (others, _) in zip(result.ids[row].numpy().tolist(), expected):
                assert ids == [*others, *([0] * (6 - len(others)))]
    assert len(set(found.lengths.numpy().ravel().tolist())) > 1


def test_samples_follow_the_logits():
    many, start = 3000, first()
    repeated = tf.nest.map_structure(lambda tensor: tf.repeat(tensor[:1], many, axis=0), start)
    ends = dict(start_id=2, end_id=END, maximum_length=1)
    for temperature, top_k in ((1.0, None), (2.0, 2)):
        found = search.sample(step, repeated, temperature=temperature, top_k=top_k, seed=3, **ends)
        own = log_probabilities(0, [0], memory=False, start=2)[0]
        drawn = np.where(own >= np.sort(own)[-(top_k or VOCABULARY)], np.exp(own / temperature), 0.0)
        shares = np.bincount(found.ids.numpy().ravel(), minlength=VOCABULARY) / many
        np.testing.assert_allclose(shares, drawn / drawn.sum(), atol=0.03)
        np.testing.assert_allclose(found.scores[:, 0], own[found.ids[:, 0, 0]], atol=1e-5)
    again = [search.sample(step, start, seed=seed, start_id=2, end_id=9 % 4, maximum_length=8).ids for seed in (1, 1, None)]
    np.testing.assert_array_equal(again[0], again[1])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("jit", [False, True])
def test_in_a_graph_and_with_xla(jit):
    def run(hidden, memory):
        state = {"hidden": hidden, "count": tf.zeros(tf.shape(hidden)[:1], tf.int32)}
        ends = dict(start_id=2, end_id=END, maximum_length=5)
        sampled = search.sample(step_with_memory, state, memory, seed=1, **ends)
        return (
            search.greedy(step_with_memory, state, memory, **ends)[:3],
            search.beam(step_with_memory, state, memory, beam_width=3, num_best=2, length_penalty=0.5, **ends)[:3],
            tf.shape(sampled.ids) if jit else sampled[:3],  # XLA draws other numbers
        )

    data = tf.constant(FIRST, tf.float32), tf.constant(OFFSETS, tf.float32)
    signature = [tf.TensorSpec([None, UNITS]), tf.TensorSpec([None, VOCABULARY])]
    graph = tf.function(run, jit_compile=jit, input_signature=signature)(*data)
    for one, other in zip(tf.nest.flatten(graph), tf.nest.flatten(run(*data))):
        np.testing.assert_allclose(one, other, atol=1e-5)
    if not jit:
        nothing = tf.function(run, input_signature=signature)(data[0][:0], data[1][:0])
        assert nothing[1][0].shape == [0, 2, 5]


def test_ids_that_a_step_excludes_are_never_chosen():
    def without_two(ids, state):
        logits, state = step(ids, state)
        return tf.where(tf.range(VOCABULARY) == 2, -np.inf, logits), state

    ends = dict(start_id=2, end_id=END, maximum_length=2)
    found = search.beam(without_two, first(), beam_width=9, num_best=9, **ends)
    assert not (found.ids.numpy() == 2).any()
    assert (np.isfinite(found.scores.numpy()).sum(axis=1) == 7).all()  # the end alone, or two of three, the first no end
    assert not (search.sample(without_two, first(), seed=0, **ends).ids.numpy() == 2).any()


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(step=3), r"`step` must be a function of the last ids and the state\. Received: step=3\."),
        (dict(state=tf.constant(1.0)), r"`state` must hold tensors with one row per example.* Received: a scalar\."),
        (dict(start_id=1.5), r"`start_id` must be an integer, or integers \[batch\]\. Received: start_id=1\.5\."),
        (dict(start_id=tf.constant([2, 2])), r"`state`, `memory` and `start_id` must have .* Received: \[2, 3\] rows\."),
        (dict(end_id=-1), r"`end_id` must be an integer of at least 0\. Received: end_id=-1\."),
        (dict(end_id=4), r"`end_id` must be one of the ids .* Received: end_id=4, logits of 4 ids\."),
        (dict(maximum_length=0), r"`maximum_length` must be an integer of at least 1\."),
        (dict(step=lambda ids, state: state), r"`step` must return the logits .* Received: dict\. Return a pair\."),
        (dict(step=lambda ids, state: (ids, state)), r"`step` must return logits, .* Received: dtype int32, shape \(3,\)\."),
        (
            dict(step=lambda ids, state: (step(ids, state)[0], state["hidden"][:, :2])),
            r"`step` must return a state with .* Received: \['float32\[2\]'\] after \['int32\[\]', 'float32\[5\]'\]\.",
        ),
    ],
)
def test_wrong_arguments(options, message):
    arguments = {"step": step, "state": first(), "start_id": 2, "end_id": END, "maximum_length": 3, **options}
    with pytest.raises(ValueError, match=message):
        search.greedy(arguments.pop("step"), arguments.pop("state"), **arguments)

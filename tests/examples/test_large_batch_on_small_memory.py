"""Mini-batches make the update of one large batch: the same weights, one step of Adam, and less memory."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import large_batch_on_small_memory as program
from tests.helpers.tiny import tensor_variable

pytestmark = pytest.mark.programs

SIZE = program.Size(3, 4)


@pytest.fixture(scope="module")
def outcomes(eager_updates):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "TIME", 5)
        return {case: program.train(case, SIZE, 0) for case in program.CASES}


def test_slots_are_those_of_one_gradient_by_tape(outcomes, monkeypatch):
    monkeypatch.setattr(program, "TIME", 5)
    trainer = program.make_trainer(0)
    (batch,) = program.joined(program.stream(SIZE, 0))
    variables = [tensor_variable(variable) for _, variable in trainer.compute_gradients(batch)]
    np.testing.assert_array_equal(program.flat(variables), outcomes[program.LARGE].start)
    with tf.GradientTape() as tape:
        predictions = trainer(batch[0])
        kind = keras.losses.sparse_categorical_crossentropy(batch[1]["kind"], predictions["kind"])
        loss = tf.reduce_mean(kind) + tf.reduce_mean(tf.square(batch[1]["level"] - predictions["level"]))
    gradient = program.flat(tape.gradient(loss, variables)).astype("float64")
    expected = np.sort(np.concatenate([0.1 * gradient, 0.001 * gradient**2]))
    step = 1e-3 * gradient / (np.abs(gradient) + 1e-7 / np.sqrt(0.001))  # Adam's first
    for case in program.CASES[:-1]:
        assert outcomes[case].updates == 1
        np.testing.assert_allclose(np.sort(outcomes[case].slots), expected, rtol=1e-3, atol=1e-7)
        moved = outcomes[case].weights - outcomes[case].start
        large = np.abs(gradient) > 1e-3  # a smaller one's rounding shows in its quotient
        assert large.mean() > 0.3
        np.testing.assert_allclose(moved[large], -step[large], rtol=1e-2)


def test_weights_are_those_of_the_large_batch(outcomes):
    for case in program.CASES[1:-1]:
        weights, slots = program.distance(outcomes[case], outcomes[program.LARGE])
        assert weights < 1e-3 and slots < 1e-4, case
    assert outcomes[program.SEPARATE].updates == SIZE.parts
    assert program.distance(outcomes[program.SEPARATE], outcomes[program.LARGE])[0] > 0.3


def test_the_last_mini_batch_counted_twice():
    assert program.means_of([1.0, 1.0, 2.0, 4.0]) == (pytest.approx((1 + 1 + 2 + 4 + 4) / 5), 2.0)


@pytest.mark.thorough
def test_a_stream_takes_less_memory():
    found = program.in_fresh_processes(program.Size(8, 64), 0, lambda: None)
    by_hand, large = found[program.BY_HAND], found[program.LARGE]
    assert large.megabytes > 200  # six layers of 64 floats at 400 places in 512 examples are 300 MB
    assert by_hand.megabytes < large.megabytes / 2
    assert program.distance(by_hand, large)[0] < 1e-3


def test_the_program(outcomes, tmp_path, capsys, monkeypatch):
    # What was trained in this process: there the peak is an old one, and memory is not what is tested.
    found = {case: outcome._replace(megabytes=50.0) for case, outcome in outcomes.items()}
    monkeypatch.setattr(program, "in_fresh_processes", lambda size, seed, advance: found)
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "is then 2.4; the accumulator's is 2." in output
    assert (tmp_path / "large_batch_on_small_memory.png").read_bytes().startswith(b"\x89PNG")

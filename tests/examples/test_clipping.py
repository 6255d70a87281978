"""What clipping does to an exploding gradient: lengths, directions, absent and sparse gradients."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import clipping as program
from multihead import clipping

pytestmark = pytest.mark.programs


@pytest.fixture(scope="module")
def step():
    trainer = program.make_trainer(0, keras.optimizers.SGD(0.1))
    batch = program.make_batch(np.random.default_rng(0))
    pairs = trainer.compute_gradients(batch)
    return trainer, batch, [gradient for gradient, _ in pairs], [variable for _, variable in pairs]


def flat(gradients):
    """All elements of gradients; those of a sparse one are put into their places here by hand."""
    parts = []
    for gradient in gradients:
        if isinstance(gradient, tf.IndexedSlices):
            whole = np.zeros(gradient.dense_shape.numpy())
            np.add.at(whole, gradient.indices.numpy(), gradient.values.numpy())
            parts.append(whole.ravel())
        elif gradient is not None:
            parts.append(np.ravel(gradient).astype("float64"))
    return np.concatenate(parts)


def test_norms_and_cosines_are_those_of_flat_vectors(step):
    _, _, gradients, _ = step
    vector, clipped = flat(gradients), clipping.ByValue(0.01)(gradients)
    assert program.global_norm(gradients) == pytest.approx(np.linalg.norm(vector))
    assert np.linalg.norm(vector) > 20  # it explodes: the net has about 2,000 weights of size 0.2
    expected = vector @ np.clip(vector, -0.01, 0.01)
    expected /= np.linalg.norm(vector) * np.linalg.norm(np.clip(vector, -0.01, 0.01))
    assert program.cosine(gradients, clipped) == pytest.approx(expected, rel=1e-5)


def test_kinds_and_names_of_gradients(step):
    _, _, gradients, variables = step
    assert [program.kind_of(gradient) for gradient in gradients] == ["sparse", *["dense"] * 7]
    shapes = dict(zip(program.VARIABLES, (tuple(variable.shape) for variable in variables)))
    assert shapes["embedding"] == (64, 8) and shapes["recurrent kernel"] == (32, 32) and shapes["recent: kernel"] == (32, 4)
    assert len(variables) == len(program.VARIABLES) and shapes["high: bias"] == (1,)


def test_only_the_global_norm_keeps_the_direction(step):
    _, _, gradients, _ = step
    length = program.global_norm(gradients)
    for name, kind in program.KINDS.items():
        clipped = [program.calibrated(kind, gradients, target)(gradients) for target in (length / 50, length * 0.99)]
        assert np.linalg.norm(flat(clipped[0])) == pytest.approx(length / 50, rel=1e-3), name
        short, long = (program.cosine(gradients, each) for each in clipped)
        assert short == pytest.approx(1) if name == "by global norm" else short < 0.9 < long, name


def test_clipping_by_hand_is_that_of_the_trainer(step):
    _, batch, _, _ = step
    clip, weights = clipping.ByNorm(0.05), []
    for by_hand in (True, False):
        trainer = program.make_trainer(0, "sgd")
        if not by_hand:
            trainer.compile("sgd", clip=clip)
        pairs = trainer.compute_gradients(batch)
        gradients, variables = zip(*pairs)
        assert trainer.apply_gradients(zip(clip(gradients) if by_hand else gradients, variables))
        weights.append(np.concatenate([np.ravel(tf.convert_to_tensor(variable)) for variable in variables]))
    np.testing.assert_array_equal(*weights)


def test_unclipped_it_explodes_and_clipped_it_does_not():
    plain = program.train(None, 0, 25)
    clipped = program.train(clipping.ByGlobalNorm(1.0), 0, 25)
    assert max(plain.norms) > 1e4 and plain.norms[0] == clipped.norms[0]
    assert max(clipped.norms) < 200 and all(clipped.made) and len(clipped.accuracy) == 2


def test_the_program(tmp_path, capsys, monkeypatch):
    # Two of the ways, each of which is trained.
    monkeypatch.setattr(program, "KINDS", {name: program.KINDS[name] for name in ("by value", "by global norm")})
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "embedding: sparse, high: kernel: none, high: bias: none." in output
    assert "with Adam the head does not change at all" in output
    assert (tmp_path / "clipping.png").read_bytes().startswith(b"\x89PNG")

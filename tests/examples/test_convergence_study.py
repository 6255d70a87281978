"""The study runs, its network is the one whose results are recorded, and a summed price loss starves the decoder."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples import convergence_study as program

pytestmark = pytest.mark.programs


@pytest.fixture(scope="module")
def study():
    return program.Study(300, 100)


def test_both_heads_read_one_tensor_and_learn_from_whole_orders(study):
    keras.utils.set_random_seed(0)
    trainer = study.trainer(8)
    x, y = study.part("train")
    lengths = (x != 0).sum(axis=1)
    assert x.shape[1] == program.LONGEST and 0 < lengths.min() and 200 < len(x) < 300
    assert study.part("dev")[1]["reply"].shape[1] == y["reply"].shape[1]
    hidden = trainer.encoder(x[:4])
    logits = trainer.heads["reply"].module(hidden, y["reply"][:4]).numpy().astype("float64")
    assert hidden.shape == (4, 8) and logits.shape[:2] == y["reply"][:4].shape
    trainer.compile("sgd", run_eagerly=True)
    found = trainer.evaluate(x[:4], {head: each[:4] for head, each in y.items()}, return_dict=True, verbose=0)
    logits -= np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    of_tokens = -np.take_along_axis(logits, y["reply"][:4, :, np.newaxis], axis=-1)[..., 0]
    assert found["reply_loss"] == pytest.approx(of_tokens[y["reply"][:4] != 0].mean(), rel=1e-4)
    assert trainer.heads["reply"].module.generate(hidden).shape[0] == 4


def test_summed_over_the_batch_the_price_has_nearly_the_whole_update(study):
    keras.utils.set_random_seed(0)
    trainer = study.trainer(16)
    x, y = study.part("train")
    ids, targets = tf.constant(x[:64]), {head: tf.constant(each[:64]) for head, each in y.items()}
    trainer.compile("sgd", run_eagerly=True)
    norms = {}
    for head in ("reply", "price"):
        pairs = trainer.compute_gradients((ids, {head: targets[head]}))
        norms[head] = tf.linalg.global_norm([gradient for gradient, _ in pairs[:3]]).numpy()
    assert program.BATCH * norms["price"] > 20 * norms["reply"]
    assert set(program.QUICK) < set(program.VARIANTS)


@pytest.mark.thorough
def test_the_program(tmp_path, capsys):
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in ("alone", *program.QUICK)) and "The representation gradient of 'price' is" in said
    assert (tmp_path / "convergence_study.png").read_bytes().startswith(b"\x89PNG")

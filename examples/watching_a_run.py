"""Who moves the encoder, and do the heads agree? Draws every picture of `multihead.plots` from one run.

Support tickets with three heads on one encoder: 40 rare topics, the hours to solve a ticket, and whether it is urgent. The
encoder returns four numbers only, so the heads compete. The weights of the losses are learned (`Uncertainty`), and conflicts
are removed (`UPGrad`). `UpdateLogger` writes each update to a file, from which the pictures are drawn, as by
`python -m multihead plot`.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import keras
import numpy as np

from examples._shared import Session, run_program
from multihead import MultiHeadTrainer, plots
from multihead.callbacks import UpdateLogger

TOPICS = 40


def tickets(generator: np.random.Generator, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Features of tickets, `[size, 24]`, and the labels of each head."""
    x = generator.normal(size=(size, 24)).astype("float32")
    topics = x[:, :8] @ np.random.default_rng(1).normal(size=(8, TOPICS)) > 5.5
    hours = np.tanh(x[:, 6:10]).sum(axis=1) / 1.3 + 0.5 * generator.normal(size=size)
    urgent = x[:, 8] + x[:, 10] * x[:, 11] > 0.5
    return x, {"topics": topics.astype("float32"), "hours": hours.astype("float32"), "urgent": urgent.astype("int64")}


def make_trainer() -> MultiHeadTrainer:
    """Three layers that are shared, and a head for each task."""
    units = {"first": 64, "second": 32, "third": 4}
    layers = [keras.layers.Dense(n, activation="tanh", name=name) for name, n in units.items()]
    trainer = MultiHeadTrainer(keras.Sequential(layers, name="encoder"))
    trainer.add_head("topics", keras.layers.Dense(TOPICS, activation="sigmoid"), "binary_crossentropy")
    trainer.add_head("hours", keras.layers.Dense(1), "mse")
    trainer.add_head("urgent", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.compile(keras.optimizers.Adam(3e-3), weighting="Uncertainty", balancer="UPGrad", telemetry="full")
    return trainer


def body(session: Session) -> None:
    """Trains, and draws."""
    generator = np.random.default_rng(session.seed)
    train, held_out = (tickets(generator, size) for size in ((256, 64) if session.quick else (6000, 1000)))
    trainer = make_trainer()
    ledger = session.folder / "run.jsonl"
    ledger.unlink(missing_ok=True)
    options: dict[str, Any] = {"epochs": 2 if session.quick else 8, "batch_size": 64, "verbose": 0}
    trainer.fit(*train, validation_data=held_out, callbacks=[UpdateLogger(ledger)], **options)
    files = plots.all_of(ledger, session.folder)
    files.append(session.folder / "model.png")
    plots.model(trainer).savefig(files[-1], dpi=150)
    for file in files:
        session.say(f"wrote {file}")


main = partial(run_program, "watching_a_run", __doc__, body)

if __name__ == "__main__":
    sys.exit(main())

"""The heads of the example, untrained and tiny, exported."""

from __future__ import annotations

import keras
import numpy as np

from examples.seq2seq_price.answers import PriceModel
from examples.seq2seq_price.columns import LabelColumn
from examples.seq2seq_price.model import Sizes

TEXTS = ["two oak chairs", "one table", "chairs", "oak oak oak oak two"]


def price_model():
    """A model with a decoder and a price head, built."""
    keras.utils.set_random_seed(3)
    sizes = Sizes(5, 5, 4, units=6, embedding=4, attention="luong")
    columns = [LabelColumn("price", "price", ("low", "high"))]
    model = PriceModel(sizes, (["two", "oak", "chairs"], ["chair", "oak", "no"]), columns)
    model.trainer.compile("sgd", run_eagerly=True)
    targets = {"reply": np.array([[4, 3]]), "price": np.array([1])}
    model.trainer.compute_gradients((np.array([[4, 3, 2]], "int32"), targets))
    return model


def exported(folder):
    """The model, whose heads are exported to a folder."""
    model = price_model()
    model.export(folder)
    return model

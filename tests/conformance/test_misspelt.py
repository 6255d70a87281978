"""A misspelt name, in whatever argument of a public callable, is an error that says what was meant."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import (
    ByPath,
    Head,
    MultiHeadTrainer,
    Stages,
    balancing,
    callbacks,
    compare,
    comparison,
    losses,
    mix_datasets,
    models,
    plots,
    scaling,
    schedules,
)
from multihead import weighting as weightings
from multihead.accumulation import GradientAccumulator
from tests.helpers import compared

X = np.ones((4, 2), "float32")
Y = {"price": X[:, :1], "size": X[:, :1]}


def trainer(encoder=None, compiled=True, heads=("price", "size"), **options):
    made = MultiHeadTrainer(encoder or keras.layers.Dense(2))
    for name in heads:
        made.add_head(name, keras.layers.Dense(1), "mse", metrics=["mae"])
    if compiled:
        made.compile("sgd", run_eagerly=True, **options)
    return made


@pytest.fixture(scope="module")
def built():
    made = trainer()
    made.compute_gradients((X, Y))
    return made


class TwoOutputs(keras.layers.Layer):
    def call(self, inputs):
        return {"pooled": inputs, "tokens": inputs}


def reading(reads):
    made = MultiHeadTrainer(TwoOutputs())
    made.add_head("a", keras.layers.Dense(1), "mse", reads=reads)
    made.compile("sgd", run_eagerly=True)
    made.compute_gradients((X, {"a": X[:, :1]}))


def bound(method):
    method.bind(["price", "size"])


def by_path(pattern):
    layer = keras.layers.Dense(2)
    layer.build((None, 2))
    ByPath({pattern: 0}).factors(layer, layer.trainable_variables)


def monitored(**options):
    callback = callbacks.HeadEarlyStopping(**options)
    callback.set_model(trainer())
    callback.on_train_begin()


def datasets(names):
    return {name: tf.data.Dataset.from_tensors((X, X[:, :1])) for name in names}


def saved_layers(path, name):
    layer = keras.layers.Dense(2)
    layer.build((None, 2))
    models.save_weights(path / "weights.npz", {"encoder": layer})
    models.load_weights(path / "weights.npz", {name: layer})


def draw(path, picture):
    (path / "run.jsonl").write_text("")
    picture(path / "rum.jsonl")


DECODER = {"vocabulary_size": 9, "embedding_size": 2, "units": 2}


def comparing(**given):
    arguments = {
        "variants": {"plain sum": {}},
        "seeds": 1,
        "budget": 1,
        "options": {"run_eagerly": True},
        "verbose": 0,
        **given,
    }
    parts = {name: compared.examples(8) for name in ("train", "validation")}
    return compare(compared.build, given.get("data", parts), **{k: v for k, v in arguments.items() if k != "data"})


# What is passed by name, misspelt, and the nearest name.
NAMES = {
    "ByPath.factors": (lambda: by_path("kernle"), "kernel"),
    "balancing.UPGrad.preference": (lambda: bound(balancing.UPGrad(preference={"prize": 1.0})), "price"),
    "balancing.NormFloor.preference": (lambda: bound(balancing.NormFloor(preference={"prize": 1.0})), "price"),
    "balancing.AlignedMTL.scale": (lambda: balancing.AlignedMTL(scale="medain"), "median"),
    "balancing.Chain.steps": (lambda: balancing.Chain("EqualNorm", "UPGrad"), "EqualNorms"),
    "balancing.MGDA.normalization": (lambda: balancing.MGDA(normalization="los"), "loss"),
    "balancing.MetaBalance.strategy": (lambda: balancing.MetaBalance(strategy="enlrage"), "enlarge"),
    "balancing.MetaBalance.target": (lambda: bound(balancing.MetaBalance("prize")), "price"),
    "balancing.balance.balancer": (lambda: balancing.balance([X, X], "UPgrat"), "UPGrad"),
    "balancing.get.identifier": (lambda: balancing.get("pc_grat"), "PCGrad"),
    "callbacks.Checkpoint.every": (lambda: callbacks.Checkpoint("a", every="epcoh"), "epoch"),
    "callbacks.HeadEarlyStopping.monitor": (lambda: monitored(monitor={"price": "val_price_mea"}), "val_price_mae"),
    "callbacks.HeadEarlyStopping.min_delta": (lambda: monitored(min_delta={"prize": 0.1}), "price"),
    "callbacks.HeadEarlyStopping.mode": (lambda: callbacks.HeadEarlyStopping(mode="mni"), "min"),
    "callbacks.HeadEarlyStopping.single_task": (lambda: monitored(single_task={"prize": 0.1, "size": 1}), "price"),
    "HeadEarlyStopping.restore.head": (lambda: callbacks.HeadEarlyStopping().restore("prize"), None),
    "GradientAccumulator.add.reduction": (
        lambda: GradientAccumulator([tf.Variable(1.0)]).add([tf.ones([])], reduction="men"),
        "mean",
    ),
    "compare.data": (lambda: comparing(data={"train": compared.examples(8), "validaton": None}), "validation"),
    "compare.variants": (lambda: comparing(variants={"a": {"balancr": "UPGrad"}}), "balancer"),
    "compare.budget": (lambda: comparing(budget={"epoch": 3}), "epochs"),
    "compare.metrics": (lambda: comparing(metrics={"kind": "kind_acuracy", "size": "size_loss"}), "kind_accuracy"),
    "compare.options": (lambda: comparing(options={"clp": None}), "clip"),
    "compare.equal_cost": (lambda: comparing(equal_cost=["plan sum"]), "plain sum"),
    "comparison.read.file": (lambda path: draw(path, comparison.read), "run.jsonl"),
    "losses.get.loss": (lambda: losses.get("binary_crossentrpy"), "binary_crossentropy"),
    "mix_datasets.weights": (lambda: mix_datasets(datasets(["price"]), weights={"prize": 1.0}), "price"),
    "models.Seq2SeqDecoder.attention": (lambda: models.Seq2SeqDecoder(**DECODER, attention="loung"), "luong"),
    "models.Seq2SeqDecoder.cell": (lambda: models.Seq2SeqDecoder(**DECODER, cell="lsmt"), "lstm"),
    "models.Seq2SeqDecoder.engine": (lambda: models.Seq2SeqDecoder(**DECODER, engine="natve"), "native"),
    "models.crf.allowed_transitions.scheme": (lambda: models.crf.allowed_transitions(["O"], "IOBS"), "IOBES"),
    "models.load_weights.layers": (lambda path: saved_layers(path, "encodr"), "encoder"),
    "plots.losses.run": (lambda path: draw(path, plots.losses), "run.jsonl"),
    "schedules.Alternate.turns": (lambda: bound(schedules.Alternate({"prize": 1, "size": 1})), "price"),
    "weighting.FAMO.least_losses": (lambda: built_weighting(weightings.FAMO(least_losses={"prize": 0.1})), "price"),
    "weighting.get.identifier": (lambda: weightings.get("Uncertianty"), "Uncertainty"),
    "MultiHeadTrainer.add_head.loss": (lambda: trainer().add_head("a", keras.layers.Dense(1), "huberr"), "huber"),
    "MultiHeadTrainer.add_head.metrics": (
        lambda: trainer().add_head("a", keras.layers.Dense(1), "mse", metrics=["acuracy"]),
        "accuracy",
    ),
    "MultiHeadTrainer.add_head.target_scaling": (
        lambda: trainer().add_head("a", keras.layers.Dense(1), "mse", target_scaling="standardise"),
        "standardize",
    ),
    "scaling.get.scaling": (lambda: scaling.get("lgo"), "log"),
    "MultiHeadTrainer.add_head.reads": (lambda: reading("poled"), "pooled"),
    "MultiHeadTrainer.remove_head.name": (lambda: trainer().remove_head("prize"), "price"),
    "MultiHeadTrainer.set_weight.name": (lambda: trainer().set_weight("prize", 1.0), "price"),
    "MultiHeadTrainer.set_idle.heads": (lambda: trainer().set_idle(["prize"]), "price"),
    "MultiHeadTrainer.compile.optimizer": (lambda: trainer().compile("adaam"), "adam"),
    "MultiHeadTrainer.compile.weighting": (lambda: trainer(weighting="log_los"), "LogLoss"),
    "MultiHeadTrainer.compile.balancer": (lambda: trainer(balancer="UBGrad"), "UPGrad"),
    "MultiHeadTrainer.compile.balance_at": (lambda: trainer(balance_at="parameter"), "parameters"),
    "MultiHeadTrainer.compile.telemetry": (lambda: trainer(telemetry="norm"), "norms"),
    "MultiHeadTrainer.compile.on_nonfinite": (lambda: trainer(on_nonfinite="skipp"), "skip"),
    "MultiHeadTrainer.compile.jit_compile": (lambda: trainer(jit_compile="atuo"), "auto"),
    "MultiHeadTrainer.fit.y": (lambda: trainer().fit(X, {"prize": X, "size": X}), "price"),
    "MultiHeadTrainer.compute_gradients.batch": (lambda: trainer().compute_gradients((X, {"prize": X})), "price"),
    "MultiHeadTrainer.diagnose.y": (lambda: trainer().diagnose(X, {"prize": X}), "price"),
    "MultiHeadTrainer.diagnose.sample_weight": (
        lambda: trainer().diagnose(X, Y, sample_weight={"prize": X[:, 0]}),
        "price",
    ),
    "Head.target_scaling": (lambda: Head(keras.layers.Dense(1), "mse", target_scaling="standardise"), "standardize"),
    "MultiHeadTrainer.head_gradients.at": (lambda built: built.head_gradients((X, Y), at="parameter"), "parameters"),
    "MultiHeadTrainer.compile.target_scaling": (lambda: trainer(target_scaling={"prize": "log"}), "price"),
    "MultiHeadTrainer.export.heads": (lambda built, path: built.export(path, "prize"), "price"),
    "MultiHeadTrainer.export.generate": (lambda built, path: built.export(path, generate={"prize": abs}), "price"),
    "MultiHeadTrainer.export.postprocess": (lambda built, path: built.export(path, postprocess={"prize": abs}), "price"),
    # In some of their forms, or by way of Keras.
    "encoder_learning_rate_multiplier": (
        lambda: trainer(encoder_learning_rate_multiplier=Stages({0: ByPath({"kernle": 0.5})})).compute_gradients((X, Y)),
        "kernel",
    ),
    "fit(sample_weight)": (lambda: trainer().fit(X, Y, sample_weight={"prize": X[:, 0]}), "price"),
    "fit(class_weight)": (lambda: trainer().fit(X, Y, class_weight={"prize": {0: 1.0}}), "price"),
    "fit(validation_data)": (lambda: trainer().fit(X, Y, validation_data=(X, {"prize": X})), "price"),
    "schedule": (lambda: trainer(head_schedule="alternat"), "Alternate"),
    "clip": (lambda: trainer(clip="by_global_nrm"), "ByGlobalNorm"),
    "uses": (lambda: bound(type("Mine", (balancing.Balancer,), {"uses": ("gradient",)})()), "gradients"),
    "monitor, of another callback": (
        lambda: trainer().fit(
            X,
            Y,
            validation_data=(X, Y),
            verbose=0,
            callbacks=[callbacks.HeadEarlyStopping({"price": "val_price_mea"}, mode="min", idle=False)],
        ),
        "val_price_mae",
    ),
}


def built_weighting(method):
    trainer(weighting=method).compute_gradients((X, Y))


@pytest.mark.parametrize("argument", NAMES)
def test_a_misspelt_name_is_an_error_that_names_the_nearest(argument, built, tmp_path):
    action, nearest = NAMES[argument]
    given = {"path": tmp_path, "built": built}
    said = (
        rf"Received: .*(Did you mean '?\S*{nearest}'?\?|(as in|an instance of) \w+\.{nearest}\b)"
        if nearest
        else "Received: .*Pass one of"
    )
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=f"(?s){said}"):
        action(**{name: given[name] for name in inspect.signature(action).parameters if name in given})

"""Every layer that Keras ships: an instance of each, made from its signature, and data for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

KERAS_3 = hasattr(keras, "ops")

BATCH = 4
WORDS = ("one", "two", "three", "four")
SHAPES = {
    "vector": (6,),
    "sequence": (4, 3),
    "image": (6, 6, 3),
    "volume": (4, 4, 4, 2),
    "volumes": (2, 3, 3, 3, 2),
    "wave": (128,),
    "signal": (128, 1),
    "ids": (4,),
    "id": (1,),
    "text": (1,),
}
"""The shape of one example by kind of input. All are floating but `ids` and `id`, numbers from 1 to 9, and `text`."""

DTYPES = {"ids": "int64", "id": "int64", "text": "string"}

# What the signature cannot tell: the value of a required argument, and what an argument of some layer must be instead.
ARGUMENTS: dict[str, Any] = {
    "activation": "tanh",
    "axes": 1,
    "dims": (2, 1),
    "equation": "ab,bc->ac",
    "factor": 0.3,
    "filters": 2,
    "function": None,
    "head_dim": 2,
    "height": 4,
    "height_factor": 0.3,
    "input_dim": 10,
    "kernel_size": 2,
    "key_dim": 2,
    "n": 2,
    "num_bins": 5,
    "num_heads": 2,
    "num_key_value_heads": 1,
    "num_query_heads": 2,
    "output_dim": 3,
    "output_shape": 3,
    "output_size": 2,
    "pool_size": 2,
    "rate": 0.3,
    "scale": 0.5,
    "stddev": 0.1,
    "target_shape": (-1, 2),
    "units": 3,
    "width": 4,
    "width_factor": 0.3,
}
OF_LAYER: dict[str, dict[str, Any]] = {
    "ActivityRegularization": {"l1": 0.01, "l2": 0.02},
    "CategoryEncoding": {"num_tokens": 10, "output_mode": "multi_hot"},
    "Discretization": {"num_bins": 3},
    "GroupNormalization": {"groups": 3},
    "HashedCrossing": {"num_bins": 5},
    "MelSpectrogram": {"fft_length": 64, "num_mel_bins": 4, "sequence_stride": 32, "sampling_rate": 1000},
    "STFTSpectrogram": {"frame_length": 64, "frame_step": 32, "fft_length": 64},
    "TextVectorization": {"output_sequence_length": 3},
    "RandomPosterization": {"factor": 4},
    "RandomFourierFeatures": {"kernel_initializer": "gaussian"},
}
MADE: dict[str, Callable[[], Any]] = {
    "Bidirectional": lambda: keras.layers.Bidirectional(keras.layers.GRU(2)),
    "DenseFeatures": lambda: keras.layers.DenseFeatures([tf.feature_column.numeric_column("vector", (6,))]),
    # Keras 2 has no seed for the dropout of a cell.
    "GRUCell": lambda: keras.layers.RNN(keras.layers.GRUCell(2, **({"dropout": 0.2, "seed": 7} if KERAS_3 else {}))),
    "LSTMCell": lambda: keras.layers.RNN(keras.layers.LSTMCell(2)),
    "Lambda": lambda: keras.layers.Lambda(doubled, output_shape=lambda shape: shape),
    "Pipeline": lambda: keras.layers.Pipeline([keras.layers.Rescaling(0.5), keras.layers.RandomFlip(seed=7)]),
    "RNN": lambda: keras.layers.RNN(keras.layers.SimpleRNNCell(2)),
    "SimpleRNNCell": lambda: keras.layers.RNN(keras.layers.SimpleRNNCell(2)),
    "SpectralNormalization": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(2)),
    "StackedRNNCells": lambda: keras.layers.RNN(
        keras.layers.StackedRNNCells([keras.layers.GRUCell(2), keras.layers.LSTMCell(2)])
    ),
    "TimeDistributed": lambda: keras.layers.TimeDistributed(keras.layers.Dense(2)),
}
KIND: dict[str, str] = {
    "CategoryEncoding": "ids",
    "ConvLSTM1D": "image",
    "ConvLSTM2D": "volume",
    "ConvLSTM3D": "volumes",
    "Embedding": "ids",
    "HashedCrossing": "id",
    "Hashing": "ids",
    "IntegerLookup": "ids",
    "MelSpectrogram": "wave",
    "Pipeline": "image",
    "ReversibleEmbedding": "ids",
    "STFTSpectrogram": "signal",
    "StringLookup": "text",
    "TextVectorization": "text",
    "DenseFeatures": "vector",
    **dict.fromkeys(["RepeatVector", "Reshape", "RandomFourierFeatures"], "vector"),
    **dict.fromkeys(
        ["Attention", "AdditiveAttention", "Bidirectional", "GRU", "GRUCell", "GroupQueryAttention"], "sequence"
    ),
    **dict.fromkeys(["GroupNormalization", "LSTM", "LSTMCell", "Masking", "MultiHeadAttention", "Permute"], "sequence"),
    **dict.fromkeys(["RNN", "SimpleRNN", "SimpleRNNCell", "StackedRNNCells", "TimeDistributed"], "sequence"),
    **dict.fromkeys(["AugMix", "AutoContrast", "CenterCrop", "ContrastLimitedAdaptiveHistogramEqualization"], "image"),
    **dict.fromkeys(["CutMix", "Equalization", "MixUp", "RandAugment", "Resizing", "Solarization"], "image"),
}
SEVERAL = {
    "two": ["Add", "Average", "Concatenate", "Dot", "HashedCrossing", "Maximum", "Minimum", "Multiply", "Subtract"]
    + ["Attention", "AdditiveAttention"],  # in a list
    "apart": ["MultiHeadAttention", "GroupQueryAttention"],  # as two arguments
}
DRAWS_IN_PYTHON = {"AugMix", "RandAugment"}
"""Layers that draw random numbers from Python, so that those of a graph are drawn once, while it is traced."""
NO_GRADIENT = {"RandomContrast"} if not KERAS_3 else set()
"""Layers whose operations have no gradient in TensorFlow: they can only process a model's inputs."""
NOT_TRAINED = {
    "AbstractRNNCell": "abstract",
    "InputLayer": "the place of an input in a functional model; every such model has some",
    "Layer": "abstract",
    "Wrapper": "abstract",
    "FlaxLayer": "a module of Flax",
    "JaxLayer": "a function of JAX",
    "TorchModuleWrapper": "a module of PyTorch",
    "TFSMLayer": "a SavedModel, which runs in inference mode only",
    "MaxNumBoundingBoxes": "takes boxes instead of a tensor, and has no output to train on",
}


@keras.saving.register_keras_serializable(package="every_layer")
def doubled(inputs):
    return 2 * inputs


@keras.saving.register_keras_serializable(package="every_layer")
class Pooled(keras.layers.Layer):
    """`[batch, 1]`: a mean of all values of an example, whatever its shape, with weights that differ."""

    def __init__(self, **options):
        super().__init__(**options)
        self.supports_masking = True

    def call(self, inputs):
        dense = tf.sparse.to_dense(inputs) if isinstance(inputs, tf.SparseTensor) else inputs
        values = tf.reshape(tf.cast(dense, tf.float32), [tf.shape(dense)[0], -1])
        weights = tf.cos(tf.cast(tf.range(tf.shape(values)[1]), tf.float32))
        return tf.reduce_mean(values * weights, axis=1, keepdims=True)

    def compute_mask(self, inputs, mask=None):
        return None

    def compute_output_shape(self, shape):
        return (shape[0], 1)


class Case(NamedTuple):
    """A layer of the table.

    Attributes:
        name: Its name, or what it is.
        make: Makes a new instance; all have the same seed, if any.
        kind: Which of the inputs it takes.
        given: How it takes them: `"one"`, `"two"` in a list, two `"apart"`, or a dict `"by name"`.
    """

    name: str
    make: Callable[[], Any]
    kind: str
    given: str = "one"

    def __repr__(self):
        return self.name

    @property
    def source(self):
        """The tensor that it reads: the input itself, if no gradient can pass."""
        return f"raw {self.kind}" if self.stops_gradients else self.kind

    @property
    def stops_gradients(self):
        """Whether no gradient can pass, also where it is wrapped."""
        return any(name in self.name for name in NO_GRADIENT)

    def on(self, layer, tensor):
        """The layer's output."""
        if self.given == "two":
            return layer([tensor, tensor])
        if self.given == "by name":
            return layer({self.kind: tensor})
        return layer(tensor, tensor) if self.given == "apart" else layer(tensor)


def shipped():
    """All public layer classes of `keras.layers`, each once, by name."""
    found = {}
    for place in (keras.layers, getattr(keras.layers, "experimental", None)):
        for name in dir(place):
            each = getattr(place, name)
            if inspect.isclass(each) and issubclass(each, keras.layers.Layer):
                found.setdefault(each, name)
    return {name: each for each, name in found.items()}


def cases():
    """A case for each layer that Keras ships, except those of `NOT_TRAINED`."""
    return {name: case(name) for name in shipped() if name not in NOT_TRAINED}


def case(name):
    """The case of a layer."""
    given = next((how for how, names in SEVERAL.items() if name in names), "one")
    return Case(
        name, lambda: _adapted(make(name), _kind(name)), _kind(name), "by name" if name == "DenseFeatures" else given
    )


def seeded(name, seed=7):
    """`seed=`, where a layer takes one."""
    return {"seed": seed} if "seed" in inspect.signature(shipped()[name].__init__).parameters else {}


def make(name):
    """An instance of a layer.

    Raises:
        KeyError: It has a required argument that the table does not know.
    """
    if name in MADE:
        return MADE[name]()
    layer = shipped()[name]
    required = [
        key
        for key, parameter in inspect.signature(layer.__init__).parameters.items()
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD and key != "self"
    ]
    of_layer = OF_LAYER.get(name, {})
    return layer(**{**{key: ARGUMENTS[key] for key in required if key not in of_layer}, **of_layer, **seeded(name)})


def _kind(name):
    by_axes = {"1D": "sequence", "2D": "image", "3D": "volume"}
    return (
        KIND.get(name)
        or by_axes.get(name[-2:])
        or next((k for d, k in by_axes.items() if d in name), None)
        or ("image" if name.startswith("Random") else "vector")
    )


def _adapted(layer, kind):
    if hasattr(layer, "adapt"):
        if not KERAS_3:
            layer.compile(run_eagerly=True)
        layer.adapt(data(kind))
    return layer


def data(kind, batch=BATCH, seed=0):
    """An array of examples of a kind."""
    rng = np.random.default_rng(seed)
    shape = (batch, *SHAPES[kind])
    if "id" in kind:
        return rng.integers(1, 10, shape)
    if kind == "text":
        return rng.choice(np.array(WORDS, object), shape)
    return rng.normal(size=shape).astype("float32")


WRAPPERS = ("Bidirectional", "SpectralNormalization", "TimeDistributed")


def symbol(kind):
    """The symbolic input of a kind."""
    return keras.Input(SHAPES[kind], dtype=DTYPES.get(kind, "float32"), name=kind)


# ------------------------------------------------------------------------------------------------------ a network


class Group(keras.layers.Layer):
    """A layer of layers, which are built when they are called; Keras 3 would call all of them once more to build them."""

    def build(self, shape=None):
        self.built = True


@keras.saving.register_keras_serializable(package="every_layer")
class Branches(Group):
    """The layers of some cases, side by side: a dict of tensors by kind of input to `[batch, layers]`.

    Args:
        cases: The cases, or their names.
    """

    def __init__(self, cases, **options):
        super().__init__(**options)
        self.cases = [find(each) if isinstance(each, str) else each for each in cases]
        self.branches = [each.make() for each in self.cases]
        self.pooled = Pooled()

    def call(self, tensors):
        found = [self.pooled(case.on(layer, tensors[case.source])) for case, layer in zip(self.cases, self.branches)]
        return tf.concat(found, axis=1)

    def compute_output_shape(self, shape):
        return (None, len(self.cases))

    def get_config(self):
        return {**super().get_config(), "cases": [each.name for each in self.cases]}


@keras.saving.register_keras_serializable(package="every_layer")
class Encoder(Group):
    """From a dict of inputs by kind to what the heads read of each kind, and what some layers make of it."""

    def __init__(self, kinds, branches, **options):
        super().__init__(**options)
        self.kinds = list(kinds)
        self.below = [None if kind in DTYPES else keras.layers.Dense(SHAPES[kind][-1]) for kind in self.kinds]
        self.branches, self.dense = branches, keras.layers.Dense(3)

    def call(self, inputs):
        read = {kind: inputs[kind] if layer is None else layer(inputs[kind]) for kind, layer in zip(self.kinds, self.below)}
        raw = {f"raw {kind}": each for kind, each in inputs.items()}
        encoded = [self.dense(read["vector"]), *([] if self.branches is None else [self.branches({**read, **raw})])]
        return {**read, "encoded": tf.concat(encoded, axis=1)}

    def get_config(self):
        return {**super().get_config(), "kinds": self.kinds, "branches": saved(self.branches)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "branches": loaded(config["branches"])})


@keras.saving.register_keras_serializable(package="every_layer")
class Head(Group):
    """`[batch, 1]` from the representation, through layers of its own and layers shared with another head."""

    def __init__(self, own, shared, **options):
        super().__init__(**options)
        self.own, self.shared, self.dense = own, shared, keras.layers.Dense(1)

    def call(self, representation):
        found = [each(representation) for each in (self.own, self.shared) if each is not None]
        return self.dense(tf.concat([representation["encoded"], *found], axis=1))

    def get_config(self):
        return {**super().get_config(), "own": saved(self.own), "shared": saved(self.shared)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "own": loaded(config["own"]), "shared": loaded(config["shared"])})


def saved(layer):
    return None if layer is None else keras.saving.serialize_keras_object(layer)


def loaded(config):
    return (
        config if config is None or isinstance(config, keras.layers.Layer) else keras.saving.deserialize_keras_object(config)
    )


class AsOneModel(keras.Model):
    """An encoder and heads as a model with several outputs, as Keras itself trains it."""

    def __init__(self, encoder, heads):
        super().__init__()
        self.encoder, self.names = encoder, list(heads)
        self.modules = list(heads.values())

    def build(self, shape=None):
        self.built = True

    def call(self, inputs, training=None):  # without this argument, Keras 3 would train it in inference mode
        hidden = self.encoder(inputs)
        return {name: module(hidden) for name, module in zip(self.names, self.modules)}


class Net(NamedTuple):
    """Layers in the encoder, in head `a`, and shared by the heads `a` and `b`.

    Attributes:
        encoder: From a dict of inputs by kind to a dict of tensors that the heads read.
        heads: The modules of both heads.
        branches: The layers by place: `"encoder"`, `"head"`, `"shared"`.
        cases: The cases it was made of.
        places: Their places.
    """

    encoder: Any
    heads: dict[str, Any]
    branches: dict[str, Branches]
    cases: Any = None
    places: Any = None

    @property
    def layers(self):
        """The instances by place and name."""
        return {
            (place, case.name): layer for place, of in self.branches.items() for case, layer in zip(of.cases, of.branches)
        }

    @property
    def values(self):
        """What each of them keeps."""
        return {key: values_of(layer) for key, layer in self.layers.items()}

    def as_one_model(self):
        return AsOneModel(self.encoder, self.heads)

    def inputs(self, batch=BATCH, seed=0):
        """Arrays of inputs."""
        return {kind: data(kind, batch, seed) for kind in self.encoder.kinds}


PLACES = ("encoder", "head", "shared")


def network(cases, places=PLACES, seed=1):
    """A network of the layers of some cases.

    Args:
        cases: The cases.
        places: The places in which to put an instance of each, or a function from the position of a case to its places.
        seed: The seed of the initial weights.
    """
    keras.utils.set_random_seed(seed)
    of_case = places if callable(places) else lambda i: places
    by_place = {place: [each for i, each in enumerate(cases) if place in of_case(i)] for place in PLACES}
    by_place = {p: [each for each in found if p == "encoder" or not each.stops_gradients] for p, found in by_place.items()}
    branches = {place: Branches(found) for place, found in by_place.items() if found}
    encoder = Encoder(dict.fromkeys(["vector", *(each.kind for each in cases)]), branches.get("encoder"))
    heads = {"a": Head(branches.get("head"), branches.get("shared")), "b": Head(None, branches.get("shared"))}
    return Net(encoder, heads, branches, list(cases), places)


def variables_of(layer):
    """All that a layer keeps, seeds included: TensorFlow's variables, each once."""
    if KERAS_3:
        return [each.value for each in layer.variables]
    inner = [getattr(each, "_random_generator", None) for each in layer._flatten_layers()]
    generators = [each._generator.state for each in inner if getattr(each, "_generator", None) is not None]
    found = [each for each in layer.variables if isinstance(each, tf.Variable)]
    return list({id(each): each for each in (*found, *generators)}.values())


def values_of(layer, seeds=True):
    """Their values, with or without those of the seeds."""
    found = [each for each in variables_of(layer) if seeds or not is_seed(each)]
    return [np.array(tf.convert_to_tensor(each)) for each in found]


def is_seed(variable):
    """Whether a layer draws random numbers from a variable."""
    return "seed_generator" in variable.name or "StateVar" in variable.name


def find(name):
    """The case of a name: `"Dense"`, or `"TimeDistributed(Dense)"`."""
    wrapper, _, inner = name.removesuffix(")").partition("(")
    if not inner:
        return case(name)
    of, deeper = case(inner), {"vector": "sequence", "sequence": "image", "image": "volume", "volume": "volumes"}
    kind = deeper[of.kind] if wrapper == "TimeDistributed" else of.kind
    return Case(name, lambda: shipped()[wrapper](of.make()), kind)

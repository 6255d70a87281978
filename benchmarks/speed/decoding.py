"""Decoding and training speed of the reference decoder: native, with TensorFlow Addons, and with the samplers of Keras Hub.

All engines use the same weights; engines that are not installed are skipped. The model is first trained briefly on inputs
of one to `--source-length` tokens and outputs of the same lengths, so that sequences end at different time steps, as real
ones do. Timing starts at the representation, which is the same for all. A speed is the median over rounds, and a ratio the
median of the ratios in each round.

The second table says how near the native steps are to their bound on a processor: the time of their matrix products
alone, at the same sizes, divided by the time of the steps. Here no sequence ends, so all rows take part in each step.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.speed._record import Line, Row, Table, finish, significant, table
from benchmarks.speed._shared import enough_steps, in_turns, parsed, parser_of, ratio
from multihead.models import Seq2SeqDecoder, Seq2SeqEncoder, _addons_loops, _native_loops
from multihead.models._search import Search

SENTENCES, STEPS = "Sentences per second", "Training steps per second, with teacher forcing"
PRODUCTS = "Matrix products alone, relative to native steps where no sequence ends"
TITLES = {"addons": "Addons", "addons, logits after the loop": "Addons, logits after the loop", "keras-hub": "Keras Hub"}


def seconds_of(functions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Each function's time per call in every round; short ones are called repeatedly."""
    return in_turns(functions, rounds, enough_steps(functions, 0.05))


def make(options: argparse.Namespace, engine: str) -> tuple[Seq2SeqEncoder, Seq2SeqDecoder]:
    """An encoder and a decoder."""
    keras.utils.set_random_seed(0)
    encoder = Seq2SeqEncoder(options.vocabulary, options.embedding, options.units, cell=options.cell)
    decoder = Seq2SeqDecoder(
        options.vocabulary,
        options.embedding,
        options.units,
        cell=options.cell,
        attention=None if options.attention == "none" else options.attention,
        input_feeding=options.input_feeding,
        maximum_length=options.maximum_length,
        engine=engine,
    )
    decoder(encoder(tf.constant([[4, 5]])), tf.constant([[4, 3]]))
    return encoder, decoder


def pairs(options: argparse.Namespace, batch: int, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Inputs of random lengths; the targets are the same ids with an end id."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, options.source_length + 1, [batch, 1])
    places = np.arange(options.source_length + 1)
    ids = np.where(places < lengths, random.integers(4, 24, [batch, options.source_length + 1]), 0)
    return tf.constant(ids[:, :-1], tf.int32), tf.constant(np.where(places == lengths, 3, ids), tf.int32)


def tensor_variables(layer: keras.layers.Layer) -> list[tf.Variable]:
    """A layer's trainable weights as TensorFlow variables, on Keras 2 and Keras 3."""
    return [weight if isinstance(weight, tf.Variable) else weight.value for weight in layer.trainable_weights]


def mean_loss(logits: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Mean cross-entropy per token."""
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    return tf.reduce_mean(tf.boolean_mask(losses, targets > 0))


def trained(options: argparse.Namespace) -> tuple[Seq2SeqEncoder, Seq2SeqDecoder]:
    """A model trained until it ends its outputs."""
    encoder, decoder = make(options, "native")
    weights = [*encoder.trainable_weights, *decoder.trainable_weights]
    variables = [*tensor_variables(encoder), *tensor_variables(decoder)]
    optimizer = keras.optimizers.Adam(3e-3, global_clipnorm=1.0)

    @tf.function
    def compute(tokens: tf.Tensor, targets: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = mean_loss(decoder(encoder(tokens, training=True), targets, training=True), targets)
        return [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, variables)]

    for number in range(options.training):
        optimizer.apply_gradients(zip(compute(*pairs(options, 64, number)), weights))
    return encoder, decoder


def to_the_end(function: Callable[..., object], *arguments: object) -> Callable[[], Any]:
    """A call of the function as a graph that returns when the result is available."""
    graph = tf.function(function)
    return lambda: tf.nest.map_structure(lambda tensor: tensor.numpy(), graph(*arguments))


def by_keras_hub(decoder: Seq2SeqDecoder, width: int) -> Callable[[dict[str, Any]], tf.Tensor]:
    """The decoder's step with a sampler of Keras Hub, whose beams continue after their end ids."""
    samplers = importlib.import_module("keras_hub.samplers")
    sampler = samplers.GreedySampler() if width == 1 else samplers.BeamSampler(num_beams=width)

    def generate(representation: dict[str, Any]) -> tf.Tensor:
        memory, state = decoder.begin(representation)
        memory = tf.nest.map_structure(lambda part: tf.repeat(part, width, axis=0), memory)
        cell = decoder.decoder_cell

        def following(prompt: tf.Tensor, cache: list[tf.Tensor], index: tf.Tensor) -> tuple[Any, ...]:
            before = tf.nest.pack_sequence_as(state, list(cache))
            vectors, after = cell.step(cell.embedding(prompt[:, index - 1]), before, memory)
            return cell.next_logits(vectors, memory), vectors, tf.nest.flatten(after)

        starts = tf.one_hot(tf.zeros_like(representation["mask"][:, 0], tf.int32), decoder.maximum_length + 1)
        prompt = tf.cast(starts, tf.int32) * decoder.start_id
        cache = tf.nest.flatten(state)
        return sampler(following, prompt, cache, 1, starts > 0, stop_token_ids=[decoder.end_id])[:, 1:]

    return generate


def decoding(options: argparse.Namespace, engines: list[str]) -> list[Row]:
    """Sentences per second, with greedy and beam search; then the share of matrix products."""
    encoder, decoder = trained(options)
    decoders = {engine: make(options, engine)[1] for engine in engines if engine != "keras-hub"}
    for other in decoders.values():
        other.set_weights(decoder.get_weights())
    rows = []
    for width in (1, options.beam):
        for batch in options.batches:
            representation = encoder(pairs(options, batch, seed=options.training)[0])
            runs = {
                engine: to_the_end(lambda entries, d=other, w=width: d.generate(entries, beam_width=w), representation)
                for engine, other in decoders.items()
            }
            if "keras-hub" in engines:
                runs["keras-hub"] = to_the_end(by_keras_hub(decoder, width), representation)
            if "addons" in runs and runs["addons"]().tobytes() != runs["native"]().tobytes():
                print("the results of the engines differ")
            name = "greedy" if width == 1 else f"beam {width}"
            rows.append(row_of(SENTENCES, f"{name}, batch {batch}", batch, seconds_of(runs, options.rounds)))
    for width in (1, options.beam):
        for batch in options.batches:
            representation = encoder(pairs(options, batch, seed=options.training)[0])
            runs = {
                "products": to_the_end(products_alone, factors_of_step(options, batch, width), options.maximum_length),
                "steps": to_the_end(lambda entries, d=decoder, w=width: endless(d, entries, w), representation),
            }
            share = ratio(*seconds_of(runs, options.rounds).values())
            name = "greedy" if width == 1 else f"beam {width}"
            rows.append({"measured": PRODUCTS, "decoding": f"{name}, batch {batch}", "share": round(share, 4)})
    return rows


def endless(decoder: Seq2SeqDecoder, representation: dict[str, Any], width: int) -> tf.Tensor:
    """Native decoding to the maximum length: the id that would end a sequence is padding, which is never chosen."""
    search = Search(decoder.maximum_length, end_id=0, beam_width=width, remove_finished=False)
    decode = _native_loops.decode_rows if width == 1 else _native_loops.decode_beams
    return decode(decoder.decoder_cell, *decoder.begin(representation), search)[0]


def products_alone(factors: list[tuple[tf.Tensor, tf.Tensor]], steps: int) -> list[tf.Tensor]:
    """The matrix products of a number of steps, one after another; returns a number of each."""

    def advance(time: tf.Tensor, products: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        following: list[tf.Tensor] = []
        for left, right in factors:
            with tf.control_dependencies(following[-1:]):
                following.append(tf.matmul(left[time % 2], right))
        return time + 1, following

    start = (tf.constant(0), [tf.zeros([*left.shape[1:-1], right.shape[-1]]) for left, right in factors])
    _, products = tf.while_loop(lambda time, _: time < steps, advance, start)
    return [tf.reshape(product, [-1])[0] for product in products]


def factors_of_step(options: argparse.Namespace, batch: int, width: int) -> list[tuple[tf.Tensor, tf.Tensor]]:
    """Random factors of the matrix products of a step: two left ones, so that no product is constant, and a right one."""
    rows, units, source = batch * width, options.units, options.source_length
    size = options.embedding + (units if options.input_feeding else 0)
    if options.cell == "lstm":
        shapes = [([rows, size + units], [size + units, 4 * units])]
    else:
        shapes = [([rows, size], [size, 3 * units]), ([rows, units], [units, 3 * units])]
    if options.attention == "luong":
        shapes += [([batch, width, units], [batch, units, source])]
    if options.attention == "bahdanau":
        shapes += [([rows, units], [units, units]), ([rows * source, units], [units, 1])]
    if options.attention != "none":
        shapes += [([batch, width, source], [batch, source, units]), ([rows, 2 * units], [2 * units, units])]
    shapes += [([rows, units], [units, options.vocabulary])]
    return [(tf.random.normal([2, *left]), tf.random.normal(right)) for left, right in shapes]


def training(options: argparse.Namespace, engines: list[str]) -> list[Row]:
    """Training with teacher forcing: gradients of the decoder's weights and of the representation, per second."""
    encoder, decoder = make(options, "native")
    variables = tensor_variables(decoder)

    def gradients(run: Callable[..., tf.Tensor]) -> Callable[..., list[tf.Tensor]]:
        def compute(representation: dict[str, Any], targets: tf.Tensor) -> list[tf.Tensor]:
            sources = [representation["outputs"], *tf.nest.flatten(representation["state"])]
            with tf.GradientTape() as tape:
                tape.watch(sources)
                loss = mean_loss(run(representation, targets), targets)
            found = tape.gradient(loss, [*variables, *sources], unconnected_gradients="zero")
            return [tf.convert_to_tensor(gradient) for gradient in found]

        return compute

    def stepwise(loops: Any) -> Callable[..., tf.Tensor]:
        def run(representation: dict[str, Any], targets: tf.Tensor) -> tf.Tensor:
            inputs = decoder.embedding(decoder.shift_right(targets))
            memory, state = decoder.begin(representation)
            return decoder.output_layer(loops.run_stepwise(decoder.decoder_cell, inputs, memory, state, training=True))

        return run

    def as_documented(representation: dict[str, Any], targets: tf.Tensor) -> tf.Tensor:
        seq2seq = importlib.import_module("tensorflow_addons.seq2seq")
        inputs = decoder.embedding(decoder.shift_right(targets))
        cell, initial = _addons_loops.wrap(decoder.decoder_cell, *decoder.begin(representation))
        loop = seq2seq.BasicDecoder(cell, seq2seq.TrainingSampler(), output_layer=decoder.output_layer)
        return loop(inputs, initial_state=initial, training=True)[0].rnn_output

    ways = {"native": lambda *both: decoder(*both, training=True), "native, step by step": stepwise(_native_loops)}
    if "addons" in engines:
        ways |= {"addons": as_documented, "addons, logits after the loop": stepwise(_addons_loops)}
    rows = []
    for batch in options.train_batches:
        tokens, targets = pairs(options, batch, seed=0)
        data = (encoder(tokens), targets)
        runs = {name: to_the_end(gradients(way), *data) for name, way in ways.items()}
        expected, *results = (run() for run in runs.values())
        if not all(np.allclose(a, b, rtol=1e-3, atol=1e-6) for found in results for a, b in zip(found, expected)):
            print("the gradients of the engines differ")
        rows.append(row_of(STEPS, f"batch {batch}", 1, seconds_of(runs, options.rounds)))
    return rows


def row_of(measured: str, name: str, amount: int, seconds: dict[str, list[float]]) -> Row:
    """A row: amount per second of each engine, and the ratio of the first one to each other one."""
    titles = [TITLES.get(engine, engine) for engine in seconds]
    first, *others = seconds.values()
    speeds = [significant(amount / statistics.median(times)) for times in seconds.values()]
    ratios = [round(ratio(times, first), 4) for times in others]
    relative = {f"{titles[0]} / {title}": value for title, value in zip(titles[1:], ratios)}
    return {"measured": measured, "decoding": name, **dict(zip(titles, speeds)), **relative}


def tables(lines: Sequence[Line]) -> list[Table]:
    patterns = {key: ".2f" for line in lines for row in line["rows"] for key in row if " / " in key or key == "share"}
    return [
        table(lines, title, ["decoding"], (), ".4g", patterns, {"measured": title}) for title in (SENTENCES, STEPS, PRODUCTS)
    ]


QUICK = {
    "vocabulary": 40,
    "embedding": 8,
    "units": 8,
    "source_length": 6,
    "maximum_length": 6,
    "training": 1,
    "batches": [2],
    "train_batches": [2],
    "beam": 2,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("decoding", __doc__, rounds=10)
    add = parser.add_argument
    add("--vocabulary", type=int, default=2000, help="vocabulary size of sources and targets (default: 2000)")
    add("--embedding", type=int, default=128, help="size of the token embeddings (default: 128)")
    add("--units", type=int, default=256, help="size of the recurrent layers (default: 256)")
    add("--cell", choices=["lstm", "gru"], default="lstm", help="recurrent cell (default: lstm)")
    add("--attention", choices=["luong", "bahdanau", "none"], default="luong", help="type of attention (default: luong)")
    add("--input-feeding", action="store_true", help="feed the attention vector into the next time step")
    add("--source-length", type=int, default=25, help="maximum number of tokens per input (default: 25)")
    add("--maximum-length", type=int, default=40, help="maximum length of the output (default: 40)")
    add("--training", type=int, default=60, help="training steps before decoding (default: 60)")
    add("--batches", type=int, nargs="+", default=[1, 32, 256], help="batch sizes for decoding")
    add("--train-batches", type=int, nargs="+", default=[16, 64], help="batch sizes for training")
    add("--beam", type=int, default=5, help="beam width (default: 5)")
    options = parsed(parser, arguments, **QUICK)
    others = {"keras-hub": importlib.util.find_spec("keras_hub") is not None, "addons": _addons_loops.is_installed()}
    engines = ["native", *(name for name, is_installed in others.items() if is_installed)]
    finish(options, [*decoding(options, engines), *training(options, engines)], tables)

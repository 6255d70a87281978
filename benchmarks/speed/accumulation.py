"""Memory and time of one update of 512 examples from 1, 4 and 16 micro-batches or accumulated batches.

Each case runs in its own process, one at a time. Memory is the increase in the process's peak memory from before the first
update; time is the median of several updates, each of them an epoch, relative to a custom training loop that computes the
same gradients without an optimizer.

With `--heads 2 4 8`: the processor time of an update of 8 micro-batches, balanced at the representation, relative to that
of the plain sum.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.speed._record import Line, Row, Table, finish, significant, table
from benchmarks.speed._shared import in_turns, parsed, parser_of, ratio

EXAMPLES, TIME, VOCABULARY = 512, 60, 1000
PARTS = 8
BALANCERS = ("NormFloor", "UPGrad")
RECURRENT, DENSE = "GRU of 128 units, 32 sequences of 30 tokens", "four dense layers of 256 units, 256 rows"
UPDATE, MEMORY, RELATIVE = "update of 512 examples with", "peak memory, MB", "relative to custom loop"


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def case(kind: str, parts: int, updates: int) -> dict[str, float]:
    import keras
    import numpy as np
    import tensorflow as tf

    from benchmarks.speed.step import Encoder, On
    from multihead import MultiHeadTrainer, losses

    rng = np.random.default_rng(0)
    tokens, labels = rng.integers(1, VOCABULARY, (EXAMPLES, TIME)), rng.integers(0, 8, EXAMPLES)
    targets = {"reply": tokens, "price": labels}
    size = EXAMPLES if kind == "micro_batches" else EXAMPLES // parts
    data = tf.data.Dataset.from_tensor_slices((tokens, targets)).batch(size)
    heads = {"reply": On("outputs", VOCABULARY), "price": On("state", 8, "softmax")}
    encoder = Encoder(VOCABULARY, 128)
    if kind == "custom loop":
        representation = encoder(tokens[:2])
        for head in heads.values():
            head(representation)
        variables = [v for module in (encoder, *heads.values()) for v in module.trainable_variables]
        tensors = [v if not hasattr(v, "value") or callable(v.value) else v.value for v in variables]

        @tf.function(reduce_retracing=True)
        def gradients(x: tf.Tensor, y: Any) -> Any:
            with tf.GradientTape() as tape:
                representation = encoder(x, training=True)
                logits = heads["reply"](representation)
                reply = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y["reply"], logits=logits)
                price = keras.losses.sparse_categorical_crossentropy(y["price"], heads["price"](representation))
                loss = tf.reduce_mean(reply) + tf.reduce_mean(price)
            return tape.gradient(loss, tensors)

        def run(updates: int) -> list[float]:
            times = []
            for _ in range(updates):
                start = time.perf_counter()
                for batch in data:
                    result = gradients(*batch)
                result[-1].numpy()
                times.append(time.perf_counter() - start)
            return times
    else:
        trainer = MultiHeadTrainer(encoder)
        trainer.add_head("reply", heads["reply"], losses.SequenceCrossentropy())
        trainer.add_head("price", heads["price"], "sparse_categorical_crossentropy")
        option = {kind: parts}
        trainer.compile(keras.optimizers.SGD(0.1), telemetry=None, **option)

        def run(updates: int) -> list[float]:
            times: list[float] = []
            timer = keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: times.append(-time.perf_counter()),
                on_epoch_end=lambda epoch, logs: times.append(times.pop() + time.perf_counter()),
            )
            trainer.fit(data, epochs=updates, verbose=0, shuffle=False, callbacks=[timer])
            return times

    before = peak_megabytes()
    run(1)
    memory = peak_megabytes() - before
    times = run(updates + 1)[1:]
    return {"seconds": statistics.median(times), "megabytes": memory}


def by_heads(kind: str, num_heads: int, rounds: int) -> dict[str, float]:
    """The time of an update of `PARTS` micro-batches with each balancer, relative to that of the plain sum.

    Args:
        kind: The encoder: `DENSE` or `RECURRENT`.
        num_heads: The number of heads, all on one vector per example.
        rounds: The number of rounds, which alternate.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    from benchmarks.speed.step import Encoder
    from multihead import MultiHeadTrainer

    class Last(Encoder):
        def call(self, tokens: Any) -> Any:
            return super().call(tokens)["state"]

    rng = np.random.default_rng(0)
    tokens, features = rng.integers(1, VOCABULARY, (PARTS * 32, 30)), rng.normal(size=(PARTS * 256, 64))
    x = tf.constant(tokens) if kind == RECURRENT else tf.constant(features, tf.float32)
    y = {f"head_{k}": tf.constant(rng.normal(size=(len(x), 1)), tf.float32) for k in range(num_heads)}

    def step(**options: Any) -> Any:
        layers = [keras.layers.Dense(256, activation="relu") for _ in range(4)]
        trainer = MultiHeadTrainer(Last(VOCABULARY, 128) if kind == RECURRENT else keras.Sequential(layers))
        for name in y:
            trainer.add_head(name, keras.layers.Dense(1), "mse")
        trainer.compile("sgd", telemetry=None, **options)
        trainer.compute_gradients([(x[:8], {name: values[:8] for name, values in y.items()})])  # builds
        return tf.function(lambda x, y: trainer.train_step((x, y)), autograph=False, reduce_retracing=True)

    steps = {name: step(balancer=name, micro_batches=PARTS) for name in (None, *BALANCERS)}
    runs = {str(name): functools.partial(made, x, y) for name, made in steps.items()}
    seconds = in_turns(runs, rounds, clock=time.process_time)
    return {name: round(ratio(seconds[name], seconds["None"]), 4) for name in BALANCERS}


def tables(lines: Sequence[Line]) -> list[Table]:
    balanced = f"An update of {PARTS} micro-batches, relative to the plain sum"
    return [
        table(lines, "", [UPDATE, "parts"], [MEMORY, "seconds", RELATIVE], patterns={MEMORY: ".0f", "seconds": ".3f"}),
        table(lines, balanced, ["encoder", "heads"], BALANCERS),
    ]


def in_parts(counts: Sequence[int], rounds: int) -> list[Row]:
    """Memory and time of an update in so many parts, each case in a process of its own."""
    rows = []
    for parts in counts:
        found = {}
        for kind in ("custom loop", "micro_batches", "gradient_accumulation_steps"):
            command = [sys.executable, "-m", "benchmarks", "accumulation", "--rounds", str(rounds)]
            command += ["--case", json.dumps([kind, parts])]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found[kind] = json.loads(output.strip().splitlines()[-1])
        for kind, measured in found.items():
            seconds, memory = measured["seconds"], round(measured["megabytes"], 1)
            relative = round(seconds / found["custom loop"]["seconds"], 4)
            rows.append({UPDATE: kind, "parts": parts, MEMORY: memory, "seconds": significant(seconds), RELATIVE: relative})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("accumulation", __doc__, rounds=9)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--heads", type=int, nargs="+", help="measures updates with a balancer for numbers of heads")
    options = parsed(parser, arguments)
    if options.case:
        print(json.dumps(case(*json.loads(options.case), options.rounds)))
        return
    if options.heads:
        both = [(kind, count) for kind in (RECURRENT, DENSE) for count in options.heads]
        rows = [{"encoder": kind, "heads": count, **by_heads(kind, count, options.rounds)} for kind, count in both]
    else:
        rows = in_parts((1, 4) if options.quick else (1, 4, 16), options.rounds)
    finish(options, rows, tables)

"""What to write instead of TensorFlow Addons' seq2seq, rnn, losses and CRFs. Copy the cell that you need.

Each cell computes the `result` of the same cell in `addons_before.py`: `tests/project/test_migration.py` compares them.
"""
# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, ANN204, C408, D101, D103, D401, F811

import keras
import numpy as np
import tensorflow as tf

from multihead import losses
from multihead.models import CRFTagger, Seq2SeqDecoder, crf, search


def fill(*layers):
    """Gives built layers the same weights on both sides."""
    for layer in layers:
        sizes = [weight.shape for weight in layer.get_weights()]
        counts = [np.arange(np.prod(size)) for size in sizes]
        values = [np.sin(1.0 + n * n) for n in counts]
        layer.set_weights([value.reshape(size) for value, size in zip(values, sizes)])


def numbers(*shape):
    drawn = np.random.default_rng(0).normal(size=shape)
    return tf.constant(drawn, tf.float32)


# What the cells share. Ids: 0 is padding, 2 starts a sequence, 3 ends it.
ids = tf.constant([[4, 5, 3], [7, 8, 3]])
vectors, query = numbers(2, 3, 4), numbers(2, 8)
state = [numbers(2, 8), -numbers(2, 8)]
embedding, cell = keras.layers.Embedding(9, 4), keras.layers.LSTMCell(8)
logits, frame = keras.layers.Dense(9), keras.layers.Dense(4)
logits(cell(embedding(ids[:, 0]), state)[0]), frame(query)
fill(embedding, cell, logits, frame)
starts = tf.fill([2], 2)


# %% BasicDecoder, BasicDecoderOutput, TrainingSampler
inputs = embedding(tf.constant([[2, 4, 5], [2, 7, 8]]))
recurrent = keras.layers.RNN(cell, return_sequences=True)
result = logits(recurrent(inputs, initial_state=state))


# %% GreedyEmbeddingSampler, Sampler
def step(ids, state):
    hidden, state = cell(embedding(ids), state)
    return logits(hidden), state


found = search.greedy(step, state, start_id=2, end_id=3, maximum_length=5)
result = found.ids[:, 0], found.lengths[:, 0]


# %% SampleEmbeddingSampler
def step(ids, state):
    hidden, state = cell(embedding(ids), state)
    return logits(hidden), state


ends = dict(start_id=2, end_id=3, maximum_length=5)
# So cold that both sides draw the most probable id.
result = search.sample(step, state, temperature=1e-4, **ends).ids[:, 0]


# %% BeamSearchDecoder, BeamSearchDecoderOutput, BeamSearchDecoderState, FinalBeamSearchDecoderOutput
def step(ids, state):
    hidden, state = cell(embedding(ids), state)
    return logits(hidden), state


ends = dict(start_id=2, end_id=3, maximum_length=5)
found = search.beam(step, state, beam_width=3, num_best=3, **ends)
result = found.ids, found.scores


# %% BaseDecoder, Decoder, dynamic_decode
def step(ids, state):
    hidden, state["cell"] = cell(embedding(ids), state["cell"])
    return logits(hidden), state


ends = dict(start_id=2, end_id=3, maximum_length=5)
result = search.greedy(step, {"cell": state}, **ends).ids[:, 0]


# %% InferenceSampler
# Vectors instead of ids are fed back.
inputs, results = vectors[:, 0], []
for _ in range(5):
    hidden, state = cell(inputs, state)
    inputs = frame(hidden)
    results.append(inputs)
result = tf.stack(results, axis=1)


# %% CustomSampler
# The next input is half of the output.
inputs, results = vectors[:, 0], []
for _ in range(5):
    hidden, state = cell(inputs, state)
    outputs = frame(hidden)
    results.append(tf.argmax(outputs, -1, output_type=tf.int32))
    inputs = outputs / 2
result = tf.stack(results, axis=1)


# %% ScheduledOutputTrainingSampler
probability, inputs, results = 1.0, vectors[:, 0], []
for time in range(3):
    hidden, state = cell(inputs, state)
    outputs = frame(hidden)
    results.append(outputs)
    is_sampled = tf.random.uniform([2, 1]) < probability
    inputs = tf.where(is_sampled, outputs, vectors[:, min(time + 1, 2)])
result = tf.stack(results, axis=1)


# %% ScheduledEmbeddingTrainingSampler
options = dict(cell="lstm", attention=None, sampling_probability=1.0)
decoder = Seq2SeqDecoder(9, 4, 8, engine="native", **options)
representation = {
    "outputs": vectors,
    "state": (tuple(state),),
    "mask": tf.fill([2, 3], True),
}
decoder(representation, ids)
fill(decoder)
# Every id is sampled, from logits so large that nothing is left to chance.
layer = decoder.output_layer
is_excluded = np.isin(np.arange(9), [0, 2])  # padding and the start id
bias = np.where(is_excluded, -1e6, 0.0)
layer.set_weights([1e3 * layer.get_weights()[0], bias])
result = decoder(representation, ids, training=True) / 1e3


# %% tile_batch
result = tf.repeat(vectors, 3, axis=0)


# %% gather_tree
# Parents are `[time, batch, beams]`.
tokens = tf.constant([[[4, 5]], [[6, 7]], [[8, 3]]])
parents = tf.constant([[[0, 0]], [[1, 0]], [[1, 0]]])
beams, found = tf.constant([[0, 1]]), []
for time in (2, 1, 0):
    found.append(tf.gather(tokens[time], beams, batch_dims=1))
    beams = tf.gather(parents[time], beams, batch_dims=1)
result = tf.stack(found[::-1])


# %% gather_tree_from_array
values = numbers(3, 1, 2, 4)
parents = tf.constant([[[0, 0]], [[1, 0]], [[1, 0]]])
beams, found = tf.constant([[0, 1]]), []
for time in (2, 1, 0):
    found.append(tf.gather(values[time], beams, batch_dims=1))
    beams = tf.gather(parents[time], beams, batch_dims=1)
result = tf.stack(found[::-1])


# %% LuongAttention, AttentionMechanism
memory_layer = keras.layers.Dense(8, use_bias=False)
memory_layer(vectors), fill(memory_layer)
lengths = tf.constant([3, 2])
mask = tf.sequence_mask(lengths, 3)
attend = keras.layers.Attention()
context, weights = attend(
    [query[:, tf.newaxis], vectors, memory_layer(vectors)],
    mask=[None, mask],
    return_attention_scores=True,
)
result = weights[:, 0]


# %% BahdanauAttention
memory_layer = keras.layers.Dense(8, use_bias=False)
query_layer = keras.layers.Dense(8, use_bias=False)
memory_layer(vectors), query_layer(query)
fill(memory_layer, query_layer)
lengths = tf.constant([3, 2])
keys = memory_layer(vectors)
inputs = [query_layer(query)[:, tf.newaxis], keys]
attend = keras.layers.AdditiveAttention()
attend(inputs)
attend.set_weights([np.sin(np.arange(8.0))])
mask = [None, tf.sequence_mask(lengths, 3)]
_, weights = attend(inputs, mask=mask, return_attention_scores=True)
context = tf.matmul(weights, vectors)
result = weights[:, 0]


# %% AttentionWrapper, AttentionWrapperState
decoder = Seq2SeqDecoder(9, 4, 8, attention="luong", input_feeding=True, engine="native")
lengths = tf.constant([3, 2])
mask = tf.sequence_mask(lengths, 3)
memory = tf.where(mask[:, :, tf.newaxis], vectors, 0.0)
representation = {
    "outputs": memory,
    "state": (tuple(state),),
    "mask": mask,
}
decoder(representation, ids)
fill(decoder)
result = decoder(representation, ids)


# %% safe_cumprod
chances = tf.constant([[0.5, 0.2, 0.0, 0.9]])
tiny = np.finfo("float32").tiny
logarithms = tf.math.log(tf.clip_by_value(chances, tiny, 1.0))
result = tf.exp(tf.cumsum(logarithms, axis=1))


# %% monotonic_attention
chances = tf.constant([[0.5, 0.2, 0.1, 0.9], [0.3, 0.6, 0.7, 0.2]])
before = tf.constant([[1.0, 0.0, 0.0, 0.0], [0.2, 0.3, 0.5, 0.0]])
reached, found = tf.zeros([2]), []
for place in range(4):
    stay = 1.0 - chances[:, place - 1] if place else tf.ones([2])
    reached = stay * reached + before[:, place]
    found.append(chances[:, place] * reached)
result = tf.stack(found, axis=1)


# %% LuongMonotonicAttention
memory_layer = keras.layers.Dense(8, use_bias=False)
memory_layer(vectors), fill(memory_layer)
before = tf.constant([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
scores = tf.einsum("bu,btu->bt", query, memory_layer(vectors)) + 0.5
chances = tf.sigmoid(scores)
reached, found = tf.zeros([2]), []
for place in range(3):
    stay = 1.0 - chances[:, place - 1] if place else tf.ones([2])
    reached = stay * reached + before[:, place]
    found.append(chances[:, place] * reached)
result = tf.stack(found, axis=1)


# %% BahdanauMonotonicAttention
memory_layer = keras.layers.Dense(8, use_bias=False)
query_layer = keras.layers.Dense(8, use_bias=False)
memory_layer(vectors), query_layer(query)
fill(memory_layer, query_layer)
v = tf.constant(np.sin(np.arange(8.0)), tf.float32)
before = tf.constant([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
energy = tf.tanh(query_layer(query)[:, tf.newaxis] + memory_layer(vectors))
chances = tf.sigmoid(tf.reduce_sum(v * energy, axis=2))
reached, found = tf.zeros([2]), []
for place in range(3):
    stay = 1.0 - chances[:, place - 1] if place else tf.ones([2])
    reached = stay * reached + before[:, place]
    found.append(chances[:, place] * reached)
result = tf.stack(found, axis=1)


# %% hardmax
result = tf.one_hot(tf.argmax(query, axis=-1), query.shape[-1])


# %% LayerNormLSTMCell
class LayerNormLSTMCell(keras.layers.LSTMCell):
    def build(self, shape):
        super().build(shape)
        sizes = 4 * self.units, 4 * self.units, self.units
        self.norms = [keras.layers.LayerNormalization(epsilon=1e-3) for _ in sizes]
        for norm, size in zip(self.norms, sizes):
            norm.build((None, size))

    def call(self, inputs, states, training=None):
        hidden, carry = states
        kernel, recurrent, last = self.norms
        gates = kernel(tf.matmul(inputs, self.kernel)) + self.bias
        gates += recurrent(tf.matmul(hidden, self.recurrent_kernel))
        i, f, new, o = tf.split(gates, 4, axis=1)
        carry = tf.sigmoid(f) * carry + tf.sigmoid(i) * tf.tanh(new)
        carry = last(carry)
        hidden = tf.sigmoid(o) * tf.tanh(carry)
        return hidden, [hidden, carry]


recurrent = keras.layers.RNN(LayerNormLSTMCell(8))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% LayerNormSimpleRNNCell
class LayerNormSimpleRNNCell(keras.layers.SimpleRNNCell):
    def build(self, shape):
        super().build(shape)
        self.norm = keras.layers.LayerNormalization(epsilon=1e-5, center=False)
        self.norm.build((None, self.units))

    def call(self, inputs, states, training=None):
        total = tf.matmul(inputs, self.kernel)
        total += tf.matmul(states[0], self.recurrent_kernel)
        hidden = self.activation(self.norm(total) + self.bias)
        return hidden, [hidden]


recurrent = keras.layers.RNN(LayerNormSimpleRNNCell(8))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% PeepholeLSTMCell
class PeepholeLSTMCell(keras.layers.LSTMCell):
    def build(self, shape):
        super().build(shape)
        self.peepholes = [
            self.add_weight(shape=(self.units,), initializer="uniform", name=name)
            for name in ("input_gate", "forget_gate", "output_gate")
        ]

    def call(self, inputs, states, training=None):
        hidden, carry = states
        gates = tf.matmul(inputs, self.kernel) + self.bias
        gates += tf.matmul(hidden, self.recurrent_kernel)
        i, f, new, o = tf.split(gates, 4, axis=1)
        of_i, of_f, of_o = map(tf.convert_to_tensor, self.peepholes)
        i, f = tf.sigmoid(i + of_i * carry), tf.sigmoid(f + of_f * carry)
        carry = f * carry + i * tf.tanh(new)
        hidden = tf.sigmoid(o + of_o * carry) * tf.tanh(carry)
        return hidden, [hidden, carry]


recurrent = keras.layers.RNN(PeepholeLSTMCell(8))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% NASCell
class NASCell(keras.layers.Layer):
    def __init__(self, units, **options):
        super().__init__(**options)
        self.units = self.output_size = units
        self.state_size = [units, units]

    def build(self, shape):
        width = 8 * self.units
        self.recurrent_kernel = self.add_weight(shape=(self.units, width), name="recurrent_kernel")
        self.kernel = self.add_weight(shape=(shape[-1], width), name="kernel")
        self.built = True

    def call(self, inputs, states):
        carry, hidden = states
        x = tf.split(tf.matmul(inputs, self.kernel), 8, axis=1)
        h = tf.split(tf.matmul(hidden, self.recurrent_kernel), 8, axis=1)
        sigmoid, tanh, relu = tf.sigmoid, tf.tanh, tf.nn.relu
        one = tanh(sigmoid(x[0] + h[0]) * relu(x[1] + h[1]))
        two = tanh(sigmoid(x[2] + h[2]) + relu(x[3] * h[3]))
        three = tanh(tanh(x[4] + h[4]) * sigmoid(x[5] + h[5]))
        four = sigmoid(tanh(x[6] + h[6]) + sigmoid(x[7] + h[7]))
        carry = tanh(one + carry) * two
        hidden = tanh(carry * tanh(three + four))
        return hidden, [carry, hidden]


recurrent = keras.layers.RNN(NASCell(8))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% ESNCell
class ESNCell(keras.layers.Layer):
    def __init__(self, units, connectivity=0.1, leaky=1.0, radius=0.9, **options):
        super().__init__(**options)
        self.units = self.output_size = self.state_size = units
        self.connectivity, self.leaky = connectivity, leaky
        self.radius = radius

    def _sparse(self, shape, dtype=None):
        weights = np.random.uniform(-1.0, 1.0, shape)
        weights *= np.random.uniform(size=shape) < self.connectivity
        largest = np.abs(np.linalg.eigvals(weights)).max()
        return tf.cast(weights * (self.radius / max(largest, 1e-9)), dtype)

    def build(self, shape):
        def fixed(name, shape, initializer):
            return self.add_weight(
                name=name,
                shape=shape,
                initializer=initializer,
                trainable=False,
            )

        units, square = self.units, (self.units, self.units)
        self.recurrent_kernel = fixed("recurrent", square, self._sparse)
        self.kernel = fixed("kernel", (shape[-1], units), "glorot_uniform")
        self.bias = fixed("bias", (units,), "zeros")
        self.built = True

    def call(self, inputs, states):
        total = tf.matmul(inputs, self.kernel) + self.bias
        total += tf.matmul(states[0], self.recurrent_kernel)
        new, leaky = tf.tanh(total), self.leaky
        hidden = (1.0 - leaky) * states[0] + leaky * new
        return hidden, [hidden]


options = dict(connectivity=0.5, leaky=0.7)
recurrent = keras.layers.RNN(ESNCell(8, **options))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% crf_log_likelihood
lengths, tags = tf.constant([3, 2]), tf.constant([[0, 3, 1], [2, 2, 0]])
transitions = numbers(4, 4)
result = crf.log_likelihood(vectors, tags, transitions, mask=lengths)


# %% crf_decode
lengths, transitions = tf.constant([3, 2]), numbers(4, 4)
tags, scores = crf.decode(vectors, transitions, mask=lengths)
result = tags, scores


# %% CRF
is_word = tf.sequence_mask([3, 2])
layer = CRFTagger(5)
read = {"outputs": vectors, "mask": is_word}
layer.generate(read)
dense = layer.tags
weights = [layer.transitions, layer.start, layer.end, *dense.weights]
for weight in weights:
    values = np.sin(1.0 + np.arange(np.prod(weight.shape)) ** 2)
    weight.assign(values.reshape(weight.shape))
tags = layer.generate(read)
result = tf.where(is_word, tags, 0)


# %% sequence_loss, SequenceLoss
targets, scores = tf.constant([[4, 5, 3], [7, 3, 0]]), numbers(2, 3, 9)
weights = tf.cast(targets != 0, tf.float32)
each = losses.SequenceCrossentropy().call(targets, scores)
loss = tf.reduce_sum(each * weights) / tf.reduce_sum(weights)
result = loss, loss


# %% contrastive_loss, ContrastiveLoss
is_same = tf.constant([1.0, 0.0, 0.0])
distance = tf.constant([0.6, 0.3, 2.0])


def contrastive_loss(is_same, distance, margin=1.0):
    apart = tf.maximum(margin - distance, 0.0)
    return is_same * distance**2 + (1.0 - is_same) * apart**2


each = contrastive_loss(is_same, distance)
result = each, tf.reduce_mean(each)


# %% pinball_loss, PinballLoss
truth, guess = numbers(5, 1), numbers(1, 5)[0, :, tf.newaxis] * 2


def pinball_loss(truth, guess, tau=0.5):
    error = truth - guess
    return tf.reduce_mean(tf.maximum(tau * error, (tau - 1) * error), -1)


each = pinball_loss(truth, guess, tau=0.9)
result = each, tf.reduce_mean(each)


# %% sigmoid_focal_crossentropy, SigmoidFocalCrossEntropy
truth = tf.constant([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
scores = numbers(2, 3)
each = 3 * keras.losses.binary_focal_crossentropy(
    truth,
    tf.sigmoid(scores),
    apply_class_balancing=True,
    alpha=0.25,
    gamma=2.0,
)
result = each, each


# %% giou_loss, GIoULoss
truth = tf.constant([[4.0, 3.0, 7.0, 5.0], [5.0, 6.0, 10.0, 7.0]])
guess = tf.constant([[3.0, 4.0, 6.0, 8.0], [14.0, 14.0, 15.0, 15.0]])


def area(first, last):
    return tf.reduce_prod(tf.maximum(last - first, 0.0), axis=-1)


def giou_loss(truth, guess):
    first, last = truth[..., :2], truth[..., 2:]
    others = guess[..., :2], guess[..., 2:]
    both = area(tf.maximum(first, others[0]), tf.minimum(last, others[1]))
    union = area(first, last) + area(*others) - both
    hull = area(tf.minimum(first, others[0]), tf.maximum(last, others[1]))
    share = tf.math.divide_no_nan(both, union)
    return 1.0 - share + tf.math.divide_no_nan(hull - union, hull)


each = giou_loss(truth, guess)
result = each, tf.reduce_mean(each)


# %% WeightedKappaLoss
truth = tf.one_hot([0, 1, 2, 1, 2], 3)
guess = tf.nn.softmax(numbers(5, 3))


def weighted_kappa_loss(truth, guess, epsilon=1e-6):
    classes = tf.range(truth.shape[1], dtype=tf.float32)
    apart = (classes[:, tf.newaxis] - classes) ** 2  # linear: tf.abs
    observed = tf.reduce_sum(tf.matmul(truth, apart) * guess)
    counts = [tf.reduce_sum(each, axis=0) for each in (truth, guess)]
    expected = tf.einsum("i,ij,j->", counts[0], apart, counts[1])
    expected /= tf.cast(tf.shape(truth)[0], tf.float32)
    return tf.math.log(observed / expected + epsilon)


result = weighted_kappa_loss(truth, guess)


# %% npairs_loss, NpairsLoss
labels = tf.constant([0, 1, 0])
similarities = numbers(3, 3)
is_same = tf.cast(labels[:, tf.newaxis] == labels, tf.float32)
shares = is_same / tf.reduce_sum(is_same, axis=1, keepdims=True)
loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(shares, similarities))
result = loss, loss


# %% npairs_multilabel_loss, NpairsMultilabelLoss
labels = tf.constant([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
similarities = numbers(3, 3)
common = tf.matmul(labels, labels, transpose_b=True)
shares = common / tf.reduce_sum(common, axis=1, keepdims=True)
loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(shares, similarities))
result = loss, loss


# %% sparsemax_loss, SparsemaxLoss
scores, labels = numbers(3, 4), tf.one_hot([0, 2, 1], 4)


def sparsemax(scores):
    ordered = tf.sort(scores, direction="DESCENDING")
    sums = tf.cumsum(ordered, axis=-1)
    counts = tf.range(1, scores.shape[-1] + 1, dtype=scores.dtype)
    is_kept = tf.cast(1.0 + counts * ordered > sums, scores.dtype)
    size = tf.reduce_sum(is_kept, axis=-1, keepdims=True)
    kept = tf.reduce_sum(ordered * is_kept, axis=-1, keepdims=True)
    return tf.maximum(scores - (kept - 1.0) / size, 0.0)


def sparsemax_loss(labels, scores):
    shares = sparsemax(scores)
    own = shares * (scores - 0.5 * shares)
    return tf.reduce_sum(own + labels * (0.5 * labels - scores), axis=1)


each = sparsemax_loss(labels, scores)
result = each, tf.reduce_mean(each)


# %% triplet_hard_loss, TripletHardLoss
labels, vectors = tf.constant([0, 1, 0, 1, 2, 0]), numbers(6, 4)


def distances_of(vectors):
    apart = vectors[:, tf.newaxis] - vectors
    return tf.norm(apart + 1e-12, axis=-1)


def triplet_hard_loss(labels, vectors, margin=1.0):
    distances = distances_of(vectors)
    is_same = labels[:, tf.newaxis] == labels
    far = tf.reduce_max(tf.where(is_same, distances, 0.0), axis=1)
    near = tf.reduce_min(tf.where(is_same, np.inf, distances), axis=1)
    return tf.reduce_mean(tf.maximum(far - near + margin, 0.0))


loss = triplet_hard_loss(labels, vectors)
result = loss, loss


# %% triplet_semihard_loss, TripletSemiHardLoss
labels, vectors = tf.constant([0, 1, 0, 1, 2, 0]), numbers(6, 4)


def triplet_semihard_loss(labels, vectors, margin=1.0):
    apart = vectors[:, tf.newaxis] - vectors
    distances = tf.norm(apart + 1e-12, axis=-1)
    is_same = labels[:, tf.newaxis] == labels
    # [anchor, positive, negative]
    positive, negative = distances[:, :, None], distances[:, None, :]
    is_outside = ~is_same[:, None, :] & (negative > positive)
    nearest = tf.reduce_min(tf.where(is_outside, negative, np.inf), axis=2)
    farthest = tf.reduce_max(tf.where(is_same, 0.0, distances), axis=1)
    chosen = tf.where(tf.reduce_any(is_outside, axis=2), nearest, farthest[:, tf.newaxis])
    each = tf.maximum(margin + distances - chosen, 0.0)
    is_pair = tf.cast(is_same, tf.float32) - tf.eye(len(labels))
    return tf.reduce_sum(each * is_pair) / tf.reduce_sum(is_pair)


loss = triplet_semihard_loss(labels, vectors)
result = loss, loss


# %% lifted_struct_loss, LiftedStructLoss
labels, vectors = tf.constant([0, 1, 0, 1, 2, 0]), numbers(6, 4)


def lifted_struct_loss(labels, vectors, margin=1.0):
    apart = vectors[:, tf.newaxis] - vectors
    distances = tf.norm(apart + 1e-12, axis=-1)
    is_same = labels[:, tf.newaxis] == labels
    inside = tf.where(is_same, -np.inf, margin - distances)
    both = tf.reduce_logsumexp(
        tf.concat(
            [
                tf.broadcast_to(inside[:, None], [len(labels)] * 3),
                tf.broadcast_to(inside[None], [len(labels)] * 3),
            ],
            axis=2,
        ),
        axis=2,
    )
    is_pair = tf.cast(is_same, tf.float32) - tf.eye(len(labels))
    each = tf.maximum(both + distances, 0.0) ** 2 * is_pair
    return 0.5 * tf.reduce_sum(each) / tf.reduce_sum(is_pair)


loss = lifted_struct_loss(labels, vectors)
result = loss, loss

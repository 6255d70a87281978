"""The cells of `addons_after.py`, as they were written with TensorFlow Addons."""
# ruff: noqa: ANN001, ANN002, ANN201, C408, D103, D401, F811

import keras
import numpy as np
import tensorflow as tf
import tensorflow_addons as tfa

from multihead.models import Seq2SeqDecoder


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
sampler = tfa.seq2seq.TrainingSampler()
decoder = tfa.seq2seq.BasicDecoder(cell, sampler, logits)
outputs, _, _ = decoder(inputs, initial_state=state)
result = outputs.rnn_output


# %% GreedyEmbeddingSampler, Sampler
sampler = tfa.seq2seq.GreedyEmbeddingSampler(embedding)
decoder = tfa.seq2seq.BasicDecoder(cell, sampler, logits, maximum_iterations=5)
outputs, _, lengths = decoder(None, start_tokens=starts, end_token=3, initial_state=state)
result = outputs.sample_id, lengths


# %% SampleEmbeddingSampler
sampler = tfa.seq2seq.SampleEmbeddingSampler(embedding, softmax_temperature=1e-4)
decoder = tfa.seq2seq.BasicDecoder(cell, sampler, logits, maximum_iterations=5)
outputs, _, _ = decoder(None, start_tokens=starts, end_token=3, initial_state=state)
result = outputs.sample_id


# %% BeamSearchDecoder, BeamSearchDecoderOutput, BeamSearchDecoderState, FinalBeamSearchDecoderOutput
tiled = tfa.seq2seq.tile_batch(state, multiplier=3)
decoder = tfa.seq2seq.BeamSearchDecoder(
    cell,
    beam_width=3,
    embedding_fn=embedding,
    output_layer=logits,
    maximum_iterations=5,
)
outputs, final, _ = decoder(None, start_tokens=starts, end_token=3, initial_state=tiled)
found = tf.transpose(outputs.predicted_ids, [0, 2, 1])
ended = tf.cumsum(tf.cast(found == 3, tf.int32), 2, exclusive=True) > 0
result = tf.where(ended, 0, found), final.log_probs


# %% BaseDecoder, Decoder, dynamic_decode
sampler = tfa.seq2seq.GreedyEmbeddingSampler(embedding)
decoder = tfa.seq2seq.BasicDecoder(cell, sampler, logits)
outputs, _, _ = tfa.seq2seq.dynamic_decode(
    decoder,
    maximum_iterations=5,
    decoder_init_input=None,
    decoder_init_kwargs=dict(start_tokens=starts, end_token=3, initial_state=state),
)
result = outputs.sample_id


# %% InferenceSampler
sampler = tfa.seq2seq.InferenceSampler(
    sample_fn=lambda outputs: outputs,
    sample_shape=[4],
    sample_dtype=tf.float32,
    end_fn=lambda outputs: tf.fill([2], False),
)
decoder = tfa.seq2seq.BasicDecoder(cell, sampler, frame, maximum_iterations=5)
outputs, _, _ = decoder(vectors[:, 0], initial_state=state)
result = outputs.rnn_output


# %% CustomSampler
sampler = tfa.seq2seq.CustomSampler(
    initialize_fn=lambda inputs: (tf.fill([2], False), inputs),
    sample_fn=lambda time, outputs, state: tf.argmax(outputs, -1, output_type=tf.int32),
    next_inputs_fn=lambda time, outputs, state, sample_ids: (
        tf.fill([2], False),
        outputs / 2,
        state,
    ),
)
decoder = tfa.seq2seq.BasicDecoder(cell, sampler, frame, maximum_iterations=5)
outputs, _, _ = decoder(vectors[:, 0], initial_state=state)
result = outputs.sample_id


# %% ScheduledOutputTrainingSampler
sampler = tfa.seq2seq.ScheduledOutputTrainingSampler(1.0)
decoder = tfa.seq2seq.BasicDecoder(cell, sampler, frame)
outputs, _, _ = decoder(vectors, initial_state=state)
result = outputs.rnn_output


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
layer = decoder.output_layer
is_excluded = np.isin(np.arange(9), [0, 2])  # padding and the start id
bias = np.where(is_excluded, -1e6, 0.0)
layer.set_weights([1e3 * layer.get_weights()[0], bias])
sampler = tfa.seq2seq.ScheduledEmbeddingTrainingSampler(1.0, embedding_fn=decoder.embedding)
theirs = tfa.seq2seq.BasicDecoder(decoder.recurrent_layers[0].cell, sampler, decoder.output_layer)
inputs = decoder.embedding(tf.constant([[2, 4, 5], [2, 7, 8]]))
outputs, _, _ = theirs(inputs, initial_state=state)
result = outputs.rnn_output / 1e3


# %% tile_batch
result = tfa.seq2seq.tile_batch(vectors, multiplier=3)


# %% gather_tree
tokens = tf.constant([[[4, 5]], [[6, 7]], [[8, 3]]])
parents = tf.constant([[[0, 0]], [[1, 0]], [[1, 0]]])
result = tfa.seq2seq.gather_tree(tokens, parents, max_sequence_lengths=tf.constant([3]), end_token=3)


# %% gather_tree_from_array
values = numbers(3, 1, 2, 4)
parents = tf.constant([[[0, 0]], [[1, 0]], [[1, 0]]])
result = tfa.seq2seq.gather_tree_from_array(values, parents, sequence_length=tf.constant([[3, 3]]))


# %% LuongAttention, AttentionMechanism
memory_layer = keras.layers.Dense(8, use_bias=False)
memory_layer(vectors), fill(memory_layer)
lengths = tf.constant([3, 2])
attention = tfa.seq2seq.LuongAttention(8, vectors, lengths, memory_layer=memory_layer)
result, _ = attention([query, tf.zeros([2, 3])])


# %% BahdanauAttention
memory_layer = keras.layers.Dense(8, use_bias=False)
query_layer = keras.layers.Dense(8, use_bias=False)
memory_layer(vectors), query_layer(query)
fill(memory_layer, query_layer)
lengths = tf.constant([3, 2])
attention = tfa.seq2seq.BahdanauAttention(
    8,
    vectors,
    lengths,
    memory_layer=memory_layer,
    query_layer=query_layer,
)
attention.attention_v = tf.constant(np.sin(np.arange(8.0)), tf.float32)
result, _ = attention([query, tf.zeros([2, 3])])


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
wrapper = tfa.seq2seq.AttentionWrapper(
    decoder.recurrent_layers[0].cell,
    tfa.seq2seq.LuongAttention(
        8,
        memory,
        lengths,
        memory_layer=decoder.attention_layer.memory_layer,
    ),
    attention_layer=decoder.vector_layer,
)
initial = wrapper.get_initial_state(batch_size=2, dtype=tf.float32)
theirs = tfa.seq2seq.BasicDecoder(wrapper, tfa.seq2seq.TrainingSampler(), decoder.output_layer)
inputs = decoder.embedding(tf.constant([[2, 4, 5], [2, 7, 8]]))
outputs, _, _ = theirs(inputs, initial_state=initial.clone(cell_state=state))
result = outputs.rnn_output


# %% safe_cumprod
chances = tf.constant([[0.5, 0.2, 0.0, 0.9]])
result = tfa.seq2seq.safe_cumprod(chances, axis=1)


# %% monotonic_attention
chances = tf.constant([[0.5, 0.2, 0.1, 0.9], [0.3, 0.6, 0.7, 0.2]])
before = tf.constant([[1.0, 0.0, 0.0, 0.0], [0.2, 0.3, 0.5, 0.0]])
result = tfa.seq2seq.monotonic_attention(chances, before, "recursive")


# %% LuongMonotonicAttention
memory_layer = keras.layers.Dense(8, use_bias=False)
memory_layer(vectors), fill(memory_layer)
before = tf.constant([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
attention = tfa.seq2seq.LuongMonotonicAttention(
    8,
    vectors,
    memory_layer=memory_layer,
    score_bias_init=0.5,
    mode="recursive",
)
result, _ = attention([query, before])


# %% BahdanauMonotonicAttention
memory_layer = keras.layers.Dense(8, use_bias=False)
query_layer = keras.layers.Dense(8, use_bias=False)
memory_layer(vectors), query_layer(query)
fill(memory_layer, query_layer)
v = tf.constant(np.sin(np.arange(8.0)), tf.float32)
before = tf.constant([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
attention = tfa.seq2seq.BahdanauMonotonicAttention(
    8,
    vectors,
    memory_layer=memory_layer,
    query_layer=query_layer,
    mode="recursive",
)
attention.attention_v = v
result, _ = attention([query, before])


# %% hardmax
result = tfa.seq2seq.hardmax(query)


# %% LayerNormLSTMCell
recurrent = keras.layers.RNN(tfa.rnn.LayerNormLSTMCell(8))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% LayerNormSimpleRNNCell
recurrent = keras.layers.RNN(tfa.rnn.LayerNormSimpleRNNCell(8))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% PeepholeLSTMCell
recurrent = keras.layers.RNN(tfa.rnn.PeepholeLSTMCell(8))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% NASCell
recurrent = keras.layers.RNN(tfa.rnn.NASCell(8))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% ESNCell
options = dict(connectivity=0.5, leaky=0.7)
recurrent = keras.layers.RNN(tfa.rnn.ESNCell(8, **options))
recurrent(vectors), fill(recurrent)
result = recurrent(vectors)


# %% crf_log_likelihood
lengths, tags = tf.constant([3, 2]), tf.constant([[0, 3, 1], [2, 2, 0]])
transitions = numbers(4, 4)
result, _ = tfa.text.crf_log_likelihood(vectors, tags, lengths, transitions)


# %% crf_decode
lengths, transitions = tf.constant([3, 2]), numbers(4, 4)
tags, scores = tfa.text.crf_decode(vectors, transitions, lengths)
tags = tf.where(tf.sequence_mask(lengths), tags, -1)
result = tags, scores


# %% CRF
is_word = tf.sequence_mask([3, 2])
layer = tfa.layers.CRF(4)
layer(vectors, mask=is_word), fill(layer)
tags = layer(vectors, mask=is_word)[0] + 1
result = tf.where(is_word, tags, 0)


# %% sequence_loss, SequenceLoss
targets, scores = tf.constant([[4, 5, 3], [7, 3, 0]]), numbers(2, 3, 9)
weights = tf.cast(targets != 0, tf.float32)
result = (
    tfa.seq2seq.sequence_loss(scores, targets, weights),
    tfa.seq2seq.SequenceLoss()(targets, scores, weights),
)


# %% contrastive_loss, ContrastiveLoss
is_same = tf.constant([1.0, 0.0, 0.0])
distance = tf.constant([0.6, 0.3, 2.0])
each = tfa.losses.contrastive_loss(is_same, distance, margin=1.0)
result = each, tfa.losses.ContrastiveLoss(margin=1.0)(is_same, distance)


# %% pinball_loss, PinballLoss
truth, guess = numbers(5, 1), numbers(1, 5)[0, :, tf.newaxis] * 2
each = tfa.losses.pinball_loss(truth, guess, tau=0.9)
result = each, tfa.losses.PinballLoss(tau=0.9)(truth, guess)


# %% sigmoid_focal_crossentropy, SigmoidFocalCrossEntropy
truth = tf.constant([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
scores = numbers(2, 3)
each = tfa.losses.sigmoid_focal_crossentropy(truth, scores, from_logits=True)
loss = tfa.losses.SigmoidFocalCrossEntropy(from_logits=True)
result = each, loss(truth, scores)


# %% giou_loss, GIoULoss
truth = tf.constant([[4.0, 3.0, 7.0, 5.0], [5.0, 6.0, 10.0, 7.0]])
guess = tf.constant([[3.0, 4.0, 6.0, 8.0], [14.0, 14.0, 15.0, 15.0]])
each = tfa.losses.giou_loss(truth, guess)
result = each, tfa.losses.GIoULoss()(truth, guess)


# %% WeightedKappaLoss
truth = tf.one_hot([0, 1, 2, 1, 2], 3)
guess = tf.nn.softmax(numbers(5, 3))
result = tfa.losses.WeightedKappaLoss(num_classes=3)(truth, guess)


# %% npairs_loss, NpairsLoss
labels = tf.constant([0, 1, 0])
similarities = numbers(3, 3)
result = (
    tfa.losses.npairs_loss(labels, similarities),
    tfa.losses.NpairsLoss()(labels, similarities),
)


# %% npairs_multilabel_loss, NpairsMultilabelLoss
labels = tf.constant([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
similarities = numbers(3, 3)
result = (
    tfa.losses.npairs_multilabel_loss(labels, similarities),
    tfa.losses.NpairsMultilabelLoss()(labels, similarities),
)


# %% sparsemax_loss, SparsemaxLoss
scores, labels = numbers(3, 4), tf.one_hot([0, 2, 1], 4)
each = tfa.losses.sparsemax_loss(scores, tfa.activations.sparsemax(scores), labels)
result = each, tfa.losses.SparsemaxLoss()(labels, scores)


# %% triplet_hard_loss, TripletHardLoss
labels, vectors = tf.constant([0, 1, 0, 1, 2, 0]), numbers(6, 4)
result = (
    tfa.losses.triplet_hard_loss(labels, vectors, margin=1.0),
    tfa.losses.TripletHardLoss(margin=1.0)(labels, vectors),
)


# %% triplet_semihard_loss, TripletSemiHardLoss
labels, vectors = tf.constant([0, 1, 0, 1, 2, 0]), numbers(6, 4)
result = (
    tfa.losses.triplet_semihard_loss(labels, vectors, margin=1.0),
    tfa.losses.TripletSemiHardLoss(margin=1.0)(labels, vectors),
)


# %% lifted_struct_loss, LiftedStructLoss
labels, vectors = tf.constant([0, 1, 0, 1, 2, 0]), numbers(6, 4)
result = (
    tfa.losses.lifted_struct_loss(labels, vectors, margin=1.0),
    tfa.losses.LiftedStructLoss(margin=1.0)(labels, vectors),
)


# %% A whole program; the page on Addons has the other side
keras.utils.set_random_seed(0)
source = np.array([[4, 5, 6, 3], [7, 8, 3, 0], [5, 3, 0, 0]] * 8)

embedding = keras.layers.Embedding(9, 16)
encoder = keras.layers.LSTM(32, return_sequences=True, return_state=True)
attention = tfa.seq2seq.LuongAttention(32)
cell = tfa.seq2seq.AttentionWrapper(keras.layers.LSTMCell(32), attention, attention_layer_size=32)
logits = keras.layers.Dense(9)
training = tfa.seq2seq.BasicDecoder(cell, tfa.seq2seq.TrainingSampler(), logits)
sampler = tfa.seq2seq.GreedyEmbeddingSampler(embedding)
greedy = tfa.seq2seq.BasicDecoder(cell, sampler, logits, maximum_iterations=4)
optimizer = keras.optimizers.Adam(0.02)


def begin(ids):
    is_token = tf.cast(ids != 0, tf.int32)
    lengths = tf.reduce_sum(is_token, axis=1)
    outputs, *state = encoder(embedding(ids), mask=is_token > 0)
    attention.setup_memory(outputs, memory_sequence_length=lengths)
    initial = cell.get_initial_state(batch_size=24, dtype=tf.float32)
    return initial.clone(cell_state=state)


@tf.function
def train(ids):
    with tf.GradientTape() as tape:
        starts = tf.fill([24, 1], tf.constant(2, ids.dtype))
        inputs = embedding(tf.concat([starts, ids[:, :-1]], axis=1))
        outputs, _, _ = training(inputs, initial_state=begin(ids))
        weights = tf.cast(ids != 0, tf.float32)
        loss = tfa.seq2seq.sequence_loss(outputs.rnn_output, ids, weights)
    variables = {}
    for layer in (embedding, encoder, attention, cell, logits):
        variables.update((id(v), v) for v in layer.trainable_variables)
    variables = list(variables.values())
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables))


for _ in range(80):
    train(tf.constant(source))
ids = {"start_tokens": tf.fill([len(source)], 2), "end_token": 3}
state = begin(tf.constant(source))
result = greedy(None, initial_state=state, **ids)[0].sample_id

"""The reference models once more, in NumPy float64, row by row and step by step, without padding or masks."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf


def weights_of(layer):
    return [np.asarray(value, np.float64) for value in layer.get_weights()]


def tensor_variables(layer):
    """A layer's trainable weights as TensorFlow variables, which tapes take, on Keras 2 and Keras 3."""
    weights = layer.trainable_weights
    return weights if all(isinstance(weight, tf.Variable) for weight in weights) else [w.value for w in weights]


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def cell_step(kind, weights, x, state):
    """One step of a Keras LSTM or GRU (reset after); the state is a list of vectors."""
    kernel, recurrent, bias = weights
    if kind == "lstm":
        gates = x @ kernel + state[0] @ recurrent + bias
        i, f, c, o = np.split(gates, 4)
        carry = sigmoid(f) * state[1] + sigmoid(i) * np.tanh(c)
        return [sigmoid(o) * np.tanh(carry), carry]
    from_x = np.split(x @ kernel + bias[0], 3)
    from_h = np.split(state[0] @ recurrent + bias[1], 3)
    z, r = sigmoid(from_x[0] + from_h[0]), sigmoid(from_x[1] + from_h[1])
    return [z * state[0] + (1 - z) * np.tanh(from_x[2] + r * from_h[2])]


def run_layer(kind, layer, inputs, units):
    """Outputs `[time, units]` and final state of one direction from a zero state."""
    state = [np.zeros(units)] * (2 if kind == "lstm" else 1)
    outputs = []
    for x in inputs:
        state = cell_step(kind, weights_of(layer), x, state)
        outputs.append(state[0])
    return np.array(outputs), state


def encode_row(encoder, tokens):
    """Outputs `[time, width]` and the state of each layer, for one row without padding."""
    outputs = weights_of(encoder.embedding)[0][tokens]
    states = []
    for index, forward in enumerate(encoder.forward_layers):
        inputs = outputs
        outputs, state = run_layer(encoder.cell, forward, inputs, encoder.units)
        if encoder.bidirectional:
            reverse, reverse_state = run_layer(encoder.cell, encoder.backward_layers[index], inputs[::-1], encoder.units)
            outputs = np.concatenate([outputs, reverse[::-1]], axis=-1)
            state = [np.concatenate(pair) for pair in zip(state, reverse_state)]
        states.append(state)
    return outputs, states


class RowDecoder:
    """A decoder for one row, from that row's encoder outputs, first states and, if it copies, copy ids."""

    def __init__(self, decoder, outputs, states, copy_ids=None):
        self.copy_ids = copy_ids
        self.decoder = decoder
        self.outputs = outputs
        self.first = (states, np.zeros(decoder.units))
        self.embeddings = weights_of(decoder.embedding)[0]
        self.layers = [weights_of(layer) for layer in decoder.recurrent_layers]
        self.output = weights_of(decoder.output_layer)
        if decoder.attention is not None:
            self.attention = [w.squeeze() if w.shape[-1] == 1 else w for w in weights_of(decoder.attention_layer)]
            self.vector = weights_of(decoder.vector_layer)

    def step(self, token, state, excluded=()):
        """Logits (of a decoder that copies log probabilities), attention weights (or None) and the next state.

        Excluded ids are neither generated nor copied.
        """
        states, vector = state
        x = self.embeddings[token]
        if self.decoder.input_feeding:
            x = np.concatenate([x, vector])
        new_states = []
        for weights, layer_state in zip(self.layers, states):
            new_states.append(cell_step(self.decoder.cell, weights, x, layer_state))
            x = new_states[-1][0]
        weights = None
        if self.decoder.attention is not None:
            keys = self.outputs @ self.attention[0]
            if self.decoder.attention == "luong":
                weights = softmax(keys @ x)
            else:
                weights = softmax(np.tanh(keys + x @ self.attention[1]) @ self.attention[2])
            x = np.tanh(np.concatenate([x, weights @ self.outputs]) @ self.vector[0] + self.vector[1])
        logits = x @ self.output[0] + self.output[1]
        if self.copy_ids is not None:
            logits = self.or_copied(logits, x)
        logits[list(excluded)] = -np.inf
        return logits, weights, (new_states, x)

    def or_copied(self, logits, vector):
        """Log probabilities of generating or copying, by the definition of `Pointer`."""
        key, gate, bias = weights_of(self.decoder.pointer_layer)
        generating = sigmoid(vector @ gate[:, 0] + bias[0])
        probabilities = np.zeros(self.decoder.vocabulary_size)
        probabilities[: len(logits)] = generating * softmax(logits)
        read = np.concatenate([self.outputs, self.embeddings[self.copy_ids]], axis=1)
        np.add.at(probabilities, self.copy_ids, (1 - generating) * softmax(read @ key @ vector))
        return np.log(probabilities + 1e-300)

    def teacher_forced(self, targets):
        """Logits `[time, vocabulary]` and attention weights for one row of targets."""
        state, logits, weights = self.first, [], []
        for token in [self.decoder.start_id, *targets[:-1]]:
            step_logits, step_weights, state = self.step(token, state)
            logits.append(step_logits)
            weights.append(step_weights)
        return np.array(logits), weights

    def log_probabilities(self, token, state):
        """Log probabilities while decoding, and the next state: padding and the start id are ruled out."""
        logits, _, state = self.step(token, state, excluded=(0, self.decoder.start_id))
        return np.log(softmax(logits) + 1e-300), state

    def greedy(self, maximum_length, stop=True):
        state, ids, score = self.first, [], 0.0
        token = self.decoder.start_id
        while len(ids) < maximum_length and not (stop and token == self.decoder.end_id):
            scores, state = self.log_probabilities(token, state)
            token = int(scores.argmax())
            ids.append(token)
            score += scores[token]
        return ids, score

    def every_sequence(self, maximum_length, length_penalty=0.0):
        """All sequences that decoding can return, as (score, ids), best first."""
        end, found = self.decoder.end_id, []
        emitted = [i for i in range(self.decoder.vocabulary_size) if i not in (0, self.decoder.start_id, end)]
        for length in range(1, maximum_length + 1):
            last = [end] if length < maximum_length else [end, *emitted]
            for ids in itertools.product(*([emitted] * (length - 1)), last):
                state, score, previous = self.first, 0.0, self.decoder.start_id
                for token in ids:
                    scores, state = self.log_probabilities(previous, state)
                    score += scores[token]
                    previous = token
                found.append((score / ((5 + length) / 6) ** length_penalty, list(ids)))
        return sorted(found, reverse=True)

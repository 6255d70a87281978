"""A price classifier joins a sequence decoder on the encoder's final hidden state: what lets both learn at full speed?

Every arm trains the same network, from the same weights, on the same batches; only how the heads' losses and gradients
are brought together differs: alone, by two optimizers, in turns, in one total loss, with each of several balancers, with
weights, and with a price loss that is summed over the batch.
"""

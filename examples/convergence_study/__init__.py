"""A price classifier and a sequence decoder share the encoder's final hidden state: what lets both learn at full speed?

Every variant trains the same network, from the same weights, on the same batches. The variants differ only in how they
combine the heads' losses and gradients: each head alone, two optimizers, alternating updates, one total loss, several
balancers, several weights, and a price loss that is summed over the batch.
"""

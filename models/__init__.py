"""Reference models in plain Keras: a sequence encoder, a sequence decoder and a price classifier."""

from models.decoder import Seq2SeqDecoder
from models.decoding import Decoded
from models.encoder import Seq2SeqEncoder
from models.price import PriceClassifier
from models.weights import load_weights, save_weights

__all__ = ["Decoded", "PriceClassifier", "Seq2SeqDecoder", "Seq2SeqEncoder", "load_weights", "save_weights"]

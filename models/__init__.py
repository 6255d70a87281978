"""Reference models in plain Keras: a sequence encoder, a sequence decoder and a price classifier."""

from ._search import Decoded
from .decoder import Seq2SeqDecoder
from .encoder import Seq2SeqEncoder
from .price import PriceClassifier
from .weights import load_weights, save_weights

__all__ = ["Decoded", "PriceClassifier", "Seq2SeqDecoder", "Seq2SeqEncoder", "load_weights", "save_weights"]

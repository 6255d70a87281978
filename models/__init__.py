"""Reference models in plain Keras: a sequence encoder, heads that decode, classify, tag and predict numbers, and experts."""

from ._search import Decoded
from .classifier import Classifier
from .decoder import Seq2SeqDecoder
from .encoder import Seq2SeqEncoder
from .expert_head import ExpertHead
from .experts import CGC, MMoE
from .price import PriceClassifier
from .regressor import Regressor
from .tagger import TokenTagger
from .weights import load_weights, save_weights

__all__ = [
    "CGC",
    "Classifier",
    "Decoded",
    "ExpertHead",
    "MMoE",
    "PriceClassifier",
    "Regressor",
    "Seq2SeqDecoder",
    "Seq2SeqEncoder",
    "TokenTagger",
    "load_weights",
    "save_weights",
]

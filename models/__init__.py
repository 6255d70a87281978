"""Reference models in plain Keras: sequence encoders, experts, and heads that decode, classify, tag and predict numbers."""

from . import crf, search
from ._recurrent import mark_functions as _mark_functions
from ._search import Decoded
from .classifier import Classifier
from .crf_tagger import CRFTagger
from .decoder import Seq2SeqDecoder
from .encoder import Seq2SeqEncoder
from .expert_head import ExpertHead
from .experts import CGC, MMoE
from .price import PriceClassifier
from .regressor import Regressor
from .tagger import TokenTagger
from .transformer_decoder import TransformerDecoder
from .transformer_encoder import TransformerEncoder
from .weights import load_weights, save_weights

__all__ = [
    "CGC",
    "CRFTagger",
    "Classifier",
    "Decoded",
    "ExpertHead",
    "MMoE",
    "PriceClassifier",
    "Regressor",
    "Seq2SeqDecoder",
    "Seq2SeqEncoder",
    "TokenTagger",
    "TransformerDecoder",
    "TransformerEncoder",
    "crf",
    "load_weights",
    "save_weights",
    "search",
]

_mark_functions(__name__)

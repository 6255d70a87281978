"""Price ranges from texts and from numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from examples.seq2seq_price.ranges import PriceRanges
from examples.seq2seq_price.tables import InputError

pytestmark = pytest.mark.programs


def fit(values, bands=None, missing_is_class=False):
    return PriceRanges.fit("price", values, bands=bands, missing_is_class=missing_is_class)


def test_texts_as_classes_and_missing_either_way():
    ignoring, counting = fit(["low", "", "high", "low"]), fit(["low", "", "high"], missing_is_class=True)
    assert ignoring.names == ("high", "low")
    assert ignoring.numbers("price", ["low", "", "high"]).tolist() == [1, -1, 0]
    assert counting.names == ("high", "low", "(missing)")
    assert counting.numbers("price", ["low", "", "high"]).tolist() == [1, 2, 0]


def test_bands_hold_equal_shares_of_the_training_rows():
    prices = np.random.default_rng(0).lognormal(5, 1, 4000)
    ranges = fit([f"{price:.4f}" for price in prices], bands=8)
    numbers = ranges.numbers("price", [f"{price:.4f}" for price in prices])
    assert np.bincount(numbers).tolist() == [500] * 8
    np.testing.assert_allclose(ranges.edges, np.quantile(prices, np.arange(1, 8) / 8), rtol=1e-5)
    assert ranges.numbers("price", ["0", "1e9", ""]).tolist() == [0, 7, -1]
    assert ranges.names[0].startswith("under ") and ranges.names[-1].endswith(" and more")


def test_repeated_numbers_give_fewer_bands():
    ranges = fit(["1"] * 90 + ["2"] * 10, bands=4)
    assert fit(["1", "2", "3", "4"], bands=2).names == ("under 2.5", "2.5 and more")
    assert len(ranges.names) == len(ranges.edges) + 1 < 4


def test_what_was_fitted_survives_json():
    for ranges in (fit(["a", "b"], missing_is_class=True), fit(["1", "2", "3"], bands=3)):
        assert PriceRanges.from_json(json.loads(json.dumps(ranges.to_json()))) == ranges


@pytest.mark.parametrize(
    ("values", "bands", "message"),
    [
        (["", ""], None, r"`price` must contain labels\. Received: 2 empty labels"),
        (["low", "low", ""], None, r"at least two different labels\. Received: only one, 'low'\."),
        (["5", "5"], 8, r"at least two different labels\. Received: only one"),
        (["5", "cheap"], 2, r"must contain numbers if --bands is given\. Received: 'cheap'\. Omit --bands"),
        (["5", "nan"], 2, r"must contain numbers if --bands is given\. Received: 'nan'"),
    ],
)
def test_labels_that_cannot_be_used(values, bands, message):
    with pytest.raises(InputError, match=message):
        fit(values, bands)


def test_a_label_that_training_never_had():
    with pytest.raises(InputError, match=r"that occur in the training rows: 'high', 'low'\. Received: 'medium'\. Correct"):
        fit(["low", "high"]).numbers("price", ["low", "medium"])

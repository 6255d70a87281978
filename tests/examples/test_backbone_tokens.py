"""Orders as the inputs of a backbone: which tag a token has, what is masked."""

from __future__ import annotations

import numpy as np

from examples._backbones import NO_LABEL, SPECIAL, Tokens, mask_tokens, vocabulary_of
from examples._orders import TAGS, draw_rows

ROW = {"text": "hi, two oak desks, not pine", "tags": "other count material product other wrong", "order": "2 oak desk",
       "price": "3780"}  # fmt: skip


class Halves:
    """A tokenizer whose tokens are halves of words; ids are the order in which they were seen."""

    cls_token_id, sep_token_id, pad_token_id, mask_token_id = 2, 3, 0, 4

    def __init__(self):
        self.known = [*SPECIAL]

    def vocabulary_size(self):
        return 100

    def __call__(self, words):
        assert all(word.startswith(" ") for word in words)
        return [[self._id(half) for half in (word[1:3], word[3:]) if half] for word in words]

    def _id(self, half):
        if half not in self.known:
            self.known.append(half)
        return self.known.index(half)


def tokens(length=16, inputs=("token_ids", "padding_mask", "segment_ids")):
    return Tokens(Halves(), length, inputs)


def test_each_token_has_the_tag_of_its_word_and_punctuation_none():
    reader = tokens()
    inputs, targets = reader([ROW])
    words = ["[CLS]", "hi", ",", "tw", "o", "oa", "k", "de", "sks", ",", "no", "t", "pi", "ne", "[SEP]"]
    known = reader._tokenizer.known
    assert [known[each] for each in inputs["token_ids"][0]] == [*words, "[PAD]"]
    said = ["other"] * 2 + ["count"] * 2 + ["material"] * 2 + ["product"] * 2 + ["other"] * 3 + ["wrong"] * 2
    assert targets["tags"].tolist() == [[NO_LABEL, *(TAGS.index(tag) for tag in said), NO_LABEL, NO_LABEL]]
    assert inputs["padding_mask"].sum() == len(words) and not inputs["segment_ids"].any()
    assert targets["price"].tolist() == [4] and targets["haste"].tolist() == [[0.0]]


def test_a_long_order_is_cut_and_ends_as_the_others():
    inputs, targets = tokens(6, ["encoder_token_ids"])([ROW])
    assert list(inputs) == ["encoder_token_ids"] and inputs["encoder_token_ids"][0, -1] == Halves.sep_token_id
    assert targets["tags"][0, -1] == NO_LABEL and targets["tags"].shape == (1, 6)


def test_fifteen_percent_are_masked_anew_in_each_copy():
    reader = tokens(32)
    inputs, _ = reader(draw_rows(200, held_out=False, seed=0))
    masked, labels = mask_tokens(reader, inputs, 3, seed=0)
    ids = np.concatenate([inputs["token_ids"]] * 3)
    chosen = labels != NO_LABEL
    assert (labels[chosen] == ids[chosen]).all() and (masked["token_ids"][~chosen] == ids[~chosen]).all()
    assert not np.isin(ids[chosen], [0, 2, 3]).any()
    assert abs(chosen.sum() / (~np.isin(ids, [0, 2, 3])).sum() - 0.15) < 0.01
    assert abs((masked["token_ids"][chosen] == Halves.mask_token_id).mean() - 0.8) < 0.03
    assert (chosen[:200] != chosen[200:400]).any() and masked["padding_mask"].shape == ids.shape


def test_the_vocabulary_spells_every_word():
    words = vocabulary_of(["hi, two desks", "two oak desks: hi"])
    assert words[:5] == list(SPECIAL) and {"two", "desks", ",", "##x"} - set(words) == {"##x"}
    assert "oak" not in words and {"o", "##a", "##k"} <= set(words)  # it occurs once
    assert len(set(words)) == len(words)

"""Words that are copied: their ids, which words are names, how they are replaced, and that unknown ones come through."""

from __future__ import annotations

import csv
import gzip
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from examples.seq2seq_price import command, report
from examples.seq2seq_price.batches import Examples, Vectorizers, statistics_of, training_batches, vocabularies
from examples.seq2seq_price.copying import Names, Rows
from examples.seq2seq_price.model import CAPITALIZED_ID, NUMBER_ID, UNKNOWN_ID
from examples.seq2seq_price.slots import have_slots, slot_f1, slots_of

pytestmark = pytest.mark.programs

SYLLABLES = ["ba", "ko", "ri", "mu", "te", "so", "lan", "per"]
KINDS = ["inn", "pub", "cafe"]


def rows(number, seed, names=None):
    """Sentences about places whose names are one or two words, with their meanings."""
    draw = random.Random(seed)
    names = names or [" ".join("".join(draw.choices(SYLLABLES, k=2)).title() for _ in range(1 + n % 2)) for n in range(30)]
    texts, targets = [], []
    for _ in range(number):
        name, kind = draw.choice(names), draw.choice(KINDS)
        texts.append(
            draw.choice(["In the city, {} is a nice {}.", "{}? A {}!", "You will like {}, that {}."]).format(name, kind)
        )
        targets.append(f"name[{name}], kind[{kind}]")
    return Examples(texts, targets, {"price": np.zeros([number], np.int32)}), names


TRAIN, NAMES = rows(600, 0)
SAMPLE = {"reply_exact": 0.48, "reply_slot_f1": 0.91, "price_accuracy": 0.925}
"""What a sample of the restaurants must reach: it reached 0.550, 0.925 and 0.941 on Keras 3."""
UNSEEN = ["Zubo", "Quax Wem", "Vlom Ba-Ku"]


@pytest.fixture(scope="module")
def read():
    words = vocabularies(TRAIN)
    return Vectorizers(*words, 20)


def batch_of(read, texts, targets):
    """Source ids, copy ids and target ids of texts, dense."""
    rows = read(texts, targets)
    inputs, ids = read.batch(Rows(*(part.to_tensor() for part in rows)))
    return inputs["tokens"].numpy(), inputs["copy_ids"].numpy(), ids.numpy()


def test_unknown_words_of_sources_have_ids_by_their_letters(read):
    source, copy_ids, _ = batch_of(read, ["quax Quax ÉTÉ 7th été £9.50, in the city"], [""])
    quax, name, summer, seventh, lower, sign, nine, *known = source[0]
    assert quax == lower == UNKNOWN_ID and name == summer == CAPITALIZED_ID and seventh == nine == NUMBER_ID
    assert sign == UNKNOWN_ID and min(known[-3:]) > NUMBER_ID
    assert len(set(copy_ids[0])) == len(copy_ids[0])
    assert read.unknown[read.target.get_vocabulary().index("pub")] == UNKNOWN_ID


def test_unknown_words_come_back_by_their_places(read):
    texts = ["In the city, Quax is a nice pub.", "Zubo Zubo? A cafe!", ""]
    targets = ["name[Quax], kind[pub]", "name[Zubo Zubo], kind[cafe]", "name[Nowhere], kind[inn]"]
    source, copy_ids, target = batch_of(read, texts, targets)
    # Place 5 of the first source (after "In", "the", "city", ","), place 1 of the second, and the unknown id.
    assert source[0, 4] == CAPITALIZED_ID and copy_ids[0, 4] == target[0, 2] == read.size + 4
    assert (
        source[1, :2].tolist() == [CAPITALIZED_ID] * 2
        and target[1, 2:4].tolist() == copy_ids[1, :2].tolist() == [read.size] * 2
    )
    assert target[2, 2] == 1
    back = read.texts(tf.constant(target), tf.constant(texts)).numpy()
    assert [text.decode() for text in back] == [*targets[:2], "name[[UNK]], kind[inn]"]


def test_words_after_many_places_are_not_copied(read):
    _, copy_ids, target = batch_of(read, ["la " * 30 + "Quax pub"], ["name[Quax], kind[pub]"])
    assert target[0, 2] == 1 and copy_ids.max() < read.size + 20


def test_names_are_found(read):
    found = Names(read(TRAIN.texts, TRAIN.targets), read.size, read.unknown).names
    vocabulary = read.target.get_vocabulary()
    assert {" ".join(vocabulary[word] for word in name) for name in found} == set(NAMES)


def test_without_many_copies_nothing_is_replaced(read):
    few, _ = rows(200, 1, NAMES[:5])
    ids = read(few.texts, few.targets)
    names = Names(ids, read.size, read.unknown)
    assert names.names == []
    dense, of_rows = Rows(*(part.to_tensor() for part in ids)), names.marked[1]
    for before, after in zip(dense, names.filled(dense, tf.constant(of_rows), tf.constant([3, 4], tf.int64))):
        np.testing.assert_array_equal(before, after)


def test_names_are_replaced_in_both_and_nothing_else(read):
    """In each row, the words between the brackets of `name` are those that stand in the source, and others are as before."""
    sources, targets = read.source.get_vocabulary(), read.target.get_vocabulary()

    def words(vocabulary, ids):
        return [
            vocabulary[number] if number < len(vocabulary) else f"<{number - len(vocabulary)}>" for number in ids if number
        ]

    unknown = 0
    data, steps = training_batches(TRAIN, read, 64, seed=0)
    epochs = []
    for _ in range(2):
        epochs.append([])
        for inputs, batch in data:
            for source, copies, target in zip(inputs["tokens"].numpy(), inputs["copy_ids"].numpy(), batch["reply"].numpy()):
                text, meaning = words(sources, source), " ".join(words(targets, target))
                name, kind = re.fullmatch(r"name ￭\[￭ (.*) ￭\], kind ￭\[￭ (.*) ￭\] <end>", meaning).groups()
                as_read = " ".join(
                    sources[CAPITALIZED_ID] if word.startswith("<") else word.lower() for word in name.split()
                )
                assert f" {as_read} " in f" {' '.join(text)} " and kind in text
                unknown += "<" in name
                assert "<" in name or name in NAMES
                copied = words(targets, copies)
                assert all(word in copied for word in name.split())
                epochs[-1].append(meaning)
    assert 50 < unknown < 150 and sorted(epochs[0]) != sorted(epochs[1])
    again = [batch["reply"].numpy() for _, batch in training_batches(TRAIN, read, 64, seed=0)[0]]
    assert len(again) == steps
    first = [batch["reply"].numpy() for _, batch in training_batches(TRAIN, read, 64, seed=0)[0]]
    assert all(np.array_equal(*pair) for pair in zip(again, first))


def test_statistics():
    found = statistics_of(Examples(["a b c", "d"], ["a[b]", ""], {}))
    assert found == (2, 3, 4, 1.0)


@pytest.mark.parametrize(
    ("wanted", "received", "score"),
    [
        ("a[b], c[d e]", "c[d  e], a[b]", 1.0),
        ("a[b], c[d]", "a[b]", 2 / 3),
        ("a[b]", "a[c]", 0.0),
        ("a[b], a[b]", "a[b]", 2 / 3),
        ("a[b]", "nothing", 0.0),
    ],
)
def test_slot_f1(wanted, received, score):
    assert slot_f1([(wanted, received)]) == pytest.approx(score)


def test_slot_f1_is_micro_averaged():
    assert slot_f1([("a[b]", "a[b]"), ("a[b], c[d], e[f]", "a[x], c[d], e[g]")]) == pytest.approx(2 * 2 / 8)


def test_the_form_of_slots():
    assert have_slots(["name[The Eagle], customer rating[5 out of 5]", "a[]"])
    assert not have_slots(["name[The Eagle], 5"]) and not have_slots(["2 oak chairs"])
    assert slots_of("a b[c], d[]") == {("a b", "c"): 1, ("d", ""): 1}


def test_replies_that_are_shown():
    rows = [("one", "a[1]", "a[1]"), ("two", "a[2]", "a[3]"), ("three", "a[3]", "a[3]"), ("none", " ", "a[4]")]
    shown = report.replies(rows, lambda texts: [[text.title()] for text in texts], most=2).splitlines()
    assert shown == [
        "wrong  two",
        "       a[2]",
        "    -> a[3]",
        "       copied: Two",
        "right  one",
        "       a[1]",
        "       copied: One",
    ]
    endless = report.replies([("text", "a[1]", "is " * 200)], lambda texts: [["is"] * 200])
    assert [len(line) < 260 for line in endless.splitlines()] == [True] * 4 and endless.count(" is ...") == 2


def written(path, examples):
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["text", "meaning", "price_range"])
        table.writerows((*pair, ("low", "high")[len(pair[0]) % 2]) for pair in zip(examples.texts, examples.targets))
    return str(path)


@pytest.mark.thorough
def test_names_that_were_never_seen_come_through(tmp_path, capsys):
    """By `--predict`, and by an export; the validation data have no other names than the training data."""
    folder = tmp_path / "run"
    files = [written(tmp_path / f"{number}.csv", rows(number, 0, NAMES)[0]) for number in (600, 60)]
    arguments = [
        "--train",
        files[0],
        "--dev",
        files[1],
        "--epochs",
        "6",
        "--units",
        "24",
        "--batch-size",
        "16",
        "--learning-rate",
        "0.01",
    ]
    assert command.main([*arguments, "--output", str(folder), "--export", str(folder / "export")]) == 0
    said = capsys.readouterr().out
    assert "words can be copied: 100% of the words in `meaning`" not in said and "words can be copied" in said
    assert "reply_slot_f1" in said and "copied: " in said and "wrong ones first" in said
    texts = [f"In the city, {name} is a nice pub." for name in UNSEEN]
    assert command.main(["--load", str(folder), "--predict", *texts]) == 0
    said = capsys.readouterr().out
    assert sum(f"meaning: name[{name}], kind[pub]\n" in said for name in UNSEEN) >= 2
    loaded = tf.saved_model.load(str(folder / "export" / "reply"))
    replies = [reply.decode() for reply in loaded.signatures["serving_default"](inputs=tf.constant(texts))["reply"].numpy()]
    assert all(f"meaning: {reply}\n" in said for reply in replies)


RESTAURANTS = Path(__file__).parents[3] / "shared" / "data"


@pytest.mark.thorough
@pytest.mark.skipif(not RESTAURANTS.is_dir(), reason="needs the restaurants' files")
def test_a_sample_of_the_restaurants_is_learned_as_well_as_ever(tmp_path):
    """3,000 rows drawn with a seed, and what `SAMPLE` says."""
    paths = {}
    for split, number in (("train", 3000), ("dev", 1000)):
        with gzip.open(RESTAURANTS / f"restaurants_{split}.csv.gz", "rt", encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file)
        paths[split] = tmp_path / f"{split}.csv"
        with paths[split].open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *random.Random(0).sample(lines, number)])
    arguments = ["--train", str(paths["train"]), "--dev", str(paths["dev"]), "--missing", "class"]
    assert command.main([*arguments, "--output", str(tmp_path / "run")]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text(encoding="utf-8"))["splits"]["dev"]
    found = {name: metrics[name] for name in SAMPLE}
    assert all(found[name] >= least for name, least in SAMPLE.items()), found

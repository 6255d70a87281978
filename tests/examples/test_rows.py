"""Rows: files as people have them, what is said of files that cannot be used, and the workshop's orders."""

from __future__ import annotations

import gzip
import hashlib
import math
import re

import numpy as np
import pytest

from examples._command_line import InputError
from examples._orders import BAND_EDGES, PRICE_NOISE, draw_rows
from examples._rows import read_table

pytestmark = pytest.mark.programs

TRAIN = draw_rows(3000, held_out=False, seed=3)
HELD_OUT = draw_rows(300, held_out=True, seed=3)

# What the price list says, written down once more.
PRICES = dict(hook=4, tray=11, frame=27, stool=67, chair=168, bench=420, desk=1050, table=2600, wardrobe=6600, kitchen=16500)
FACTORS = dict(pine=1.0, oak=1.8, walnut=3.0, small=0.6, large=1.8, varnished=1.0, painted=1.0, express=1.5)


def computed_price(order: str) -> float:
    """The price of an order in normal form, read from the text alone."""
    total, express = 0.0, 1.0
    for part in order.split("; "):
        if part == "express":
            express = FACTORS["express"]
            continue
        count, *parts = part.split()
        total += int(count) * math.prod(PRICES[word] if word in PRICES else FACTORS[word] for word in parts)
    return total * express


def test_the_same_seed_gives_the_same_rows_everywhere():
    rows = draw_rows(50, held_out=False, seed=7)
    assert rows == draw_rows(50, held_out=False, seed=7)
    assert rows != draw_rows(50, held_out=False, seed=8)
    without_tags = [sorted((column, cell) for column, cell in row.items() if column != "tags") for row in rows]
    digest = hashlib.sha256(repr(without_tags).encode()).hexdigest()
    assert digest == "4dbbd4e7964cf22830ae6b3388b2477dfdcc935e365db979d8bdc5b793b4c1b7"


def test_no_text_twice_and_no_order_on_both_sides():
    texts = [row["text"] for row in TRAIN + HELD_OUT]
    assert len(TRAIN) == 3000 and len(HELD_OUT) == 300
    assert len(set(texts)) == len(texts)
    assert not {row["order"] for row in TRAIN} & {row["order"] for row in HELD_OUT}


def test_prices_multiply_and_add_up_with_a_little_noise():
    logs = np.log([float(row["price"]) / computed_price(row["order"]) for row in TRAIN if float(row["price"]) > 100])
    assert abs(logs.mean()) < 1e-3
    assert logs.std() == pytest.approx(PRICE_NOISE, rel=0.1)


def test_every_price_range_holds_a_fair_share():
    shares = np.bincount(np.digitize([float(row["price"]) for row in TRAIN], BAND_EDGES)) / len(TRAIN)
    assert len(shares) == 8
    assert 0.09 < shares.min() and shares.max() < 0.16


@pytest.mark.parametrize(
    "pattern",
    [
        r"\b6 ", r"\bsix ", r"half a dozen ", r"a pair of ", r"a single ",  # numbers
        r" in oak, not pine| in pine, not oak", r", not walnut, ", r" instead of ", r", no, ", r" or rather ",  # corrections
        r"no varnish on the ", r"forget the ", r"actually no ",  # negation
        r"everything in |all in ", r" more in | of them but in ",  # said once for several
        r"by friday please", r"need not be by friday",  # haste, and none
        r"coat hooks?", r"fitted kitchens?", r"closets?", r"tables? for two", r"tables? for six", r"tables? for ten",  # synonyms
    ],
)  # fmt: skip
def test_customers_say_it_in_many_ways(pattern):
    assert any(re.search(pattern, row["text"]) for row in TRAIN)


def test_words_taken_back_or_denied_are_not_ordered():
    hasty = [row for row in TRAIN if "need not be by friday" in row["text"]]
    assert hasty and not any("express" in row["order"] for row in hasty)
    taken_back = [match for row in TRAIN if (match := re.search(r"no, forget the (\w+)s\b", row["text"])) and
                  match.group(1) in PRICES and match.group(1) in row["order"].split()]  # fmt: skip
    assert not taken_back


def test_typing_errors_occur_now_and_then():
    known = {word for row in draw_rows(3000, held_out=False, seed=99) for word in row["text"].split()}
    unknown = [
        row for row in TRAIN if any(word.strip(",:") not in {w.strip(",:") for w in known} for word in row["text"].split())
    ]
    assert 0.005 < len(unknown) / len(TRAIN) < 0.1


def test_an_article_fits_its_word():
    assert not any(re.search(r"\ba [aeiou]", row["text"]) for row in TRAIN)
    assert any(re.search(r"\ban oak", row["text"]) for row in TRAIN)


def test_quotes_line_breaks_blanks_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeffid,"the text",label\r\n1,"a, ""b""\r\nc",£5\r\n\r\n2, d ,\r\n'.encode())
    assert read_table(path, ["the text", "label"]) == [
        {"the text": 'a, "b"\r\nc', "label": "£5"},
        {"the text": "d", "label": ""},
    ]


@pytest.mark.parametrize(("name", "line_end"), [("rows.tsv", "\n"), ("rows.tsv.gz", "\r\n"), ("rows.txt", "\n")])
def test_tabs_and_gzip(tmp_path, name, line_end):
    content = line_end.join(["text\tlabel", "a, b\tlow", "é\thigh", ""]).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert read_table(tmp_path / name, ["label", "text"]) == [
        {"label": "low", "text": "a, b"},
        {"label": "high", "text": "é"},
    ]


def test_gzip_is_known_by_its_content(tmp_path):
    (tmp_path / "rows.csv").write_bytes(gzip.compress(b"text\nx\n"))
    assert read_table(tmp_path / "rows.csv", ["text"]) == [{"text": "x"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"must have a first row with column names\. Received: an empty file"),
        (b"text,label\n", r"must have rows below its column names\. Received: none"),
        (
            b"text,price\nx,1\n",
            r"must have the column 'label'\. Received: the columns 'text', 'price', separated by commas\. Rename",
        ),
        (b"text,label,label\nx,1,2\n", r"must have each column once\. Received: 'label' more than once"),
        (b"text,label\nx,1\ny\n", r"must have 2 fields in every row.*Received: 1 fields in the row that ends on line 3"),
        (b"text,label\n\xff\xfe,1\n", r"must be UTF-8 text\. Received: a file with the invalid byte 0xff"),
        (gzip.compress(b"text,label\nx,1\n" * 99, mtime=0)[:30], r"must be a complete gzip file"),
        (b'text,label\n"' + b"x" * 200_000 + b'",1\n', r"must be CSV or TSV\. Received: field larger"),
    ],
)
def test_what_is_said_of_a_bad_file(tmp_path, content, message):
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        read_table(path, ["text", "label"])
    assert str(path) in str(raised.value)


def test_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv` must be a readable file\. Received: No such file"):
        read_table(tmp_path / "none.csv", ["text"])
    with pytest.raises(InputError, match=r"must be a readable file\. Received: Is a directory"):
        read_table(tmp_path, ["text"])

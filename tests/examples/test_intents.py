"""Intents and slots: the rows of files and of the generator, the model, its scores, and its export in an empty process."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import types

import keras
import numpy as np
import pytest

from examples import _requests, intents, serve
from examples._command_line import InputError

pytestmark = pytest.mark.programs

ROWS = [
    {"text": "Play Halo by Ane 99", "tags": "O B-track O B-artist I-artist", "intent": "PlayMusic"},
    {"text": "stop", "tags": "O", "intent": "Stop"},
    {"text": "play halo", "tags": "", "intent": "PlayMusic"},
    {"text": "play ane", "tags": "O B-artist", "intent": ""},
]


def options(**given):
    return types.SimpleNamespace(**{**dict.fromkeys(["train", "dev", "format", "separator", "quotes"]), **given})


def read(path, form="csv"):
    given = options(train=str(path), dev=str(path), format=form)
    return _requests.read_files(given, lambda line: None)[0]


# Rows


def test_a_table_and_lines_have_the_same_rows(tmp_path):
    table = "\n".join(["intent;text;tags", *(f"{row['intent']};{row['text']};{row['tags']}" for row in ROWS)])
    (tmp_path / "rows.csv").write_bytes(gzip.compress(table.encode()))
    assert read(tmp_path / "rows.csv") == ROWS
    lines = (
        "# id 7 of them\nPlay O\nHalo\tB-track\nby O\r\nAne B-artist\n99 I-artist\nPlayMusic\n\n\n# intent: Stop\nstop\tO"
    )
    (tmp_path / "rows.txt").write_text(f"{lines}\n\nplay O\nane  I-artist", encoding="utf-8")
    assert read(tmp_path / "rows.txt", "conll") == [ROWS[0], ROWS[1], ROWS[3]]


@pytest.mark.parametrize("intent", ["PlayMusic", "Play some music", "play: loud = 1 # now", "é\u00a0à", ""])
@pytest.mark.parametrize("mark", ["# intent: {}", "#intent={}", "# Intent : {} ", "# INTENT:\t{}\r"])
def test_an_intent_is_all_that_its_comment_says(mark, intent, tmp_path):
    (tmp_path / "rows.txt").write_text(f"{mark.format(intent)}\nplay O\nane I-artist\n", encoding="utf-8", newline="")
    assert read(tmp_path / "rows.txt", "conll") == [{"text": "play ane", "tags": "O B-artist", "intent": intent}]


def test_other_schemes_become_iob(tmp_path):
    (tmp_path / "rows.csv").write_text('text,tags,intent\n"a b c d e","S-x B-y I-y E-y I-x",\n', encoding="utf-8")
    assert read(tmp_path / "rows.csv")[0]["tags"] == "B-x B-y I-y I-y B-x"


WRONG = {
    "a tag too few": ("csv", "text,tags,intent\na,O,x\na b,O,x\n", r"Received: 2 words and 1 tags in row 2, 'a b'"),
    "no scheme": ("csv", "text,tags,intent\na b,O city,x\n", r"Received: the tag 'city' in row 1"),
    "no text": ("csv", "text,tags,intent\n,,x\n", r"must have words in each row.*Received: 0 words and 0 tags"),
    "no column": ("csv", "text,tags\na,O\n", r"must have the column 'intent'\. Received: the columns 'text', 'tags'"),
    "three cells": ("conll", "a O\nb x O\n", r"must have a word and its tag in each line\. Received: 3 cells in line 2"),
    "a word without a tag": ("conll", "a O\nb\nc O\n", r"must have a word and its tag.*Received: 1 cells in line 2"),
    "and with an intent": ("conll", "Go\na O\nb\n", r"must have a word and its tag.*Received: 1 cells in line 3"),
    "no sentence": ("conll", "\n\n", r"must have sentences, words with tags\. Received: none"),
    "not text": ("conll", b"\xff\xfe", r"must be UTF-8 text"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_said_of_a_file_that_cannot_be_used(case, tmp_path):
    form, content, message = WRONG[case]
    (tmp_path / "rows").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=rf"`.*rows` {message}" if message.startswith("must") else message):
        read(tmp_path / "rows", form)


@pytest.mark.parametrize("given", [{"train": "a"}, {"dev": "a"}, {"format": "conll"}, {"separator": "tab"}])
def test_options_of_files_need_both_files(given, tmp_path, capsys):
    arguments = [part for name, value in given.items() for part in (f"--{name}", value)]
    assert intents.main([*arguments, "--output", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert f"need both `--train` and `--dev`. Received: --{next(iter(given))}. Pass both" in error and error.count("\n") == 1


# Model


@pytest.fixture(scope="module")
def small():
    """Smaller layers."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "WORD": 12,
            "LETTER": 6,
            "FILTERS": 8,
            "UNITS": 10,
            "PARTS": 2,
            "DROPOUT": 0.1,
            "RATE": 0.02,
        }.items():
            patch.setattr(intents, name, value)
        yield


@pytest.fixture(scope="module")
def trained(small):
    keras.utils.set_random_seed(0)
    rows = [*ROWS, {"text": "stop it", "tags": "O O", "intent": "Stop"}]
    model = intents.Model(rows * 8, [{"text": "?", "tags": "B-new", "intent": "New"}])
    model.fit(rows * 8, 40, 0, lambda: None)
    return model


def test_it_learns_and_the_export_takes_texts_in_an_empty_process(trained, tmp_path):
    assert trained.scores(ROWS) == [1.0, 1.0, 1.0]
    assert np.isnan(trained.scores(ROWS[3:])[1:]).all()
    trained.export(tmp_path / "request")
    code = (
        "import json, sys, tensorflow as tf\n"
        "serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "found = serve(inputs=tf.constant(['PLAY halo by ANE 12', 'stop', '']))\n"
        "assert 'multihead' not in sys.modules\n"
        "print(json.dumps([found['intent'].numpy().astype(str).tolist(), found['slots'].numpy().astype(str).tolist()]))"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "request")]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    intent, slots = json.loads(output.splitlines()[-1])
    assert intent[:2] == ["PlayMusic", "Stop"] and slots[0] == ["O", "B-track", "O", "B-artist", "I-artist"]
    assert slots[1] == ["O", "", "", "", ""]
    (answer,) = serve.Export(tmp_path).answer(["play  Halo, by Ane 12"])
    assert answer == {
        "intent": "PlayMusic",
        "slots": [
            {"slot": "track", "start": 6, "end": 10, "text": "Halo"},
            {"slot": "artist", "start": 15, "end": 21, "text": "Ane 12"},
        ],
    }


@pytest.mark.thorough
def test_without_any_intents_the_slots_are_learned(small):
    rows = [{**row, "intent": ""} for row in ROWS]
    model = intents.Model(rows, rows)
    model.fit(rows, 2, 0, lambda: None)
    f1, *others = model.scores(rows)
    assert f1 >= 0 and np.isnan(others).all()


@pytest.mark.thorough
def test_the_program(small, tmp_path, capsys):
    lines = [f"{row['text']}\t{row['tags']}\t{row['intent']}" for row in ROWS]
    (tmp_path / "rows.tsv").write_text("\n".join(["text\ttags\tintent", *lines]), encoding="utf-8")
    files = ["--train", str(tmp_path / "rows.tsv"), "--dev", str(tmp_path / "rows.tsv")]
    assert intents.main(["--quick", "--seeds", "2", "--output", str(tmp_path), *files]) == 0
    said = capsys.readouterr().out
    assert "seed 1: slot F1" in said and "sentence accuracy" in said and "seeds: 2" in said
    assert (tmp_path / "export" / "request" / "saved_model.pb").is_file()

"""The tags of the words of generated orders, against the orders' normal forms."""

from __future__ import annotations

from examples._orders import COUNTS, FINISHES, MATERIALS, PRODUCTS, SEATS, SIZES, TAGS, draw_rows

ROWS = draw_rows(1000, held_out=False, seed=3)


def tagged(row: dict[str, str], tag: str) -> set[str]:
    """The words of a row's text that have a tag, without punctuation."""
    words = zip(row["text"].split(" "), row["tags"].split(" "), strict=True)
    return {word.strip(",:") for word, own in words if own == tag}


def spelt(words: set[str], known: dict[str, set[str]]) -> set[str]:
    """The normal names whose words, as customers write them, are among some words; None for one with a typing error."""
    return {next((name for name, said in known.items() if word in said), None) for word in words}


def test_the_tags_say_what_was_ordered():
    """The words that count name the order's parts and no others; what is taken back, denied or said besides does not."""
    nouns = {name: [each.split() for each in (*usual, *synonym)] for name, (_, usual, synonym) in PRODUCTS.items()}
    products = {name: {words[-1] for words in said} for name, said in nouns.items()}
    products[""] = {word for said in nouns.values() for words in said for word in words[:-1]}  # "dining": a table or a chair
    materials = {name: {word for each in said[1] for word in each.split()} for name, said in MATERIALS.items()}
    sizes = {name: {*said[1], *SEATS[name]} for name, said in SIZES.items()} | {"": set(SEATS[""])}
    counts = {
        str(number): {word for each in said for word in each.split()} | {str(number), "an"}
        for number, said in COUNTS.items()
    }
    skipped = 0
    for row in ROWS:
        parts = [part.split() for part in row["order"].split("; ") if part != "express"]
        assert set(row["tags"].split()) <= set(TAGS)
        assert bool(tagged(row, "express")) == row["order"].endswith("express")
        for tag, known in {"product": products, "material": materials, "size": sizes}.items():
            found = spelt(tagged(row, tag), known)
            skipped += None in found
            if None not in found:
                assert found - {""} == {word for words in parts for word in words if word in known}, (tag, row)
        assert len(tagged(row, "finish")) >= len({words[-1] for words in parts if words[-1] in FINISHES})
        skipped += sum(not tagged(row, "count") & counts[words[0]] for words in parts)
    assert skipped < 30  # words with a typing error
    assert sum(bool(tagged(row, "wrong")) for row in ROWS) > 200

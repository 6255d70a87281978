"""Generated orders at a furniture workshop: what a customer writes, a tag for each of its words, its normal form, its price.

The same seed gives the same orders on every machine:

>>> row = draw_rows(1, held_out=False, seed=0)[0]
>>> sorted(row)
['order', 'price', 'tags', 'text']

They are hard enough to need an encoder: attributes belong to one of several items; numbers appear as digits, words and
phrases; customers correct themselves ("in oak, no, pine"), cancel items, mention an attribute once for all items, use
synonyms and make typing errors. The price multiplies and adds, so it cannot be predicted from the words without their
order. Nor can the tags: a word that is taken back has another tag than the same word that counts.
"""

from __future__ import annotations

import math
import random
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

HELD_OUT_SHARE = 11
"""One in `HELD_OUT_SHARE` orders is held out, chosen by a checksum of its normal form."""

PRODUCTS = {
    "hook": (4, ("hook", "hooks"), ("coat hook", "coat hooks")),
    "tray": (11, ("tray", "trays"), ("serving tray", "serving trays")),
    "frame": (27, ("frame", "frames"), ("picture frame", "picture frames")),
    "stool": (67, ("stool", "stools"), ("bar stool", "bar stools")),
    "chair": (168, ("chair", "chairs"), ("dining chair", "dining chairs")),
    "bench": (420, ("bench", "benches"), ("garden bench", "garden benches")),
    "desk": (1050, ("desk", "desks"), ("writing desk", "writing desks")),
    "table": (2600, ("table", "tables"), ("dining table", "dining tables")),
    "wardrobe": (6600, ("wardrobe", "wardrobes"), ("closet", "closets")),
    "kitchen": (16500, ("kitchen", "kitchens"), ("fitted kitchen", "fitted kitchens")),
}
"""Normal name -> price of one in pine, then (singular, plural) as customers write it, the usual words first."""

MATERIALS = {
    "pine": (1.0, ("pine", "pinewood")),
    "oak": (1.8, ("oak", "solid oak")),
    "walnut": (3.0, ("walnut", "dark walnut")),
}
SIZES = {"small": (0.6, ("small", "little", "compact")), "large": (1.8, ("large", "big", "oversized"))}
SEATS = {"small": ("two",), "": ("four", "six"), "large": ("eight", "ten")}
"""Number of seats at a table of a given size: another way to state its size."""
FINISHES = {"varnished": ("varnished", "lacquered"), "painted": ("painted", "coloured")}
"""A finish is free."""
EXPRESS_FACTOR = 1.5
BAND_EDGES = (90.0, 450.0, 1400.0, 3500.0, 8500.0, 18000.0, 40000.0)
"""Inner edges of the eight price ranges; each holds between 10 and 15 percent of the orders."""
PRICE_NOISE = 0.006
"""Standard deviation of the noise in the logarithm of a price."""

COUNTS = {
    1: ("a", "a", "a", "one", "1", "a single"),
    2: ("two", "two", "2", "a pair of", "a couple of"),
    3: ("three", "3", "a set of three"),
    4: ("four", "4", "a set of four"),
    6: ("six", "6", "half a dozen"),
}
OPENINGS = (
    "hi,", "hello,", "good morning,", "we need", "i need", "i would like", "we would like to order",
    "please make us", "could you build", "can i get", "hello, please send", "hi there, i am after", "for our new flat:",
    "my order:", "as discussed on the phone,",
)  # fmt: skip
CLOSINGS = (
    "thanks", "thank you", "many thanks", "cheers", "kind regards", "see you soon",
    "call me with questions", "best wishes",
)  # fmt: skip
EXPRESS = ("by friday please", "as fast as you can", "it is urgent", "express please", "we need it this week")
NO_HURRY = ("no hurry", "it is not urgent", "no express please", "take your time", "need not be by friday")
TAGS = ("other", "count", "size", "finish", "material", "product", "express", "wrong")
"""What a word says: a part of the order, what the customer takes back (`wrong`), or nothing that counts (`other`)."""
MARKS = {tag: chr(0xE000 + number) for number, tag in enumerate(TAGS)}
"""While a text is put together, a character before each word with a tag other than `other`."""

ASKED = {
    "order": ("{}",),
    "price": ("before i order, what is the price: {}", "{}, how much would that be", "a quote, please: {}"),
    "delivery": ("when could you deliver this: {}", "{}, how long would it take", "is there a date yet: {}"),
    "cancel": ("please cancel my order: {}", "{}, that is what i no longer want", "i take this back: {}"),
}
"""What a customer who writes an order may want with it, and how it is said."""


@dataclass(frozen=True)
class Item:
    """One line of an order: count, product and attributes; an attribute is empty if not requested."""

    count: int
    product: str
    material: str = ""
    size: str = ""
    finish: str = ""

    def normal_form(self) -> str:
        """For example `"2 large oak desk varnished"`: count, size, material, product and finish, in this order."""
        return " ".join(str(part) for part in (self.count, self.size, self.material, self.product, self.finish) if part)

    def price(self) -> float:
        """Count times product price times factors for material and size; the default material is pine."""
        material = MATERIALS[self.material][0] if self.material else 1.0
        size = SIZES[self.size][0] if self.size else 1.0
        return self.count * PRODUCTS[self.product][0] * material * size


def normal_form(items: Sequence[Item], express: bool) -> str:
    """The order that the text describes, for example `"2 oak desk; 1 pine chair; express"`."""
    return "; ".join([item.normal_form() for item in items] + ["express"] * express)


def total_price(items: Sequence[Item], express: bool) -> float:
    """The order's price before noise: `sum_i price_i`, times 1.5 for express."""
    return sum(item.price() for item in items) * (EXPRESS_FACTOR if express else 1.0)


def draw_rows(number: int, *, held_out: bool, seed: int) -> list[dict[str, str]]:
    """Generates orders with distinct texts.

    Training rows and held-out rows share neither a text nor an order in normal form: a checksum of the normal form
    assigns each order to one of them.

    Args:
        number: Number of rows.
        held_out: Whether to generate held-out rows.
        seed: Any whole number; the same seed gives the same rows.

    Returns:
        Rows with the columns `text` (what the customer writes), `tags` (one of `TAGS` for each of its words), `order` (its
        normal form) and `price` (a number).
    """
    generator = random.Random(2 * seed + held_out)
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < number:
        items = _draw_items(generator)
        express = generator.random() < 0.3
        order = normal_form(items, express)
        if (zlib.crc32(order.encode()) % HELD_OUT_SHARE == 0) != held_out:
            continue
        said, tags = _without_marks(_say_order(items, express, generator))
        text = _misspell(said, generator)
        price = total_price(items, express) * math.exp(generator.gauss(0.0, PRICE_NOISE))
        rows.setdefault(text, {"text": text, "tags": tags, "order": order, "price": f"{price:.0f}"})
    return list(rows.values())


def draw_requests(number: int, *, held_out: bool, seed: int) -> list[dict[str, str]]:
    """Generates requests about orders.

    Args:
        number: Number of rows.
        held_out: Whether to generate held-out rows.
        seed: Any whole number; the same seed gives the same rows.

    Returns:
        Rows with the columns `text`, `tags` (for each word `O`, or `B-x` or `I-x` of a slot `x`, which is a tag of `TAGS`)
        and `intent` (a key of `ASKED`).
    """
    generator, rows = random.Random(2 * seed + held_out), []
    for row in draw_rows(number, held_out=held_out, seed=seed):
        intent = generator.choice(list(ASKED))
        before, after = (words.split() for words in generator.choice(ASKED[intent]).split("{}"))
        tags = ["other"] * len(before) + row["tags"].split() + ["other"] * len(after)
        pairs = zip(["other", *tags], tags)
        spans = ["O" if tag == "other" else f"{'I' if tag == previous else 'B'}-{tag}" for previous, tag in pairs]
        rows.append({"text": " ".join([*before, row["text"], *after]), "tags": " ".join(spans), "intent": intent})
    return rows


def _draw_items(generator: random.Random) -> list[Item]:
    """One to three items; in some orders all have the same material, or one product comes in two materials."""
    products = generator.sample(list(PRODUCTS), generator.choices((1, 2, 3), (12, 7, 1))[0])
    items = [_draw_item(product, generator) for product in products]
    kind = generator.random()
    if kind < 0.2:
        items = [replace(item, material=items[0].material) for item in items]
    elif kind < 0.3 and len(items) > 1 and items[0].material:
        other = generator.choice([name for name in MATERIALS if name != items[0].material])
        items[1] = replace(items[0], count=items[1].count, material=other)
    return items


def _draw_item(product: str, generator: random.Random) -> Item:
    cheap = PRODUCTS[product][0] < 500
    count = generator.choice((1, 2, 3, 4, 6)) if cheap else generator.choice((1, 1, 1, 2, 2, 3))
    return Item(
        count,
        product,
        generator.choice(list(MATERIALS)) if generator.random() < 0.7 else "",
        generator.choice(list(SIZES)) if generator.random() < 0.25 else "",
        generator.choice(list(FINISHES)) if generator.random() < 0.2 else "",
    )


def _say_order(items: Sequence[Item], express: bool, generator: random.Random) -> str:
    """The customer's text: opening, items, remarks about them, urgency, closing."""
    inline, remarks = list(items), []
    distinct = len({item.product for item in items}) == len(items)
    if len(items) > 1 and len({item.material for item in items}) == 1 and items[0].material:
        inline = [replace(item, material="") for item in inline]
        pattern = generator.choice(("all in {}", "everything in {}", "{} throughout"))
        remarks.append(pattern.format(_mark(items[0].material, "material")))
    if len(items) > 1 and distinct and generator.random() < 0.15:
        inline, remark = _remark_on_finish(inline, generator)
        remarks.append(remark)
    phrases = [_say_item(item, generator) for item in inline]
    if len(items) > 1 and not distinct:
        phrases[1] = _say_again(inline[1], generator)
    if distinct and generator.random() < 0.06:
        phrases.insert(generator.randrange(len(phrases)), _say_and_take_back(items, generator))
    listed = phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"
    hurry = ""
    if express or generator.random() < 0.15:
        hurry = generator.choice(EXPRESS if express else NO_HURRY)
        hurry = _mark(hurry, "express") if express else hurry
    opening = generator.choice(OPENINGS) if generator.random() < 0.5 else ""
    closing = generator.choice(CLOSINGS) if generator.random() < 0.4 else ""
    if hurry and generator.random() < 0.2:
        first, rest = f"{opening} {hurry},".strip(), [listed, *remarks, closing]
    else:
        first, rest = opening, [listed, *remarks, hurry, closing]
    return f"{first} {', '.join(part for part in rest if part)}".strip()


def _say_item(item: Item, generator: random.Random) -> str:
    """One item as a phrase; about one in five contains a correction of the count, material or product."""
    noun = _noun(item, generator)
    material = _mark(generator.choice(MATERIALS[item.material][1]) if item.material else "", "material")
    size = _mark(generator.choice(SIZES[item.size][1]) if item.size else "", "size")
    finish = _mark(generator.choice(FINISHES[item.finish]) if item.finish else "", "finish")
    if item.product == "table" and generator.random() < 0.4:
        noun, size = f"{noun} for {_mark(generator.choice(SEATS[item.size]), 'size')}", ""
    count = _mark(generator.choice(COUNTS[item.count]), "count")
    correction = generator.random()
    if correction < 0.08 and material:
        wrong = _mark(generator.choice([name for name in MATERIALS if name != item.material]), "wrong")
        pattern = generator.choice((
            "{count} {size} {finish} {wrong}, no, {material} {noun}",
            "{count} {size} {finish} {noun} in {material}, not {wrong}",
            "{count} {size} {finish} {noun}, not {wrong}, {material}",
            "{count} {size} {finish} {noun} in {material} instead of {wrong}",
            "{count} {size} {finish} {wrong} {noun}, sorry, {material}",
        ))  # fmt: skip
        return _join(pattern.format(count=count, size=size, finish=finish, noun=noun, material=material, wrong=wrong))
    phrase = generator.choice((
        "{count} {size} {finish} {material} {noun}",
        "{count} {size} {material} {noun} {finish}",
        "{count} {size} {finish} {noun} in {material}" if material else "{count} {finish} {size} {noun}",
    )).format(count=count, size=size, finish=finish, noun=noun, material=material)  # fmt: skip
    if correction < 0.14:
        wrong = _mark(str(generator.choice([number for number in COUNTS if number not in (1, item.count)])), "wrong")
        pattern = generator.choice(("{wrong}, no, {phrase}", "{wrong} or rather {phrase}", "not {wrong} but {phrase}"))
        return _join(pattern.format(wrong=wrong, phrase=phrase))
    if correction < 0.18:
        other = generator.choice([name for name in PRODUCTS if name != item.product])
        wrong = _mark(PRODUCTS[other][1][item.count > 1], "wrong")
        return _join(phrase.replace(noun, f"{wrong} or rather {noun}", 1))
    return _join(phrase)


def _say_again(item: Item, generator: random.Random) -> str:
    """A second item of the same product, without repeating the product's name: `"three more in walnut"`."""
    pattern = generator.choice(("{count} more in {material}", "another {count} of them but in {material}"))
    return pattern.format(count=_mark(str(item.count), "count"), material=_mark(item.material, "material"))


def _remark_on_finish(items: Sequence[Item], generator: random.Random) -> tuple[list[Item], str]:
    """A remark on one item's finish, which is removed from the item's phrase."""
    chosen = generator.randrange(len(items))
    noun, finish = _noun(items[chosen], generator), _mark(items[chosen].finish, "finish")
    if not finish:
        patterns = ("no varnish on the {}", "no paint on the {}", "the {} without varnish")
        return list(items), generator.choice(patterns).format(noun)
    bare = [replace(item, finish="") if place == chosen else item for place, item in enumerate(items)]
    return bare, generator.choice(("the {} {}", "and have the {} {}")).format(noun, finish)


def _say_and_take_back(items: Sequence[Item], generator: random.Random) -> str:
    """A product that is mentioned and immediately canceled; it is not part of the order."""
    taken = {item.product for item in items}
    item = _draw_item(generator.choice([product for product in PRODUCTS if product not in taken]), generator)
    pattern = generator.choice(("{}, no, forget the {}", "{}, actually no {}", "{}, or no, leave out the {}"))
    said = pattern.format(_say_item(item, generator), _noun(item, generator))
    return re.sub(f"[{''.join(MARKS.values())}]", MARKS["wrong"], said)


def _noun(item: Item, generator: random.Random) -> str:
    usual, synonym = PRODUCTS[item.product][1:]
    return _mark((usual if generator.random() < 0.7 else synonym)[item.count > 1], "product")


def _join(phrase: str) -> str:
    """Joins words with single spaces, with `an` before a vowel."""
    words = phrase.split()
    for place, following in enumerate(words[1:]):
        mark, word = _apart(words[place])
        if word == "a" and _apart(following)[1][0] in "aeiou":
            words[place] = mark + "an"
    return " ".join(words)


def _mark(phrase: str, tag: str) -> str:
    """The phrase with a tag's mark before each word."""
    return " ".join(MARKS[tag] + word for word in phrase.split())


def _apart(word: str) -> tuple[str, str]:
    """A word's mark, empty without one, and the word."""
    return (word[0], word[1:]) if word[0] in MARKS.values() else ("", word)


def _without_marks(said: str) -> tuple[str, str]:
    """The text, and the words' tags with spaces between them."""
    tags = {mark: tag for tag, mark in MARKS.items()}
    marks, words = zip(*map(_apart, said.split(" ")))
    return " ".join(words), " ".join(tags.get(mark, "other") for mark in marks)


def _misspell(text: str, generator: random.Random) -> str:
    """Occasionally swaps, drops or doubles a letter inside a long word."""
    words = text.split(" ")
    for place, word in enumerate(words):
        if len(word) >= 5 and word.isalpha() and generator.random() < 0.006:
            at = generator.randrange(1, len(word) - 2)
            words[place] = generator.choice((
                word[:at] + word[at + 1] + word[at] + word[at + 2 :],
                word[:at] + word[at + 1 :],
                word[:at] + word[at] + word[at:],
            ))  # fmt: skip
    return " ".join(words)

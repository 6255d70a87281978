"""Slots of replies of the form `name[value], name[value]`, and how many of them are right."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_SLOT = r"\s*([^\[\],]+?)\s*\[([^\[\]]*)\]\s*"
_FORM = re.compile(rf"{_SLOT}(,{_SLOT})*")


def have_slots(texts: Iterable[str]) -> bool:
    """Whether all texts have the form `name[value], name[value]`."""
    return all(_FORM.fullmatch(text) for text in texts)


def slots_of(text: str) -> Counter[tuple[str, ...]]:
    """How often each pair of a name and a value stands in a text, up to the amount of white space."""
    return Counter((name, " ".join(value.split())) for name, value in re.findall(_SLOT, text))


def slot_f1(pairs: Sequence[tuple[str, str]]) -> float:
    """The F1 of the slots of replies, micro-averaged over pairs of a reference and a reply.

    With `r` slots that stand in both, `w` in the references and `a` in the replies, this is `2 r / (w + a)`.
    """
    wanted, received = ([slots_of(pair[side]) for pair in pairs] for side in (0, 1))
    right = sum((one & other).total() for one, other in zip(wanted, received))
    number = sum(slots.total() for slots in (*wanted, *received))
    return 2 * right / number if number else 1.0

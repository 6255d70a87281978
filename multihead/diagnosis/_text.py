"""How a suggestion is printed: as lines of code to copy, with comments that say what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from multihead._ground.types import Config

_PURPOSES = {
    "target_scaling": "trains {heads} on scaled targets; predictions and metrics keep their units",
    "balancer": "lifts gradients below a fifth of the largest to it{after}",
}


def suggestion_lines(parts: Mapping[str, Config], suggestion: Config) -> list[str]:
    """A line of code for each part of a suggestion, and one for the whole, each below a comment that says what it does."""
    after = ""
    if "target_scaling" in parts:
        after = "; scaled, they may need no more; without the scaling, it can make heads in other units worse"
    lines = []
    for name, part in parts.items():
        heads = ", ".join(map(repr, part[name])) if isinstance(part[name], Mapping) else ""
        lines += [f"# {_PURPOSES[name].format(heads=heads, after=after)}", _call(part)]
    if "scaling." in repr(suggestion.get("target_scaling")):
        lines.insert(0, "from multihead import scaling")
    if len(parts) > 1:
        lines += ["# all of it; `multihead.compare` tells which part helps which head", _call(suggestion)]
    return lines


def _call(arguments: Config) -> str:
    return f"trainer.compile(optimizer, {', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def weights_as_text(weights: Mapping[str, float], scaled_heads: Sequence[str]) -> str:
    """What fixed weights would do, and where they are not enough."""
    before = ""
    if scaled_heads:
        before = f" They are for the targets as they are: scale those of {', '.join(map(repr, scaled_heads))} first."
    return (
        f"`weight=` by head that would make these norms equal: {weights!r}\n"
        f"for name, weight in {weights!r}.items(): trainer.set_weight(name, weight)\n"
        "Fixed weights that are tuned are often as good as any method (Xin et al., 2022, arXiv:2209.11379), but not where "
        f"the sizes of gradients drift while the heads train: `NormFloor` follows them.{before}"
    )

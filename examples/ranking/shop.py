"""A shop's log, generated from a seed: what was shown, clicked and bought, and for how much, with the true probabilities.

Each request shows ten items to a customer. An item is clicked with a probability of 3 % on average, and one that was
clicked is bought with a probability of 8 %. The price of an order is known only of what was bought:

>>> log = draw_log(200, seed=0)
>>> sorted(log.targets)
['bought', 'click', 'price', 'purchase']
>>> bool(np.isnan(log.targets["purchase"][log.targets["click"] == 0]).all())
True
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from examples._orders import EXPRESS_FACTOR, MATERIALS, PRODUCTS, SIZES

SHOWN = 10
"""Items of a request."""
CLICKED, BOUGHT = 0.03, 0.08
"""The mean probability of a click, and that of a purchase after one."""
USERS, ITEMS = 3000, 400
COUNTRIES = ("Austria", "Denmark", "France", "Germany", "Italy", "Sweden")
CUSTOMERS = {"new": 1.0, "regular": 1.0, "trade": 3.2}
"""What kind of customer -> by how much the price of an item is multiplied: trade buys several."""
DEVICES = ("app", "desktop", "phone")
SPREAD = 0.12
"""The deviation of the logarithm of a price."""


class Log(NamedTuple):
    """Impressions.

    Attributes:
        inputs: The columns that a model reads, strings, whole numbers and floats, `[n]`.
        targets: `click`, `purchase` (NaN unless clicked), `price` in euros (NaN unless bought), and `bought`, known of every
            impression, floats `[n]`.
        truth: The probabilities with which `click`, `purchase` and `bought` were drawn, and the median of the price.
        requests: The request of each impression, `[n]`.
    """

    inputs: dict[str, np.ndarray]
    targets: dict[str, np.ndarray]
    truth: dict[str, np.ndarray]
    requests: np.ndarray


def draw_log(requests: int, seed: int) -> Log:
    """Draws the log of some requests; the shop, its customers and its items, is the same for all seeds.

    Args:
        requests: How many requests of `SHOWN` items.
        seed: What is shown and how customers decide.
    """
    shop, random = np.random.default_rng(1), np.random.default_rng([2, seed])
    products, materials, sizes = list(PRODUCTS), list(MATERIALS), ["small", "medium", "large"]
    # Items: what they are, what they cost, and how much customers like them.
    product, material, size = (shop.integers(len(names), size=ITEMS) for names in (products, materials, sizes))
    factors = np.array([MATERIALS[name][0] for name in materials])[material]
    factors = factors * np.array([SIZES.get(name, (1.0,))[0] for name in sizes])[size]
    costs = np.array([PRODUCTS[name][0] for name in products])[product] * factors * np.exp(0.1 * shop.normal(size=ITEMS))
    appeal, quality = 0.5 * shop.normal(size=ITEMS), 0.5 * shop.normal(size=ITEMS)
    # Customers: where they live, what they are, what they like and what they can spend.
    country, customer = shop.integers(len(COUNTRIES), size=USERS), shop.choice(3, USERS, p=[0.5, 0.35, 0.15])
    likes_product, likes_material = 0.7 * shop.normal(size=(3, len(products))), 0.6 * shop.normal(size=(len(COUNTRIES), 3))
    activity = 0.4 * shop.normal(size=USERS)
    budget = np.array([4.5, 5.5, 7.5])[customer] + 0.6 * shop.normal(size=USERS)  # logarithms of euros

    user = np.repeat(random.integers(USERS, size=requests), SHOWN)
    device = np.repeat(random.choice(3, requests, p=[0.3, 0.3, 0.4]), SHOWN)
    hour = np.repeat(random.integers(24, size=requests), SHOWN)
    item, position = random.integers(ITEMS, size=requests * SHOWN), np.tile(np.arange(SHOWN), requests)
    days = random.choice([1, 2, 5, 14, 30], requests * SHOWN, p=[0.1, 0.15, 0.3, 0.3, 0.15])

    kind, excess = customer[user], np.log(costs[item]) - budget[user]
    taste = likes_material[country[user], material[item]]
    click = appeal[item] + activity[user] + likes_product[kind, product[item]] + taste
    click += -0.15 * position + 0.5 * np.cos((hour - 20) * np.pi / 12) * (device != 1)
    buy = quality[item] - 0.5 * np.maximum(excess, 0) - 0.12 * np.abs(excess) + 0.8 * (device == 1) + 0.6 * (kind > 0)
    buy += 0.4 * taste - 0.02 * days
    truth = {"click": _with_mean(click, CLICKED), "purchase": np.zeros(0)}
    truth["purchase"] = _with_mean(buy, BOUGHT, weights=truth["click"])
    truth["bought"] = truth["click"] * truth["purchase"]
    truth["price"] = costs[item] * np.array(list(CUSTOMERS.values()))[kind] * np.where(days <= 2, EXPRESS_FACTOR, 1.0)

    clicked = random.random(len(item)) < truth["click"]
    bought = clicked & (random.random(len(item)) < truth["purchase"])
    paid = truth["price"] * np.exp(SPREAD * random.normal(size=len(item)))
    targets = {
        "click": clicked.astype("float32"),
        "purchase": np.where(clicked, bought, np.nan).astype("float32"),
        "price": np.where(bought, np.round(paid, 2), np.nan).astype("float32"),
        "bought": bought.astype("float32"),
    }
    names = {"country": (COUNTRIES, country[user]), "customer": (list(CUSTOMERS), kind), "device": (DEVICES, device)}
    names |= {"product": (products, product[item]), "material": (materials, material[item]), "size": (sizes, size[item])}
    inputs = {"user": user.astype("int64"), "item": item.astype("int64")}
    inputs |= {name: np.array(values)[places] for name, (values, places) in names.items()}
    numbers = {"list_price": np.round(costs[item], 2), "delivery_days": days, "hour": hour, "position": position}
    inputs |= {name: values.astype("float32") for name, values in numbers.items()}
    return Log(inputs, targets, truth, np.repeat(np.arange(requests), SHOWN))


def _with_mean(logits: np.ndarray, mean: float, weights: np.ndarray | None = None) -> np.ndarray:
    """Probabilities from logits, to which a constant is added that gives them a mean."""
    low, high = -30.0, 30.0
    for _ in range(50):
        middle = (low + high) / 2
        is_more = np.average(1 / (1 + np.exp(-logits - middle)), weights=weights) > mean
        low, high = (low, middle) if is_more else (middle, high)
    return 1 / (1 + np.exp(-logits - low))

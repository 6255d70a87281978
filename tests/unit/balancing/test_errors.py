"""What bad input is told: the argument, the rule, what was received, what to do."""

from __future__ import annotations

import numpy as np
import pytest

from multihead import balancing

pytestmark = pytest.mark.mathematics

ROWS = [[1.0, 2.0], [3.0, 4.0]]
NAMES = ["reply", "price"]


@pytest.mark.parametrize(
    "method", [balancing.Sum, balancing.UPGrad, balancing.DualProj, balancing.AlignedMTL, balancing.EqualNorms]
)
@pytest.mark.parametrize("numbers", [[1.0, -1.0], [float("nan"), 1.0], [float("inf"), 1.0], ["a", 1.0], [None, 1.0]])
def test_preference_of_bad_numbers(method, numbers):
    with pytest.raises(ValueError, match=r"`preference` must contain finite numbers of at least 0.*Received: preference=.*"):
        method(dict(zip(NAMES, numbers)))


@pytest.mark.parametrize("method", [balancing.Sum, balancing.NormFloor, balancing.CAGrad, balancing.NormBudget])
@pytest.mark.parametrize("preference", [[1.0, 2.0], (1.0, 2.0), np.ones(2), 1.0, "price", {"price"}])
def test_a_preference_is_a_mapping(method, preference):
    with pytest.raises(TypeError, match=r"(?s)`preference` must map head names to numbers\. Received: .*\{'price': 0\.5\}"):
        method(preference=preference)


def test_preference_of_other_heads():
    unbound = r"`preference` requires the heads' names\..*Call `bind\(head_names\)` first"
    for method in (balancing.UPGrad, balancing.NormBudget):
        with pytest.raises(ValueError, match=unbound):
            method({"price": 0.5})(ROWS)
        with pytest.raises(ValueError, match=r"`preference` must name only heads: 'prise' is not a head.*'reply', 'price'"):
            method({"prise": 0.5}).bind(NAMES)
        balancer = method({"price": 0.5})
        balancer.bind(NAMES)
        with pytest.raises(ValueError, match=r"one row per head\. Received: 3 rows for the heads 'reply', 'price'"):
            balancer(np.eye(3))
    with pytest.raises(ValueError, match=r"at least one above 0\. Received: preference=\{'reply': 0\.0, 'price': 0\.0\}"):
        balancing.Sum({"reply": 0, "price": 0}).bind(NAMES)


def test_the_preference_of_norm_budget():
    for budget in (0, -0.1, 1.1, "half", True):
        with pytest.raises(ValueError, match=r"`preference` .* above 0 and at most 1\. Received: .* for head 'price'"):
            balancing.NormBudget({"price": budget})
    with pytest.raises(ValueError, match=r"`preference` of NormBudget must sum to at least 1.*which sums to 0\.7\."):
        balancing.NormBudget({"price": 0.3, "reply": 0.4}).bind(NAMES)


def test_ranges_of_arguments():
    for make, argument in (
        (lambda: balancing.CAGrad(-0.1), "c"),
        (lambda: balancing.CAGrad(float("inf")), "c"),
        (lambda: balancing.ConicGrad(1.1), "c"),
        (lambda: balancing.GradDrop(leak=1.5), "leak"),
        (lambda: balancing.GradVac(beta=0.0), "beta"),
        (lambda: balancing.MetaBalance(relax=-1), "relax"),
        (lambda: balancing.MetaBalance(beta=1.0), "beta"),
        (lambda: balancing.MetaBalance(strategy="A"), "strategy"),
        (lambda: balancing.FairGrad(0.0), "alpha"),
        (lambda: balancing.AlignedMTL(scale="max"), "scale"),
        (lambda: balancing.DBMTL(beta=1.0), "beta"),
        (lambda: balancing.DBMTL(sigma=-1.0), "sigma"),
        (lambda: balancing.MoCo(beta=0.0), "beta"),
        (lambda: balancing.MoCo(gamma=0.0), "gamma"),
        (lambda: balancing.MoCo(rho=float("nan")), "rho"),
        (lambda: balancing.ExcessMTL(step_size=0), "step_size"),
        (lambda: balancing.PCGrad(seed=0.5), "seed"),
    ):
        with pytest.raises(ValueError, match=rf"`{argument}` must be .*Received: {argument}=.*\. \w+"):
            make()


LIMITED = [name for name in balancing.__all__ if getattr(getattr(balancing, name), "max_heads", None) is not None]


@pytest.mark.parametrize("name", LIMITED)
def test_too_many_heads(name):
    most = getattr(balancing, name).max_heads
    assert most == (1024 if name in ("PCGrad", "GradVac") else 128)
    with pytest.raises(
        ValueError, match=rf"`{name}` supports 1 to {most} heads\. Received: num_heads={most + 1}\. Merge some heads"
    ):
        getattr(balancing, name)().build((most + 1, None))


@pytest.mark.parametrize("method", [balancing.DBMTL, balancing.MoCo, balancing.ExcessMTL])
def test_running_gradients_are_for_parameters_of_known_number(method):
    assert method.levels == ("parameters",)
    with pytest.raises(ValueError, match=rf"`input_shape` must contain the numbers of parameters for {method.__name__}"):
        method().build((2, None))
    balancer = method()
    balancer(ROWS)
    with pytest.raises(ValueError, match=r"`gradients` must have the shapes .* \[\(2, 2\)\]\. Received: \[\(2, 3\)\]"):
        balancer(np.ones((2, 3)))


def test_another_number_of_heads_than_the_state_was_made_for():
    for balancer in (balancing.GradVac(), balancing.MetaBalance()):
        balancer(np.eye(3))
        with pytest.raises(ValueError, match=r"has state for 3 heads\. Received: num_heads=2\. Use one balancer per"):
            balancer(ROWS)
    stateless = balancing.UPGrad()
    assert stateless(np.eye(3)).shape == (3,) and stateless(ROWS).shape == (2,)


def test_chains():
    with pytest.raises(ValueError, match=r"`steps` before the last must multiply .* Received: 'GradDrop' before the end\."):
        balancing.Chain("GradDrop", "UPGrad")
    with pytest.raises(ValueError, match=r"`UPGrad`|supports 1 to 128 heads"):
        balancing.Chain("EqualNorms", "UPGrad").build((200, None))


def test_matrices_of_the_wrong_shape():
    for matrix in ([1.0, 2.0], [[[1.0]]]):
        with pytest.raises(ValueError, match=r"`matrix` must have the shape \[num_heads, num_parameters\].*Received: shape"):
            balancing.Sum()(matrix)


def test_names():
    assert isinstance(balancing.get("upgrad"), balancing.UPGrad)
    assert isinstance(balancing.get("nash_mtl"), balancing.NashMTL)
    assert isinstance(balancing.get("Meta-Balance"), balancing.MetaBalance)
    instance = balancing.MGDA()
    assert balancing.get(instance) is instance and balancing.get(None) is None
    with pytest.raises(
        ValueError, match=r"`balancer` must be one of .*'UPGrad'.*Received: 'upgrat'\. Did you mean 'UPGrad'\?"
    ):
        balancing.get("upgrat")
    for name in ("get", "Balancer", "xyz"):
        with pytest.raises(ValueError, match=r"`balancer` must be one of"):
            balancing.get(name)
    with pytest.raises(TypeError, match=r"`balancer` must be a balancer, its name, or None\. Received: 3 of type int"):
        balancing.get(3)

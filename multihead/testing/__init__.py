"""Checks that your own balancer, weighting, schedule or head satisfies the contract that the trainer relies on.

Each function raises an `AssertionError` that names the first check that fails and its input; otherwise it returns a `Report`
of the checks. Methods are checked on copies, a head on rows of your own.
"""

from multihead.testing._balancers import check_balancer
from multihead.testing._heads import check_head
from multihead.testing._report import Report
from multihead.testing._schedules import check_schedule
from multihead.testing._weightings import check_weighting

__all__ = ["Report", "check_balancer", "check_head", "check_schedule", "check_weighting"]

"""Whoever looks on disturbs nobody."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from tidegate_proxy.base.faults import faults

P = ParamSpec("P")
R = TypeVar("R")


def isolated(method: Callable[P, R]) -> Callable[P, R | None]:
    """A method of those who look on: what it raises is reported as a fault, and None its result."""

    @wraps(method)
    def quiet(*arguments: P.args, **options: P.kwargs) -> R | None:
        try:
            return method(*arguments, **options)
        except Exception as error:
            faults.report(f"observability ({method.__name__})", error)
            return None

    return quiet

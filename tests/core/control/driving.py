"""A driver that does at once what it is asked for: the controller answers, and the engine follows."""

from tidegate.control import AskController, Change, ControlLoop, Order, Switch


def followed(its: ControlLoop | Change, now_ns: int, orders: list[Order]) -> list[Order]:
    """These orders, and those that follow from them; without the question to the controller."""
    every: list[Order] = []
    for order in orders:
        if isinstance(order, AskController):
            assert isinstance(its, ControlLoop)
            every += followed(its, now_ns, its.has_answered(now_ns, its.answer(order.observation)))
            continue
        every.append(order)
        if isinstance(order, Switch):
            every += its.has_switched(now_ns)
    return every


def advance(loop: ControlLoop, now_ns: int) -> list[Order]:
    """Let time pass."""
    return followed(loop, now_ns, loop.advance(now_ns))

"""A driver that does at once what it is asked for: the controller answers, and the engine follows."""

from tidegate.control import Action, ControlLoop, LayoutChange, QueryController, Switch


def followed(its: ControlLoop | LayoutChange, now_ns: int, orders: list[Action]) -> list[Action]:
    """These orders, and those that follow from them; without the question to the controller."""
    every: list[Action] = []
    for order in orders:
        if isinstance(order, QueryController):
            assert isinstance(its, ControlLoop)
            every += followed(its, now_ns, its.on_answer(now_ns, its.answer(order.observation)))
            continue
        every.append(order)
        if isinstance(order, Switch):
            every += its.on_switched(now_ns)
    return every


def advance(loop: ControlLoop, now_ns: int) -> list[Action]:
    """Let time pass."""
    return followed(loop, now_ns, loop.advance(now_ns))

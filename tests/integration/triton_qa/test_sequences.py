"""Sequences through Tidegate, directly and as steps of ensembles, as Triton's L0_sequence_batcher and others ask."""

import threading
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest

from tests.examples import few
from tests.integration.triton_qa.asking import Served, of_sequence, over_grpc, over_http
from tests.proxy.fixtures.calls import rest_of

Make = Callable[..., Any]
MODELS = few(["sums", "sequence_sums", "simple_sums", "oldest"])
OK = grpc.StatusCode.OK


def _nine(model: str) -> list[Any]:
    flags = {1: "s", 9: "e"}
    return [of_sequence(model, 5, value, flags.get(value, ""), id=str(value)) for value in range(1, 10)]


def _two_rows(model: str) -> list[Any]:
    message = of_sequence(model, 27, 1, "s")
    message.inputs[0].shape[0] = 2
    message.raw_input_contents[0] = np.array([[1], [2]], np.int32).tobytes()
    return [message]


CASES: dict[str, Callable[[str], list[Any]]] = {
    "nine requests": _nine,
    "one request": lambda model: [of_sequence(model, 99, 42, "se", id="only")],
    "two rows": _two_rows,
    "no id": lambda model: [of_sequence(model, 0, 1, "s"), of_sequence(model, 0, 9, "e")],
    "an empty id": lambda model: [of_sequence(model, "", 1, "se")],
    "an id that is no number": lambda model: [of_sequence(model, "seven", 1, "se")],
    "a large id": lambda model: [of_sequence(model, 2**62 + 1, value, flags) for value, flags in ((1, "s"), (2, "e"))],
    "no start": lambda model: [of_sequence(model, 37469245, value, "e" * (value == 3)) for value in (1, 2, 3)],
    "no start after the end": lambda model: [
        of_sequence(model, 3, value, flags) for value, flags in ((1, "s"), (2, ""), (3, "e"), (55, ""))
    ],
    "no end before the next": lambda model: [
        of_sequence(model, 4566, value, flags) for value, flags in ((1, "s"), (2, ""), (42, "s"), (9, "e"))
    ],
    "side by side": lambda model: [
        of_sequence(model, sequence, sequence + index, flags, id=f"{sequence}/{index}")
        for index, flags in enumerate(("s", "", "e"))
        for sequence in (987, 988, 989, 990)
    ],
    "one behind four": lambda model: [
        *(of_sequence(model, sequence, sequence, "s") for sequence in (1001, 1002, 1003, 1004)),
        *(of_sequence(model, sequence, sequence, "e") for sequence in (1001, 1002, 1003, 1004)),
        *(of_sequence(model, 1005, value, flags) for value, flags in ((11111, "s"), (11113, "e"))),
    ],
    "the same id behind itself": lambda model: [
        of_sequence(model, 1002, value, flags) for value, flags in ((1, "s"), (2, "e"), (11111, "s"), (11113, "e"))
    ],
}
UNORDERED = {"the same id behind itself"}
"""Triton 2.51 now and then mixes these up itself where one does not wait for the other."""


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", CASES)
def test_calls(name: str, model: str, direct: Served, through: Served, call: Make) -> None:
    messages = CASES[name](model)
    expected = [over_grpc(call, direct, message) for message in messages]
    assert [over_grpc(call, through, message) for message in messages] == expected


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", [name for name in CASES if name not in UNORDERED])
def test_streams(name: str, model: str, direct: Served, through: Served, open_stream: Make) -> None:
    messages = CASES[name](model)
    expected = rest_of(open_stream(direct, messages))
    assert rest_of(open_stream(through, messages)) == expected


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", CASES)
def test_http(name: str, model: str, direct: Served, through: Served) -> None:
    messages = CASES[name](model)
    expected = [over_http(direct, message) for message in messages]
    assert [over_http(through, message) for message in messages] == expected


NAMES = {
    "names": [of_sequence("named", "a/b c", value, flags) for value, flags in ((1, "s"), (2, ""), (3, "e"))],
    "a number": [of_sequence("named", 7, value, flags) for value, flags in ((1, "s"), (2, "e"))],
    "a long name": [of_sequence("named", "n" * 129, 1, "se")],
    "two names": [of_sequence("named", name, 1, flags) for flags in ("s", "e") for name in ("a", "b")],
}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_sequences(name: str, direct: Served, through: Served, call: Make, open_stream: Make) -> None:
    messages = NAMES[name]
    expected = [over_grpc(call, direct, message) for message in messages]
    assert [over_grpc(call, through, message) for message in messages] == expected
    assert [over_http(through, message) for message in messages] == [over_http(direct, each) for each in messages]
    assert rest_of(open_stream(through, messages)) == rest_of(open_stream(direct, messages))


@pytest.mark.parametrize("model", MODELS)
def test_sequences_of_several_clients_at_once(model: str, direct: Served, through: Served, open_stream: Make) -> None:
    """More than run at once: those behind wait until others end, and are answered like them."""

    def sums(server: Served) -> list[Any]:
        found: dict[int, Any] = {}

        def run(sequence: int) -> None:
            values = ((sequence, "s"), (2, ""), (3, ""), (4, "e"))
            messages = [of_sequence(model, sequence, value, flags, id=str(value)) for value, flags in values]
            found[sequence] = rest_of(open_stream(server, messages))

        threads = [threading.Thread(target=run, args=(sequence,)) for sequence in range(2001, 2010)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [found[sequence] for sequence in sorted(found)]

    expected = sums(direct)
    assert {code for _, code, _ in expected} == {OK}
    assert sums(through) == expected


@pytest.mark.parametrize("model", ["solo"])
def test_a_pause_that_is_too_long_ends_a_sequence(
    model: str, direct: Served, through: Served, call: Make, start_call: Make
) -> None:
    """The one behind it runs, and what comes of it later is told to begin again."""

    def answers(server: Served) -> list[Any]:
        first = over_grpc(call, server, of_sequence(model, 1001, 1, "s"))
        behind = over_grpc(call, server, of_sequence(model, 1005, 5, "se"))
        return [first, behind, over_grpc(call, server, of_sequence(model, 1001, 3))]

    expected = answers(direct)
    assert [code for code, _ in expected] == [OK, OK, grpc.StatusCode.INVALID_ARGUMENT]
    assert answers(through) == expected

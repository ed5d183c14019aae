"""Which models of a Triton run in turn, and on how many workers: as the Triton itself runs them.

Triton executes its models concurrently, each batch of an instance beside those of all others, unless instances need the
same resource of its rate limiter. So a lane, which is a worker, is one instance of one model, or of each of those that
wait for the same resource (docs/decisions/0077-models-run-concurrently-as-in-their-triton.md).
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tritonclient.grpc import model_config_pb2

from tidegate_proxy.messages.model_signature import instances_of

IN_TURN: Final = " in turn"
"""How the kinds of workers end whose models take turns: what batches take there is another thing than side by side."""
_EVERYWHERE: Final = -1
"""The GPU of a resource that is one for all of them, or of an instance that is on none."""
_TURNS: Final = object()
"""What those need, beside resources, that take turns."""


class Lane(NamedTuple):
    """What runs one batch at a time."""

    name: str
    """What tells it from the others of its Triton: the model, with how many others take turns with it, and a number."""
    models: tuple[str, ...]
    """Their names, sorted."""
    takes_turns: bool
    """Whether its models could run side by side with those of other lanes, and do not."""


def lanes_of(
    configs: Mapping[str, model_config_pb2.ModelConfig], *, in_turn: bool | None, turns: frozenset[str] = frozenset()
) -> Iterator[Lane]:
    """The lanes of one Triton for these of its models: lane k of a group has those with more than k instances.

    `in_turn`: whether all of them are one group, or each is its own; None: those are that wait for each other's
    resources, be it by way of others, and those of `turns`.
    """
    for group in _groups(configs, in_turn, turns):
        instances = {name: instances_of(configs[name]) for name in group}
        others = f"+{len(group) - 1}" if len(group) > 1 else ""
        for number in range(max(instances.values(), default=0)):
            models = tuple(name for name, count in instances.items() if count > number)
            yield Lane(f"{group[0]}{others}/{number}", models, takes_turns=not turns.isdisjoint(models))


def _groups(
    configs: Mapping[str, model_config_pb2.ModelConfig], in_turn: bool | None, turns: frozenset[str]
) -> list[list[str]]:
    """The models in groups, sorted."""
    if in_turn is not None:
        return [sorted(configs)] if in_turn else [[name] for name in sorted(configs)]
    alone: list[list[str]] = []
    groups: list[tuple[set[str], set[object]]] = []
    for name, config in configs.items():
        models, needed = {name}, _resources(config) | ({_TURNS} if name in turns else set())
        if not needed:
            alone.append([name])
            continue
        apart = []
        for others, theirs in groups:
            if needed & theirs:
                models |= others
                needed |= theirs
            else:
                apart.append((others, theirs))
        groups = [*apart, (models, needed)]
    return sorted([*alone, *(sorted(models) for models, _ in groups)])


def _resources(config: model_config_pb2.ModelConfig) -> set[object]:
    """What the instances of a model need of the rate limiter: a resource's name, and the GPU whose it is."""
    return {
        (resource.name, _EVERYWHERE if getattr(resource, "global") else gpu)
        for group in config.instance_group
        if not group.passive
        for resource in group.rate_limiter.resources
        for gpu in (group.gpus or (_EVERYWHERE,))
    }

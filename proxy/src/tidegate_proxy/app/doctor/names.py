"""Models that the configuration names and no Triton has, or that it names twice."""

from collections.abc import Collection, Iterator
from difflib import get_close_matches
from fnmatch import fnmatchcase

from pydantic import ValidationError

from tidegate.host.by_model import BY_MODEL, ByModelOptions
from tidegate_proxy.app.doctor.facts import Facts
from tidegate_proxy.app.doctor.finding import Finding
from tidegate_proxy.configuration.config import ModelConfig


def models_that_nobody_has(facts: Facts) -> Iterator[Finding]:
    """Where something is said of such a model that has to be followed, `serve` refuses to start."""
    failed = {each.model for each in facts.not_ready}
    for name, said in facts.config.models.items():
        if name in facts.services:
            continue
        what = "a Triton has it, but not ready" if name in failed else "no Triton has a model of this name"
        yield Finding(
            "error" if _must_be_followed(said) else "warning",
            "unknown-model",
            f"models.{name}",
            what + ", so that `serve` does not start" * _must_be_followed(said),
            "mend the model, or take it out" if name in failed else remedy_for(name, facts.services),
        )


def parts_of_nobody(facts: Facts) -> Iterator[Finding]:
    """Parts of a policy of policies that decide for nothing: no Triton has their models, or a part before them does."""
    choice = facts.config.policy
    if choice.name != BY_MODEL:
        return
    try:
        parts = ByModelOptions.model_validate(choice.options).parts
    except ValidationError:  # `check_offline` says what is wrong
        return
    if not parts:
        yield Finding(
            "warning",
            "part-of-nobody",
            "policy.options.parts",
            f"{BY_MODEL} has no part: all is served first come, first served",
            "name models and the policy that decides for them",
        )
    of_part: dict[str, int] = {}
    for index, part in enumerate(parts):
        where = f"policy.options.parts.{index}.models"
        for pattern in part.models:
            known = [name for name in facts.services if fnmatchcase(name, pattern)]
            before = {of_part.get(name, index) for name in known}
            if not known:
                yield Finding(
                    "warning",
                    "part-of-nobody",
                    where,
                    f"no Triton has a model {pattern!r} (it may be loaded later)",
                    remedy_for(pattern, facts.services),
                )
            elif index not in before and pattern != "*":  # that is what is left, be it nothing at present
                first = ", ".join(f"parts.{number}" for number in sorted(before))
                yield Finding(
                    "warning",
                    "part-of-nobody",
                    where,
                    f"{pattern!r}: all its models are those of {first}, which comes first",
                    "name what is particular before what is general",
                )
            for name in known:
                of_part.setdefault(name, index)


def remedy_for(name: str, known: Collection[str]) -> str:
    """What to do about a name that is not among those that are known: the nearest of them, or all if they are few."""
    if close := get_close_matches(name, known, n=3, cutoff=0.6) or _alike_but_for_case(name, known):
        return f"did you mean {' or '.join(map(repr, close))}?"
    if not known:
        return "there is none at all: load one"
    listed = sorted(known)
    shown = ", ".join(listed[:10]) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "")
    return f"take it out, or name one of: {shown}"


def _alike_but_for_case(name: str, known: Collection[str]) -> list[str]:
    return [other for other in known if other.casefold() == name.casefold()]


def _must_be_followed(said: ModelConfig) -> bool:
    return bool(said.slo_ms or said.batch or said.late or said.merge.pad)

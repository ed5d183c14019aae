"""Policies and options that a tuner compares: those that policies name for `recommend`, and Triton's batcher tuned."""

from typing import Any

import msgspec

from tidegate.api import Setup
from tidegate.control.settings import TuningOptions
from tidegate.host import Plugins
from tidegate.schemas import tuned_settings

NS_PER_MS = 1_000_000
TRITON_POLICY = "triton"
"""The policy that is Triton's own batcher."""


class PolicyCandidate(msgspec.Struct, frozen=True):
    """A policy with its options."""

    policy: str
    options: dict[str, Any] = {}
    label: str = ""
    """Short form of the options; empty: they are written out."""

    @property
    def title(self) -> str:
        """Name and options for people."""
        options = self.label or ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.policy} ({options})" if options else self.policy

    def is_like(self, other: "PolicyCandidate") -> bool:
        """Whether both are the same policy with the same options."""
        return (self.policy, self.options) == (other.policy, other.options)


def first_candidate(plugins: Plugins, policy: str, options: dict[str, Any]) -> PolicyCandidate:
    """Return the policy that a tuned one starts as: that of its base class, with the options that are not the
    tuner's."""
    bases = plugins.policy(policy).policy.__mro__[1:]
    name = next((name for name, spec in plugins.policies.items() if spec.policy in bases), policy)
    return PolicyCandidate(
        name, {name: value for name, value in options.items() if name not in TuningOptions.model_fields}
    )


def candidates_of(setup: Setup, plugins: Plugins) -> list[PolicyCandidate]:
    """Return all candidates for these models."""
    found = [
        PolicyCandidate(spec.name, dict(options))
        for spec in plugins.policies.values()
        if spec.name != TRITON_POLICY
        for options in spec.recommend_options
    ]
    slos_ms = {model.name: model.slo_ns / NS_PER_MS for model in setup.models if model.slo_ns is not None}
    if TRITON_POLICY in plugins.policies:
        found += [PolicyCandidate(TRITON_POLICY, options, label) for label, options in tuned_settings(slos_ms).items()]
    return found

"""Whether the policy takes what the Tritons serve."""

from collections.abc import Iterator

from tidegate.api import Setup
from tidegate.documents import ProfileFile
from tidegate.host import PluginError, Plugins
from tidegate_proxy.catalog import Catalog
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.doctor.facts import Facts
from tidegate_proxy.doctor.finding import Finding
from tidegate_proxy.starting_profiles import starting_profiles


def why_refused(config: ServeConfig, plugins: Plugins, catalog: Catalog, measured: ProfileFile) -> str:
    """Why the policy cannot be made of these models and workers, in words; empty: it can.

    Each of several homes has a part of the models, which this does not look at.
    """
    if config.homes:
        return ""
    models, workers = tuple(catalog.models.values()), tuple(catalog.workers)
    profiles = starting_profiles(catalog, measured)
    try:
        plugins.make_policy(
            config.policy.name,
            Setup(models, workers, profiles, config.seed, network=catalog.network),
            dict(config.policy.options),
        )
    except PluginError as error:
        return str(error)
    return ""


def policies_that_refuse(facts: Facts) -> Iterator[Finding]:
    """A policy that does not take these models on these workers keeps `serve` from starting."""
    if facts.refusal:
        yield Finding("error", "policy-refuses", "policy", f"{facts.refusal}; `serve` does not start", "")

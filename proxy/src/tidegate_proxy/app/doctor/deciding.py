"""Whether the policy takes what the Tritons serve."""

from collections.abc import Iterator, Sequence

from tidegate.api import Setup
from tidegate.documents import Layout, ProfileFile, read_document
from tidegate.host import PluginError, Plugins
from tidegate_proxy.app.doctor.facts import Facts
from tidegate_proxy.app.doctor.finding import Finding
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.home_config import of_home
from tidegate_proxy.tritons.backend import Backend
from tidegate_proxy.tritons.catalog import Catalog, discover
from tidegate_proxy.tritons.gpus import Gpu
from tidegate_proxy.tritons.starting_profiles import starting_profiles


def why_refused(config: ServeConfig, plugins: Plugins, catalog: Catalog, measured: ProfileFile) -> str:
    """Why the policy cannot be made of these models and workers, in words; empty: it can."""
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


async def why_refused_by_homes(
    config: ServeConfig, plugins: Plugins, backends: Sequence[Backend], gpus: Sequence[Gpu], measured: ProfileFile
) -> str:
    """The same of several homes, each of which decides over what its own Tritons have: the first that cannot.

    Raises BackendError where they cannot be asked, and DocumentError.
    """
    for number in range(len(config.homes)):
        own = of_home(config, number, len(config.homes))
        addresses = {triton.grpc for triton in own.tritons}
        there = [backend for backend in backends if backend.address in addresses]
        layout = read_document(own.layout, Layout) if own.layout else None
        catalog = await discover(there, own.models, Catalog(gpus=gpus), layout=layout)
        if why := why_refused(own, plugins, catalog, measured):
            return f"home {number}: {why}"
    return ""


def policies_that_refuse(facts: Facts) -> Iterator[Finding]:
    """A policy that does not take these models on these workers keeps `serve` from starting."""
    if facts.refusal:
        yield Finding("error", "policy-refuses", "policy", f"{facts.refusal}; `serve` does not start", "")

"""GPUs as text (`8xT4,2xA100`, `A100=2.5`), and scenarios on a given set of GPUs."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tidegate.api import NS_PER_MS, Profile
from tidegate.schemas import did_you_mean, field_errors
from tidegate.workload import Scenario, ScenarioError
from tidegate.workload.scenario import ModelSpec

_COUNT_WITHOUT_X = re.compile(r"\d{1,2}[A-Z]")
"""Beginning of a count that lacks its x, such as 8T4; a 1080Ti is a product."""
_COUNT_BEHIND = re.compile(r".*\dx\d{1,4}")
"""Product with the count behind it, such as T4x8; an rtx4090 is a product."""
_ENTRY = re.compile(r"(?:(\d{1,4})\s*[x*]\s*)?([^\s=,+]+)")


@dataclass(frozen=True)
class GpuBundle:
    """GPUs that are available, or that are bought together."""

    gpus: tuple[str, ...]
    """Product of each GPU, in the order of use: if fewer suffice, the last ones are not used."""
    price: float | None = None
    """Price of all GPUs together, in any unit; None: 1 for each GPU."""

    @property
    def cost(self) -> float:
        """Price of the GPUs; without a price, their number."""
        return len(self.gpus) if self.price is None else self.price

    @property
    def text(self) -> str:
        """The GPUs as on the command line, e.g. `2xA100`."""
        return format_gpus(self.gpus) + ("" if self.price is None else f"={self.price:g}")


def format_gpus(gpus: Sequence[str]) -> str:
    """Return GPUs as text, e.g. `8xT4,2xA100`."""
    return ",".join(f"{count}x{product}" for product, count in Counter(gpus).items())


def parse_gpus(text: str) -> tuple[str, ...]:
    """Parse `8xT4,2xA100` (`+` separates, too) into one product for each GPU. Raises ScenarioError."""
    gpus: list[str] = []
    for entry in re.split(r"[,+]", text):
        found = _ENTRY.fullmatch(entry.strip())
        if (
            found is None
            or found[1] == "0"
            or _COUNT_BEHIND.fullmatch(found[2])
            or (not found[1] and _COUNT_WITHOUT_X.match(found[2]))
        ):
            raise ScenarioError(f"GPUs: {text!r} is not of the form 8xT4,2xA100: {entry!r}")
        gpus += [found[2]] * int(found[1] or 1)
    return tuple(gpus)


def parse_offer(text: str) -> GpuBundle:
    """Parse `A100=2.5` or `A100+3xT4=3.1` into GPUs bought together and their price. Raises ScenarioError."""
    gpus, equals, price = text.partition("=")
    try:
        number = float(price) if equals else None
    except ValueError:
        number = -1.0
    if number is not None and not 0 < number < float("inf"):
        raise ScenarioError(f"--any-of {text!r}: {price!r} is no price: give one such as A100=2.5")
    return GpuBundle(parse_gpus(gpus), number)


def check_measured(models: Iterable[ModelSpec], products: Iterable[str]) -> None:
    """Raise ScenarioError if a model was not measured on a product, whole or partitioned."""
    known = {model.name: list(model.profiles) for model in models if model.profiles}
    for product in dict.fromkeys(products):
        for name, kinds in known.items():
            if not any(_is_of(device_class, product) for device_class in kinds):
                raise ScenarioError(
                    f"{product}: no profile of {name!r} on it{did_you_mean(product, kinds, 'measured on')}. Measure "
                    f"one with `tidegate profile --device-class {product}` and add that to its `profiles`, "
                    "or name other GPUs"
                )


def profiles_on(scenario: Scenario, products: Collection[str]) -> Iterator[Profile]:
    """Yield the profiles of whole models on GPUs of these products and on parts of them."""
    for model in scenario.models:
        for device_class, table in tables_ms(scenario, model, products).items():
            if any(_is_of(device_class, product) for product in products):
                points_ms = dict(enumerate(table, 1))
                yield Profile.from_points(model.name, points_ms, max_rows=len(table), device_class=device_class)


def tables_ms(scenario: Scenario, model: ModelSpec, gpus: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Return how long batches of a whole model take, by device class, as far as that is known.

    `gpus`: products that a profile for every GPU stands for.
    """
    if scenario.layout is not None:
        return next((dict(part.latency_ms) for part in scenario.layout.partitions if part.name == model.name), {})
    specs = dict(model.profiles) or {product: model.profile for product in gpus if model.profile is not None}
    tables = {}
    for device_class, spec in specs.items():
        profile = spec.build(model.name, device_class, model.max_rows)
        tables[device_class] = tuple(profile.expected_ns(rows) / NS_PER_MS for rows in range(1, model.max_rows + 1))
    return tables


def _is_of(device_class: str, product: str) -> bool:
    """Whether a device class is a product or a part of it, such as `A100/mps-50`."""
    return device_class == product or device_class.startswith(f"{product}/")


def gpus_of_scenario(scenario: Scenario) -> tuple[str, ...] | None:
    """Return the scenario's GPUs if each worker is a whole one that hosts every model; None otherwise."""
    plain = all(
        pool.per_gpu == 1 and pool.percent is None and pool.device is None and pool.hosts is None
        for pool in scenario.workers
    )
    if scenario.layout is not None or not plain or any(model.pipelines for model in scenario.models):
        return None
    return tuple(pool.gpu for pool in scenario.workers for _ in range(pool.count))


def on_gpus(scenario: Scenario, gpus: Sequence[str]) -> Scenario:
    """Return the scenario on these GPUs, each a worker that hosts every model.

    Network delays to workers of a product stay as in the scenario; events of single workers are left out. Raises
    ScenarioError.
    """
    given = scenario.model_dump(mode="json", exclude_defaults=True)
    for section in ("layout", "workers", "controller"):
        given.pop(section, None)
    given["models"] = whole_models(scenario)
    networks = {pool.gpu: pool.network.model_dump() for pool in scenario.workers if pool.network is not None}
    given["workers"] = [
        {"count": count, "gpu": product, **({"network": networks[product]} if product in networks else {})}
        for product, count in Counter(gpus).items()
    ]
    if "simulation" in given:
        given["simulation"].pop("events", None)
        given["simulation"].pop("interference", None)  # no models share a GPU
    return checked(given, scenario, f"on {format_gpus(gpus)}")


def checked(given: dict[str, Any], scenario: Scenario, where: str) -> Scenario:
    """Return a scenario made of sections of another one, with the paths of that one.

    `given`: sections by name; `where`: beginning of error messages. Raises ScenarioError if they are invalid.
    """
    try:
        return Scenario.model_validate(given, context={"folder": scenario.folder})
    except ValidationError as error:
        wrong = field_errors(error, Scenario)[0]
        raise ScenarioError(f"{where}: {wrong}") from error


def whole_models(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the scenario's models as sections of another one, with the layout's profiles as their own."""
    given = [model.model_dump(mode="json", exclude_defaults=True) for model in scenario.models]
    if scenario.layout is None:
        return given
    tables = {part.name: part.latency_ms for part in scenario.layout.partitions}
    for model in given:
        if model["name"] in tables:
            model["profiles"] = {
                device_class: {"points_ms": dict(enumerate(table, 1))}
                for device_class, table in tables[model["name"]].items()
            }
    return given

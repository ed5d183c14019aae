"""The recommendation as files: proxy configuration, profiles, layout, and a scenario to try it with."""

from pathlib import Path
from typing import Any

from tidegate.api import NS_PER_MS
from tidegate.recommend.candidates import Candidate
from tidegate.recommend.recommendation import Recommendation
from tidegate.recommend.triton_tuning import sections_of
from tidegate.recommend.verdicts import settings_by_model
from tidegate.schemas import ModelProfile, ProfileFile, ProfilePoint, section_text, write_document
from tidegate.sim.build import with_shapes
from tidegate.workload import Scenario, layout_of

PROFILES, LAYOUT, SCENARIO, CONFIG, TRITON, README = (
    "profiles.json",
    "layout.json",
    "scenario.yaml",
    "tidegate.yaml",
    "dynamic_batching.pbtxt",
    "README.md",
)


class FolderError(Exception):
    """Error: a folder cannot be written; the message says why."""


def write_files(found: Recommendation, folder: Path, sentences: list[str]) -> list[Path]:
    """Write the files of a recommendation into a new folder; return their paths.

    `sentences`: for the README. Raises FolderError if the folder is not empty, and OSError if it cannot be
    written.
    """
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    scenario = found.scenario
    texts = {SCENARIO: _yaml(_scenario(found)), README: _readme(found, sentences)}
    if found.chosen.triton is not None and found.verdict != "keep":
        texts[TRITON] = dynamic_batching(found.question.scenario, found.chosen.triton)
    if found.verdict == "run":
        texts[CONFIG] = proxy_config(found)
        if scenario.layout is not None:
            write_document(folder / LAYOUT, scenario.layout)
        else:
            texts[PROFILES] = _profiles(scenario).model_dump_json(indent=2) + "\n"
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return sorted(folder.iterdir())


def check_folder(folder: Path) -> None:
    """Raise FolderError if writing would overwrite a file."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder}: it is there already: name a folder that is not, or is empty")


def proxy_config(found: Recommendation) -> str:
    """Return the configuration of `tidegate serve`, with placeholders for addresses."""
    scenario = found.scenario
    choice = found.candidate.choice
    kinds = list(dict.fromkeys(pool.gpu for pool in scenario.workers))
    tritons: list[dict[str, str]]
    if scenario.layout is not None:
        tritons = [
            {"grpc": f"{host_of(worker.name)}:8001", "worker": worker.name} for worker in scenario.layout.workers
        ]
        where: dict[str, Any] = {"layout": LAYOUT}
    else:
        tritons = [{"grpc": f"{host_of(device_class)}:8001", "device_class": device_class} for device_class in kinds]
        where = {"profiles": PROFILES}
    models = {
        model.name: {
            "slo_ms": model.slo_ms,
            **({"on_deadline_miss": model.on_deadline_miss} if model.on_deadline_miss != "reject" else {}),
        }
        for model in scenario.models
        if model.slo_ms is not None
    }
    policy = {"name": choice.name, **({"options": choice.options} if choice.options else {})}
    head = "# Written by `tidegate recommend`. Put in the addresses of your Tritons; `tidegate check` tries the file.\n"
    return head + _yaml({"version": 1, "tritons": tritons, **where, "policy": policy, "models": models})


def dynamic_batching(scenario: Scenario, candidate: Candidate) -> str:
    """Return the section `dynamic_batching` for Triton's own batcher; by model name if models differ."""
    models: dict[str, list[str]] = {}
    for name, section in sections_of(scenario, candidate.choice).items():
        models.setdefault(section_text(section), []).append(name)
    if len(models) == 1:
        return next(iter(models))
    return "\n".join(f"# {', '.join(names)}\n{text}" for text, names in models.items())


def host_of(name: str) -> str:
    """Return the placeholder for the address of a worker, or of a class of workers, in the configuration."""
    return "triton-" + "".join(letter if letter.isalnum() else "-" for letter in name).lower()


def _scenario(found: Recommendation) -> dict[str, Any]:
    given = found.scenario.model_dump(mode="json", exclude_defaults=True)
    if given.get("layout") is not None:
        given["layout"] = LAYOUT
        for model in given["models"]:
            model.pop("max_batch", None)
    return given


def _profiles(scenario: Scenario) -> ProfileFile:
    _, _, profiles, _ = layout_of(scenario).contract()
    found = []
    for profile in with_shapes(scenario, profiles, known_to_policy=True):
        rows = sorted({2**power for power in range(profile.max_rows.bit_length())} | {profile.max_rows})
        fixed_ns = profile.fixed_cost_ns
        points = [
            ProfilePoint(rows=each, median_ms=took_ms, p95_ms=took_ms, samples=1)
            for each in rows
            for took_ms in [profile.expected_ns(each) / NS_PER_MS]
        ]
        slope_ms = (profile.expected_ns(1) - fixed_ns) / NS_PER_MS
        found.append(
            ModelProfile(
                model=profile.partition,
                device_class=profile.device_class,
                shape=profile.shape,
                alpha_ms=slope_ms,
                beta_ms=fixed_ns / NS_PER_MS,
                points=points,
            )
        )
    return ProfileFile(profiles=found)


def _readme(found: Recommendation, said: list[str]) -> str:
    lines = ["# What `tidegate recommend` said", "", *(f"- {each}" for each in said), "", "## What to do", ""]
    if found.verdict == "keep":
        lines += ["Change nothing."]
    elif found.verdict == "triton":
        lines += [f"Put what `{TRITON}` has of each model into its config.pbtxt."]
    elif found.scenario.layout is not None:
        policy = found.candidate.choice.name
        lines += [
            f"    tidegate generate {LAYOUT} --blocks MODEL=FILE.onnx --policy {policy} -o deployment",
            "    tidegate up deployment",
            "",
            f"`{CONFIG}` is the proxy's configuration for Tritons that you start yourself.",
        ]
    else:
        lines += [f"    tidegate check {CONFIG} --online", f"    tidegate serve {CONFIG}"]
    if found.verdict != "keep" and (tuned := settings_by_model(found)):
        lines += [
            "",
            "Triton's own batcher as it was tuned:",
            "",
            *(f"- {name}: {said}" for name, said in tuned.items()),
        ]
    lines += ["", "Try it first:", "", f"    tidegate simulate {SCENARIO}", f"    tidegate loadtest {SCENARIO}", ""]
    return "\n".join(lines)


def _yaml(given: dict[str, Any]) -> str:
    import yaml  # noqa: PLC0415 - of the extra `sim`

    return str(yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=120))

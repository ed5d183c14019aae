"""The recommendation as an HTML page."""

from collections.abc import Sequence
from html import escape

from tidegate.recommend.assess import Assessment
from tidegate.recommend.document import Document
from tidegate.recommend.files import proxy_config
from tidegate.recommend.held_out import HeldOutResult
from tidegate.recommend.recommendation import Recommendation
from tidegate.recommend.verdicts import between, settings, settings_by_model
from tidegate.report import (
    BarSegment,
    Chart,
    Colors,
    Download,
    LegendEntry,
    Page,
    PageOrigin,
    PageSection,
    PlotAxis,
    StackedBar,
    stacked_bars,
    table,
)
from tidegate.report.number_format import limit, share
from tidegate.sim.document import json_of

MAX_STANDINGS = 12
TRITON_LABEL = "Triton with its best settings"


def recommend_page(found: Recommendation, sentences: Sequence[str], document: Document, origin: PageOrigin) -> str:
    """Return the HTML page of `tidegate recommend`.

    `sentences`: sentences of the recommendation; `document`: its JSON document, for download.
    """
    chosen = found.chosen
    parts: list[Chart | PageSection | None] = [
        _models(found, chosen),
        _changes(chosen),
        _hardware(found),
        _standings(chosen),
        _batchers(found),
        _layout(found),
        PageSection("The configuration", f"<pre>{escape(proxy_config(found))}</pre>")
        if found.verdict == "run"
        else None,
        _unfit(found),
    ]
    return Page(
        f"What to run: {found.question.scenario.name}",
        sentences,
        origin,
        {
            "Goal": f"{limit(found.question.goal)} of every model",
            "Simulations": f"{found.runs:,}, {len(chosen.ours.scores)} of them on held-out seeds, which are reported",
        },
        document["scenario"],
        [part for part in parts if part],
        downloads=[Download("recommend.json", "application/json", json_of(document))],
    ).html()


def _models(found: Recommendation, chosen: Assessment) -> Chart:
    contenders = [(label, each.result) for label, each in chosen.contenders()]
    colors = Colors((), [name for name, _ in contenders])
    bars = [
        StackedBar(
            model if number == 0 else "",
            [BarSegment(its.models[model].mean, colors.of_contender(name), f"{name}: {between(its.models[model])}")],
            between(its.models[model]),
            mark=found.question.goal,
        )
        for model in chosen.ours.models
        for number, (name, its) in enumerate(contenders)
        if model in its.models
    ]
    title = "What fraction of each model's requests is on time?"
    axis = PlotAxis.shares([], "fraction of requests", from_zero=True)
    legend = [LegendEntry(name, colors.of_contender(name)) for name, _ in contenders]
    note = "Means, and 95 % confidence intervals, from seeds that were not used to choose."
    return Chart(title, stacked_bars(bars, axis, title), legend, note, wide=True)


def _changes(chosen: Assessment) -> PageSection:
    head = ["if", chosen.candidate.title, "its worst model", TRITON_LABEL, "its worst model"]
    now = ["unchanged", *_pair(chosen.ours), *_pair(chosen.tritons)]
    lines = [[change.name, *_pair(change.ours), *_pair(change.triton)] for change in chosen.changes]
    if chosen.current is not None and chosen.current.candidate != chosen.candidate:
        head += [f"{chosen.current.candidate.title} (current)", "its worst model"]
        now += _pair(chosen.current.result)
        lines = [[*line, *_pair(change.baseline)] for line, change in zip(lines, chosen.changes, strict=True)]
    return PageSection("What would change the answer?", table(head, [now, *lines]))


def _pair(its: HeldOutResult | None) -> list[str]:
    return ["-", "-"] if its is None else [between(its.attainment), share(its.worst_mean)]


def _hardware(found: Recommendation) -> PageSection | None:
    if not found.chosen.site.divisible:
        return None
    lines = []
    for its in found.assessed:
        for name, count in ((its.candidate.title, its.least), (TRITON_LABEL, its.tritons_least)):
            lines.append(
                [name, "not enough", "-"]
                if count is None
                else [name, its.site.words(count), f"{its.site.cost(count):g}"]
            )
    title = f"How few GPUs keep {limit(found.question.goal)} of every model on time?"
    return PageSection(title, table(["state", "GPUs", "cost"], lines))


def _standings(chosen: Assessment) -> PageSection:
    lines = [
        [each.entrant.title, f"{'' if each.runs else 'below '}{100 * each.score:.1f}", each.runs]
        for each in chosen.race.standings[:MAX_STANDINGS]
    ]
    lines += [
        [f"Triton {settings(each.entrant)}", f"{100 * each.score:.1f}", each.runs]
        for each in chosen.tritons_race.standings[:3]
    ]
    note = (
        "Mean of the attainment of all requests and that of the worst model, in percent, on the seeds used to choose. "
        f"Policies were compared at {chosen.race.load:.1f} times the load, Triton's settings at "
        f"{chosen.tritons_race.load:.1f} times."
    )
    return PageSection("What else was tried?", table(["policy", "score", "seeds"], lines), note)


def _batchers(found: Recommendation) -> PageSection | None:
    if found.verdict == "keep" or not (tuned := settings_by_model(found)):
        return None
    lines = [[name, settings_text] for name, settings_text in tuned.items()]
    return PageSection("How is Triton's own batcher tuned?", table(["model", "batching"], lines))


def _layout(found: Recommendation) -> PageSection | None:
    if found.verdict != "run" or not found.candidate.planner:
        return None
    layout = found.scenario.layout
    assert layout is not None, "a planner made it"
    lines = [[worker.name, worker.speed, ", ".join(worker.hosts)] for worker in layout.workers]
    return PageSection(
        "What is loaded where?", table(["target", "kind", "reason"], lines), folded=len(lines) > MAX_STANDINGS
    )


def _unfit(found: Recommendation) -> PageSection | None:
    if not found.unfit:
        return None
    lines = [[", ".join(each.names), each.why] for each in found.unfit]
    return PageSection("What was not tried, and why?", table(["policy", "reason"], lines))

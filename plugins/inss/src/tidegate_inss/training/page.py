"""The learning curve as an HTML page."""

from importlib.metadata import version

from tidegate.report import Chart, Colors, Download, LegendEntry, LineMark, Page, PageOrigin, Plot, PlotAxis, chart_of
from tidegate.report.number_format import share
from tidegate_inss.training.training_record import TrainingRecord

NETWORKS, RULES = "the networks", "rules of thumb"
LEARNING_LABEL = "the networks, while they learn"
HELD_OUT_TITLE = "On the workloads that are kept apart, of which nothing is learned."


def page(record: TrainingRecord, date: str) -> str:
    """Return the learning curve as an HTML page. `date`: text at its end."""
    colors = Colors((), (NETWORKS, RULES))
    legend = [LegendEntry(name, colors.of_contender(name), colors.dash_of(name), "line") for name in (NETWORKS, RULES)]
    learning = LineMark(_over(record, "training_reward"), "other", LEARNING_LABEL)
    kept = _lines(record, "reward", colors)
    parts: list[Chart] = [
        chart_of(
            "Do the networks decide better than rules of thumb?",
            Plot(
                [learning, *kept], _decisions(record), PlotAxis.over(_values(learning, *kept), "mean reward of a model")
            ),
            legend=[*legend, LegendEntry(LEARNING_LABEL, "other", shape="line")],
            note=f"{HELD_OUT_TITLE} While they learn: on those that they learn from, where they try things out.",
        )
    ]
    for title, key, label in (
        ("How many requests are late?", "late", "share of the requests"),
        ("How many models have late requests?", "on_time", "share of the models"),
        ("How much throughput is left beside neighbors?", "throughput", "of what a model has alone"),
    ):
        lines = _lines(record, key, colors, missing=key == "on_time")
        axis = PlotAxis.over(_percents(lines), label, least=0.0, unit=" %")
        drawn = [LineMark(_in_percent(line), line.color, line.name, line.dash) for line in lines]
        parts.append(chart_of(title, Plot(drawn, _decisions(record), axis), legend=legend, note=HELD_OUT_TITLE))
    data = Download("record.json", "application/json", record.model_dump_json(indent=1))
    return Page(
        record.command,
        _verdicts(record),
        PageOrigin(version("tidegate"), date, record.command),
        {
            "Libraries": ", ".join(f"{name} {number}" for name, number in record.libraries.items()),
            "Settings": ", ".join(f"{name} {value}" for name, value in record.settings.items()),
            "Took": f"{record.seconds:,.0f} s",
        },
        {},
        parts,
        downloads=[data],
    ).html()


def _verdicts(record: TrainingRecord) -> list[str]:
    last, rules = record.last, record.rules
    gain = last["reward"] - rules["reward"]
    than = "better than" if gain > 0 else "worse than" if gain < 0 else "as good as"
    decisions = round(last["round"] * record.problems_per_round)
    return [
        f"After {decisions:,} decisions the networks are {than} rules of thumb: a reward of {last['reward']:.2f} for "
        f"{rules['reward']:.2f}.",
        f"{share(last['late'])} of the requests are late, by the rules {share(rules['late'])}; normalized throughput "
        f"{last['throughput']:.3f} for {rules['throughput']:.3f}.",
    ]


def _decisions(record: TrainingRecord) -> PlotAxis:
    last = record.last["round"] * record.problems_per_round
    return PlotAxis.over([], "decisions that were learned from", least=0.0, most=last)


def _over(record: TrainingRecord, key: str, *, missing: bool = False) -> list[tuple[float, float]]:
    """(decisions, value) of each point; `missing`: what is missing to 1 instead of the value."""
    return [
        (point["round"] * record.problems_per_round, 1 - point[key] if missing else point[key])
        for point in record.curve
    ]


def _lines(record: TrainingRecord, key: str, colors: Colors, *, missing: bool = False) -> list[LineMark]:
    """The networks' line, and the rules' flat one from nothing learned to the end."""
    networks = _over(record, key, missing=missing)
    ruled = 1 - record.rules[key] if missing else record.rules[key]
    flat = [(0.0, ruled), (networks[-1][0], ruled)]
    return [
        LineMark(points, colors.of_contender(name), name, colors.dash_of(name))
        for name, points in ((NETWORKS, networks), (RULES, flat))
    ]


def _values(*lines: LineMark) -> list[float]:
    return [point[1] for line in lines for point in line.points if point]


def _percents(lines: list[LineMark]) -> list[float]:
    return [100 * value for value in _values(*lines)]


def _in_percent(line: LineMark) -> list[tuple[float, float] | None]:
    return [point and (point[0], 100 * point[1]) for point in line.points]

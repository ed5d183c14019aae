"""The learning curve as an HTML page."""

from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from tidegate.report import Chart, Colors, Download, LegendEntry, LineMark, Page, PageOrigin, Plot, PlotAxis, chart_of
from tidegate.report.number_format import share
from tidegate_inss.training.training_record import Point, TrainingRecord

NETWORKS, RULES = "the networks", "rules of thumb"
LEARNING_LABEL = "the networks, while they learn"
HELD_OUT_TITLE = "On the workloads that are kept apart, of which nothing is learned."


def page(record: TrainingRecord, date: str) -> str:
    """Return the learning curve as an HTML page. `date`: text at its end."""
    colors = Colors((), (NETWORKS, RULES))
    legend = [LegendEntry(name, colors.of_contender(name), colors.dash_of(name), "line") for name in (NETWORKS, RULES)]
    decisions = [point["round"] * record.problems_per_round for point in record.curve]
    x = PlotAxis.over([], "decisions that were learned from", least=0.0, most=decisions[-1])

    def lines(value: Callable[[Point], float]) -> list[LineMark]:
        """Return the networks' line, and the rules' flat one from nothing learned to the end."""
        networks = list(zip(decisions, map(value, record.curve), strict=True))
        flat = [(0.0, value(record.rules)), (decisions[-1], value(record.rules))]
        return [
            LineMark(points, colors.of_contender(name), name, colors.dash_of(name))
            for name, points in ((NETWORKS, networks), (RULES, flat))
        ]

    def chart(title: str, drawn: list[LineMark], label: str, *, least: float | None = None, unit: str = "") -> Chart:
        values = [point[1] for line in drawn for point in line.points if point]
        plot = Plot(drawn, x, PlotAxis.over(values, label, least=least, unit=unit))
        return chart_of(title, plot, legend=legend, note=HELD_OUT_TITLE)

    learning = LineMark(
        [(at, point["training_reward"]) for at, point in zip(decisions, record.curve, strict=True)],
        "other",
        LEARNING_LABEL,
    )
    reward = chart(
        "Do the networks decide better than rules of thumb?",
        [learning, *lines(lambda point: point["reward"])],
        "mean reward of a model",
    )
    note = f"{HELD_OUT_TITLE} While they learn: on those that they learn from, where they try things out."
    parts = [replace(reward, legend=[*legend, LegendEntry(LEARNING_LABEL, "other", shape="line")], note=note)]
    figures: list[tuple[str, str, Callable[[Point], float]]] = [
        ("How many requests are late?", "share of the requests", lambda point: 100 * point["late"]),
        ("How many models have late requests?", "share of the models", lambda point: 100 * (1 - point["on_time"])),
        (
            "How much throughput is left beside neighbors?",
            "of what a model has alone",
            lambda point: 100 * point["throughput"],
        ),
    ]
    parts += [chart(title, lines(value), label, least=0.0, unit=" %") for title, label, value in figures]
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
        downloads=[Download("record.json", "application/json", record.model_dump_json(indent=1))],
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

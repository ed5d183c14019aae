"""The learning curve as one HTML page that needs no network."""

from html import escape

from tidegate_inss.training.record import TrainingRecord

STYLE = (
    "body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1100px; color: #222; padding: 0 1rem }"
)


def page(record: TrainingRecord) -> str:
    """Reward, and what it is made of, over the decisions that were learned from."""
    import plotly.io  # noqa: PLC0415 - of the extra `train`

    decisions = [point["round"] * record.problems_per_round for point in record.curve]

    def line(name: str, key: str) -> dict[str, object]:
        return {"type": "scatter", "name": name, "x": decisions, "y": [point[key] for point in record.curve]}

    charts = {
        "Reward of a model": [
            line("while learning", "training_reward"),
            line("workloads kept apart", "reward"),
            {**line("rules of thumb, the same workloads", "reward"), "y": [record.rules["reward"]] * len(decisions)},
        ],
        "Late requests, workloads kept apart": [line("late", "late")],
        "Normalised throughput, workloads kept apart": [line("throughput", "throughput")],
    }
    body = []
    for number, (heading, data) in enumerate(charts.items()):
        chart = {
            "data": data,
            "layout": {"template": "plotly_white", "height": 360, "xaxis": {"title": {"text": "decisions"}}},
        }
        drawn = plotly.io.to_html(
            chart, full_html=False, include_plotlyjs=number == 0, div_id=f"chart{number}", config={"displaylogo": False}
        )
        body.append(f"<h2>{heading}</h2>{drawn}")
    title = escape(record.command)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1>{''.join(body)}</html>"
    )

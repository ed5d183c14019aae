"""Prometheus text format 0.0.4: parsing and merging of metrics pages.

Sample lines stay unchanged except for added labels: values of a server are not rounded or renamed.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_COMMENT = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]?(.*)")
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*"'
_SAMPLE = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{[ \t]*((?:{_LABEL}[ \t]*(?:,[ \t]*)?)*)\}})?[ \t]+(\S+(?:[ \t]+-?\d+)?)[ \t]*"
)
_ONE_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One sample line of the exposition format."""

    name: str
    labels: tuple[tuple[str, str], ...]
    """Labels in the order of the line, values escaped."""
    value: str
    """Value with the timestamp, if there is one."""

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.name}{{{labels}}} {self.value}" if labels else f"{self.name} {self.value}"

    def labeled(self, name: str, value: str) -> "MetricSample":
        """Return the sample with another label at the end, because some tools match the beginning of a line.

        An existing label of the name becomes `exported_<name>`, as in Prometheus itself.
        """
        kept = tuple((f"exported_{name}" if own == name else own, text) for own, text in self.labels)
        return MetricSample(self.name, (*kept, (name, escaped(value))), self.value)


@dataclass(slots=True)
class MetricFamily:
    """Metric family: samples under one HELP and one TYPE."""

    name: str
    type: str = "untyped"
    help: str = ""
    samples: list[MetricSample] = field(default_factory=list)

    def owns(self, sample: str) -> bool:
        """Return whether a sample of that name belongs to this family."""
        return sample == self.name or any(sample == self.name + end for end in _SUFFIXES.get(self.type, ()))

    def __str__(self) -> str:
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.type}", *map(str, self.samples)]
        return "\n".join(lines) + "\n"


def families_of(page: str) -> list[MetricFamily]:
    """Parse a page. Invalid lines are left out, so that one server's error does not affect the whole page."""
    families: dict[str, MetricFamily] = {}
    current: MetricFamily | None = None
    for line in page.replace("\r\n", "\n").split("\n"):
        if comment := _COMMENT.fullmatch(line):
            kind, name, text = comment.groups()
            current = families.setdefault(name, MetricFamily(name))
            if kind == "HELP":
                current.help = text
            else:
                current.type = text
        elif (found := _SAMPLE.fullmatch(line)) and _is_number(found[3].split()[0]):
            sample = MetricSample(found[1], tuple(_ONE_LABEL.findall(found[2] or "")), found[3])
            if current is None or not current.owns(sample.name):
                current = families.setdefault(sample.name, MetricFamily(sample.name))
            current.samples.append(sample)
    return [family for family in families.values() if family.samples]


def merged(families: Iterable[MetricFamily]) -> list[MetricFamily]:
    """Merge families by name, in the order of their first appearance; help and type are the first one's.

    Of samples of the same series, the first counts.
    """
    whole: dict[str, MetricFamily] = {}
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for family in families:
        target = whole.setdefault(family.name, MetricFamily(family.name, family.type, family.help))
        for sample in family.samples:
            series = (sample.name, frozenset(sample.labels))
            if series not in seen:
                seen.add(series)
                target.samples.append(sample)
    return list(whole.values())


def sample(name: str, labels: Mapping[str, str], value: float) -> MetricSample:
    """Build a sample of Tidegate's own.

    `name`: of the series; `labels`: by name, unescaped; `value`: of the sample.
    """
    return MetricSample(name, tuple((label, escaped(text)) for label, text in labels.items()), str(value))


def escaped(label: str) -> str:
    """Escape a label's value for the text format."""
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

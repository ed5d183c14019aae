"""Random streams: one per purpose, the same everywhere."""

from tidegate.workload import stream


def test_a_stream_depends_on_its_seed_and_on_every_name() -> None:
    streams = [
        stream(1, "rows", "a"),
        stream(2, "rows", "a"),
        stream(1, "times", "a"),
        stream(1, "rows", "b"),
        stream(1, "rows"),
        stream(1, "rows", "a", 0),
    ]
    assert len({rng.random() for rng in streams}) == len(streams)


def test_a_stream_is_the_same_in_every_version_and_process() -> None:
    """A change here changes every result that was ever published: it needs a decision."""
    assert stream(1, "arrivals", "resnet50").random() == 0.6171061814150137

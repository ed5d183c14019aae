"""Random streams: one per purpose, the same everywhere."""

from tidegate.workload import stream


def test_a_stream_depends_on_its_seed_and_on_every_name() -> None:
    keys = [(1, "rows", "a"), (2, "rows", "a"), (1, "times", "a"), (1, "rows", "b"), (1, "rows"), (1, "rows", "a", 0)]
    assert len({stream(*key).random() for key in keys}) == len(keys)


def test_a_stream_is_the_same_in_every_version_and_process() -> None:
    """A change here changes every result that was ever published: it needs a decision."""
    assert stream(1, "arrivals", "resnet50").random() == 0.7305379551801194

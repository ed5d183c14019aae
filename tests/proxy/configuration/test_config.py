"""The configuration: what is read, what is refused and in what words, what flags override, what a reload may change."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from tidegate.control import ControllerChoice
from tidegate_proxy.configuration import config as config_module
from tidegate_proxy.configuration.config import ServeConfig
from tidegate_proxy.configuration.config_file import ConfigError, read_config
from tidegate_proxy.configuration.limits import LimitsConfig
from tidegate_proxy.configuration.reload import RELOADABLE_FIELDS, RESTART_REASONS, diff
from tidegate_proxy.configuration.section import ConfigSection
from tidegate_proxy.configuration.triton_sources import with_sources

ROOT = Path(__file__).parents[3]
REFERENCE = (ROOT / "docs/reference/config.md").read_text(encoding="utf-8")
HOW_TO = "\n".join(
    (ROOT / f"docs/how-to/{page}.md").read_text(encoding="utf-8")
    for page in (
        "concurrent-models",
        "harden",
        "on-demand-models",
        "monitor",
        "overload",
        "production",
        "scale-out",
        "upgrade",
    )
)


def _write(folder: Path, document: object) -> Path:
    path = folder / "tidegate.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def _read(folder: Path, document: object, flags: dict[str, Any] | None = None) -> ServeConfig:
    return read_config(_write(folder, document), flags)


def _wrong(folder: Path, document: object, flags: dict[str, Any] | None = None) -> list[str]:
    """What is said to be wrong, a line each."""
    with pytest.raises(ConfigError) as caught:
        _read(folder, document, flags)
    return [str(problem) for problem in caught.value.problems]


def _of(**fields: Any) -> ServeConfig:
    return ServeConfig.model_validate_json(json.dumps({"tritons": ["localhost:8001"], **fields}))


def test_a_triton_on_the_standard_port_has_the_standard_neighbors() -> None:
    whole, half, none, other = _of(
        tritons=[
            "a:8001",
            {"grpc": "[::1]:8001", "http": "b:80"},
            {"grpc": "c:8001", "http": None, "metrics": None},
            "d:9001",
        ]
    ).tritons
    assert (whole.grpc, whole.http, whole.metrics) == ("a:8001", "a:8000", "a:8002")
    assert (half.http, half.metrics) == ("b:80", "[::1]:8002")
    assert (none.http, none.metrics, other.http, other.metrics) == (None, None, None, None)


def test_without_listen_all_three_are_served_and_with_it_those_that_are_named() -> None:
    everything = _of().listen
    assert (everything.grpc, everything.http, everything.metrics) == ("0.0.0.0:8101", "0.0.0.0:8100", "127.0.0.1:8102")
    named = _of(listen="127.0.0.1:0").listen
    assert (named.grpc, named.http, named.metrics) == ("127.0.0.1:0", None, None)


def test_padding_may_be_written_as_sizes_as_one_entry_or_as_several() -> None:
    entries = [
        _of(models={"m": {"merge": {"pad": pad}}}).models["m"].merge.pad
        for pad in ([320, 640], {"sizes": [320, 640]}, [{"sizes": [320, 640]}])
    ]
    assert [[entry.sizes for entry in several] for several in entries] == [[(320, 640)]] * 3
    assert _of(models={"m": {}}).models["m"].merge.pad == ()


def test_sizes_may_have_units() -> None:
    assert _of(limits={"max_queue_bytes": "512MiB"}).limits.max_queue_bytes == 512 << 20
    assert _of().limits.max_message_bytes == 2**31 - 1


def _graph_of(model: str) -> dict[str, Any]:
    step = {"model": model, "input_map": {"X": "IN"}, "output_map": {"Y": "OUT"}}
    return {"inputs": ["IN"], "outputs": ["OUT"], "steps": [step]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tritons": []}, "tritons: must have at least 1 entry, not 0"),
        ({"tritons": ["a"]}, "tritons.0.grpc: 'a' is not HOST:PORT with a port up to 65535"),
        ({"tritons": ["a:70000"]}, "tritons.0.grpc: 'a:70000' is not HOST:PORT"),
        ({"tritons": ["a:0"]}, "tritons.0.grpc: 'a:0': port 0 is nowhere to be found"),
        ({"tritons": ["::1:8001"]}, "(an IPv6 host stands in brackets)"),
        ({"tritons": ["a:1", "a:1"]}, "tritons: a:1 stands there 2 times"),
        ({"tritons": [{"http": "a:1"}]}, "tritons.0.grpc: must be given"),
        ({"tritons": {"port": 1}}, "tritons: give one of dns, file, kubernetes (not none)"),
        ({"tritons": {"dns": "a", "kubernetes": "b"}}, "(not dns and kubernetes)"),
        ({"tritons": {"dns": "a:1"}}, "tritons.dns: must match the pattern"),
        ({"tritons": {"dns": "a", "port": 0}}, "tritons.port: must be at least 1, not 0"),
        ({"discovery": {"file": "no.yaml"}}, "discovery.0.file: there is no file "),
        ({"tritons": {"file": __file__, "port": 1}}, "tritons: port: an entry of the file has it"),
        ({"tritons": {"kubernetes": "a", "interval_s": 1}}, "tritons: interval_s: only a DNS name is asked again"),
        (
            {
                "tritons": ["a:1"],
                "discovery": {"kubernetes": {"service": "t", "scaling": {"statefulset": "t", "max_replicas": 4}}},
            },
            "discovery: kubernetes.scaling goes by the load of all Tritons",
        ),
        ({"tritons": {"dns": "a"}, "layout": __file__}, "discovery: Tritons that come and go cannot serve a layout"),
        (
            {
                "tritons": [{"grpc": "a:1", "worker": "w"}],
                "layout": __file__,
                "models": {"m": {"max_concurrency": "auto"}},
            },
            "models.m.max_concurrency: it makes slots, and a layout says which workers there are: leave one",
        ),
        (
            {"models": {"m": {"max_concurrency": 2}}, "shadow": True},
            "shadow: models.m.max_concurrency would hold requests back: leave it out",
        ),
        ({"tritons": [{"grpc": "a:1", "tls": {"cert": "c.pem"}}]}, "tritons.0.tls.cert: there is no file "),
        ({"listen": {"grpc": "0.0.0.0:5", "http": "127.0.0.1:5"}}, "listen: grpc and http both want port 5"),
        ({"listen": {"grpc": "a:5", "http": "a:5"}}, "listen: grpc and http both want port 5"),
        ({"listen": "0.0.0.0:8001"}, "listen.grpc: 0.0.0.0:8001 is the address of a Triton, localhost:8001"),
        ({"listen": "127.0.0.1:8001"}, "listen.grpc: 127.0.0.1:8001 is the address of a Triton"),
        ({"policy": {"nam": "x"}}, "policy.nam: there is no such field; did you mean name?"),
        ({"models": {"m": {"slo_ms": 0}}}, "models.m.slo_ms: must be more than 0"),
        (
            {"graphs": {"a": _graph_of("b"), "b": _graph_of("m"), "c": _graph_of("d"), "d": _graph_of("c")}},
            "graphs: they form a cycle (",
        ),
        ({"graphs": {"a": _graph_of("a")}}, "graphs: they form a cycle (a -> a): leave out one of these steps"),
        (
            {"models": {"m": {"load": "on-demand"}}},
            "models.m.load: no Triton has memory for it: set tritons.N.model_memory",
        ),
        ({"models": {"m": {"memory": "1GiB"}}}, "models.m.memory: only with load: on-demand it has an effect"),
        (
            {
                "tritons": [{"grpc": "a:1", "model_memory": "1GiB"}],
                "models": {"m": {"load": "on-demand", "memory": "2GiB"}},
            },
            "models.m.memory: 2147483648 bytes are more than the model_memory of any Triton (1073741824)",
        ),
        (
            {
                "tritons": [{"grpc": "a:1", "model_memory": 1}],
                "models": {"m": {"load": "on-demand"}},
                "shadow": True,
            },
            "models.m.load: with shadow nothing is loaded on demand",
        ),
        ({"rollouts": {"max_unavailable": -1}}, "rollouts.max_unavailable: must be at least 0"),
        ({"models": {"m": 5}}, "models.m: must be fields with values, not 5"),
        *(
            ({"models": {"m": {"merge": {"pad": pad}}}}, f"models.m.merge.pad{said}")
            for pad, said in (
                ([640, 320], ".0: sizes: 640, 320 do not ascend: put them in order, each once"),
                ([320, 320], ".0: sizes: 320, 320 do not ascend"),
                ([0], ".0.sizes.0: must be at least 1"),
                ([1.5], ".0: must be fields with values, such as sizes: ..., not 1.5"),
                ("320", ": must be a list"),
                ({"sizes": []}, ".0.sizes: must have at least 1 entry, not 0"),
                ([{"sizes": [320], "axes": 1}], ".0.axes: there is no such field"),
                ({"sizes": [3], "value": True}, ".0.value: must be a number"),
                ({"sizes": [3], "outputs": {"y": {"stride": 0}}}, ".0.outputs.y.stride: must be at least"),
            )
        ),
        ({"profiles": "p.json"}, "profiles: there is no file "),
        ({"seed": "1"}, "seed: must be a whole number"),
        ({"startup_timeout_s": 0}, "startup_timeout_s: must be more than 0"),
        ({"drain_timeout_s": float("nan")}, "drain_timeout_s: must be a finite number"),
        (
            {"listen": {"grpc": "0.0.0.0:1", "reuse_port": True}, "drain_timeout_s": 1.5},
            "listen.reuse_port: set drain_timeout_s to 2 s or more",
        ),
        ({"limits": {"max_queue_size": 0}}, "limits.max_queue_size: must be at least 1"),
        ({"limits": {"max_message_bytes": "3GiB"}}, "limits.max_message_bytes: must be at most"),
        ({"limits": {"max_queue_bytes": "many"}}, "limits.max_queue_bytes: could not parse value and unit"),
        ({"shedding": {"status": "OK"}}, "shedding.status: must be 'UNAVAILABLE', 'RESOURCE_EXHAUSTED' or"),
        ({"retries": {"max": -1}}, "retries.max: must be at least 0"),
        ({"tls": {"cert": "c.pem"}}, "tls.key: must be given"),
        ({"authentication": {}}, "authentication: give tokens_file, api_keys_file or both"),
        (
            {"restricted": [{"apis": ["model-control"], "closed": True}]},
            "restricted.0.apis.0: must be 'health'",
        ),
        ({"restricted": [{"apis": ["trace"]}]}, "restricted.0: give header, or closed: true, or open: true: one of"),
        ({"restricted": [{"apis": ["trace"], "closed": True, "open": True}]}, "restricted.0: give header, or closed:"),
        ({"restricted": [{"apis": ["trace"], "closed": True, "protocols": []}]}, "restricted.0.protocols:"),
        ({"restricted": [{"apis": ["trace"], "closed": True}] * 2}, "restricted: 'trace' stands there 2 times"),
        ({"restricted": [{"apis": ["trace"], "header": {"name": "x"}}]}, "give value or value_file: one of the two"),
        ({"restricted": [{"apis": ["trace"], "header": {"name": "x y", "value": "z"}}]}, "restricted.0.header.name:"),
        ({"restricted": [{"apis": ["trace"], "header": {"name": "x", "value": ""}}]}, "value: it must be printable"),
        ({"app": {"parameter": "app", "header": "x-app"}}, "app: give parameter or header: one of the two"),
        ({"app": {"parameter": "timeout"}}, "app: parameter: 'timeout' means something else to Triton or Tidegate"),
        ({"app": {"header": "x app"}}, "app.header:"),
        ({"feature": {"parameter": "tokens", "size": "rows"}}, "feature: give parameter or size: one of the two"),
        ({"feature": {"parameter": "slo_ms"}}, "feature: parameter: 'slo_ms' means something else to Triton or"),
        ({"shared_memory": "read"}, "shared_memory: must be 'pass-through' or 'refuse'"),
        ({"log": {"level": "loud"}}, "log.level: must be 'debug', 'info', 'warning' or 'error'"),
        ({"tracing": {"endpoint": "otel:4317"}}, "tracing.endpoint: must match the pattern"),
        ({"version": 2}, "version: must be 1"),
    ],
)
def test_what_is_wrong_is_named_by_its_field(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    wrong = _wrong(tmp_path, {"tritons": ["localhost:8001"], **fields})
    assert any(said in line for line in wrong), wrong


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    document = {"tritons": ["a"], "seed": -1, "restricted": [{"apis": ["nope"], "closed": True}], "oops": 1}
    wrong = _wrong(tmp_path, document)
    assert [line.partition(":")[0] for line in wrong] == ["tritons.0.grpc", "seed", "restricted.0.apis.0", "oops"]


def test_a_secret_is_never_repeated(tmp_path: Path) -> None:
    key = {"name": "k", "value": "hush"}
    config = _of(restricted=[{"apis": ["trace"], "header": key}])
    assert "hush" not in repr(config) + config.model_dump_json()
    assert "hush" not in str(_wrong(tmp_path, {"restricted": [{"apis": ["nope"], "header": {**key, "oops": 1}}]}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tritons: [a:1\n", "it is no YAML: line 2, column 1: expected ',' or ']'"),
        ("tritons: [a:1]\ntritons: [b:1]\n", "it is no YAML: line 2, column 1: 'tritons' stands there twice"),
        ("- a\n", "it is no mapping of fields to values"),
        ("", "it is empty; `tidegate init` writes one"),
    ],
)
def test_what_is_no_configuration_at_all(tmp_path: Path, text: str, said: str) -> None:
    (wrong,) = _wrong(tmp_path, text)
    assert said in wrong


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; a configuration is a YAML file"):
        read_config(tmp_path / "nope.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(ConfigError, match="it is no text"):
        read_config(tmp_path / "binary.yaml")


def test_paths_of_the_file_are_relative_to_it_and_those_of_flags_to_where_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    for path in (tmp_path / "etc/profiles.json", tmp_path / "mine.json"):
        path.touch()
    monkeypatch.chdir(tmp_path)
    document = {"tritons": ["a:1"], "profiles": "profiles.json", "event_log": "log.jsonl"}
    config = _read(tmp_path / "etc", document)
    assert (config.profiles, config.event_log) == (tmp_path / "etc/profiles.json", tmp_path / "etc/log.jsonl")
    assert _read(tmp_path / "etc", document, {"profiles": Path("mine.json")}).profiles == tmp_path / "mine.json"


def test_flags_override_what_they_name_and_nothing_else(tmp_path: Path) -> None:
    document = {
        "tritons": ["a:1", "b:1"],
        "listen": "0.0.0.0:1000",
        "models": {"m": {"slo_ms": 1}, "n": {"slo_ms": 2}},
        "seed": 7,
        "drain_timeout_s": 3,
    }
    flags = {
        "tritons": ["c:1"],
        "listen": {"http": "0.0.0.0:2000", "metrics": None},
        "models": {"m": {"slo_ms": 5.0}},
        "seed": 0,
        "drain_timeout_s": None,
        "limits": {"max_queue_size": None},
    }
    config = _read(tmp_path, document, flags)
    assert [triton.grpc for triton in config.tritons] == ["c:1"]
    assert (config.listen.grpc, config.listen.http) == ("0.0.0.0:1000", "0.0.0.0:2000")
    assert {name: model.slo_ms for name, model in config.models.items()} == {"m": 5, "n": 2}
    assert (config.seed, config.drain_timeout_s, config.limits) == (0, 3, LimitsConfig())


def test_flags_alone_are_a_configuration() -> None:
    assert read_config(flags={"tritons": ["a:1"], "policy": {"name": "fifs"}}).policy.name == "fifs"
    with pytest.raises(ConfigError, match=r"^command line: tritons: must be given"):
        read_config()


def test_a_flag_for_one_port_leaves_the_others_where_they_are_by_default(tmp_path: Path) -> None:
    flags = {"tritons": ["t:1"], "listen": {"grpc": None, "http": None, "metrics": "127.0.0.1:8102"}}
    listen = read_config(flags=flags).listen
    assert (listen.grpc, listen.http, listen.metrics) == ("0.0.0.0:8101", "0.0.0.0:8100", "127.0.0.1:8102")
    (tmp_path / "t.yaml").write_text("listen: {grpc: 127.0.0.1:1}")
    listen = read_config(tmp_path / "t.yaml", flags).listen
    assert (listen.grpc, listen.http, listen.metrics) == ("127.0.0.1:1", None, "127.0.0.1:8102")
    assert read_config(flags={"tritons": ["t:1"], "listen": {"grpc": "127.0.0.1:1"}}).listen.metrics is None


def test_the_options_of_one_policy_are_not_given_to_another(tmp_path: Path) -> None:
    document = {"tritons": ["a:1"], "policy": {"name": "symphony", "options": {"deadline_margin_ms": 1}}}
    more = {"policy": {"options": {"batch_formation": "skip_head"}}}
    assert _read(tmp_path, document, more).policy.options == {"deadline_margin_ms": 1, "batch_formation": "skip_head"}
    same = {"policy": {"name": "symphony", "options": {}}}
    assert _read(tmp_path, document, same).policy.options == {"deadline_margin_ms": 1}
    other = _read(tmp_path, document, {"policy": {"name": "fifs"}}).policy
    assert (other.name, other.options) == ("fifs", {})
    assert _read(tmp_path, {**document, "policy": "symphony"}, {"policy": {"name": "fifs"}}).policy.name == "fifs"


def test_errors_say_that_flags_were_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tidegate\.yaml with the flags given: seed: "):
        _read(tmp_path, {"tritons": ["a:1"]}, {"seed": -1})


@pytest.mark.parametrize("field", ["seed", "new"])
def test_a_configuration_does_not_change(field: str) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(_of(), field, 5)


# The document and its reference


def _sections(base: type[ConfigSection]) -> list[type[ConfigSection]]:
    """Sections that a file can have: those with no other made of them."""
    below = [section for part in base.__subclasses__() for section in _sections(part)]
    return list(dict.fromkeys(below)) or [base]


SECTIONS = [part for part in _sections(ConfigSection) if part.__module__.startswith("tidegate_proxy.configuration.")]
SECTIONS.append(ControllerChoice)  # type: ignore[arg-type]  # it is that of scenarios, too


def _table(section: type[ConfigSection]) -> str:
    """A section's fields as the reference shows them."""
    lines = ["| field | default | |", "|---|---|---|"]
    for name, field in section.model_fields.items():
        default = "required" if field.is_required() else _shown(field.get_default(call_default_factory=True))
        lines.append(f"| `{name}` | {default} | {field.description} |")
    return "\n".join(lines) + "\n"


def _shown(default: object) -> str:
    if isinstance(default, ConfigSection):
        return "below"
    if default is None or default in ((), {}):
        return ""
    if isinstance(default, tuple):
        return f"`[{', '.join(default)}]`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{json.dumps(default).strip(chr(34))}`"


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: str(section.__name__))
def test_every_field_stands_in_the_reference_with_its_default(section: type[ConfigSection]) -> None:
    assert all(field.description for field in section.model_fields.values())
    assert _table(section) in REFERENCE, f"docs/reference/config.md needs this table:\n{_table(section)}"


def _yaml_blocks(text: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("example", [*_yaml_blocks(REFERENCE), *_yaml_blocks(HOW_TO)])
def test_every_example_is_read_and_fits_the_schema(example: str) -> None:
    document = {"tritons": ["localhost:8001"], **yaml.safe_load(example)}
    ServeConfig.model_validate_json(json.dumps(with_sources(document)))
    jsonschema.Draft202012Validator(ServeConfig.model_json_schema()).validate(document)


def test_the_schema_refuses_what_is_unknown() -> None:
    schema = ServeConfig.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"tritons": ["a:1"], "oops": 1}, schema)


# Reload


def _leaves() -> set[str]:
    """Fields, those of `limits` and `log` one by one."""
    split: dict[str, type[ConfigSection]] = {"limits": LimitsConfig, "log": config_module.LogConfig}
    whole = set(ServeConfig.model_fields) - set(split)
    return (
        {"controller.enabled"}
        | whole
        | {f"{name}.{field}" for name, kind in split.items() for field in kind.model_fields}
    )


def test_of_every_field_it_is_known_whether_it_needs_a_restart() -> None:
    assert RELOADABLE_FIELDS | set(RESTART_REASONS) == _leaves()
    assert not RELOADABLE_FIELDS & set(RESTART_REASONS)


def test_the_reference_says_what_a_reload_can_change() -> None:
    part = REFERENCE.partition("## What a reload can change")[2]
    assert [field for field in RELOADABLE_FIELDS if f"`{field}`" not in part.partition("These need a restart")[0]] == []
    assert [field for field, why in RESTART_REASONS.items() if f"| `{field}` | {why} |\n" not in part] == []


def test_nothing_changes_between_equals() -> None:
    changes = diff(_of(), _of())
    assert (changes.live, changes.restart, changes.effective) == ((), (), _of())


def test_what_takes_effect_at_once() -> None:
    old = _of(tritons=["a:1", "b:1"])
    new = _of(
        tritons=["b:1", {"grpc": "c:1", "http": "c:2"}],
        models={"m": {"slo_ms": 5}},
        limits={"max_queue_size": 5},
        log={"level": "debug"},
        restricted=[{"apis": ["trace"], "closed": True}],
    )
    changes = diff(old, new)
    assert changes.live == ("limits.max_queue_size", "log.level", "models", "restricted", "tritons")
    assert (changes.restart, changes.warnings, changes.effective) == ((), (), new)


def test_of_a_controller_only_the_switch_is_live() -> None:
    def controlled(**section: Any) -> ServeConfig:
        return _of(tritons=[{"grpc": "a:1", "worker": "w"}], layout="layout.json", controller={"name": "c", **section})

    halted = diff(controlled(), controlled(enabled=False))
    assert (halted.live, halted.restart) == (("controller.enabled",), ())
    assert halted.effective == controlled(enabled=False)
    other = diff(controlled(), controlled(enabled=False, interval_s=3))
    assert (other.live, other.restart) == (("controller.enabled",), ("controller",))
    assert other.effective == controlled(enabled=False)
    gone = diff(controlled(), controlled().model_copy(update={"controller": None}))
    assert (gone.live, gone.restart, gone.effective) == ((), ("controller",), controlled())
    came = diff(controlled().model_copy(update={"controller": None}), controlled())
    assert (came.live, came.restart, came.effective.controller) == ((), ("controller",), None)


def test_a_controller_needs_a_layout(tmp_path: Path) -> None:
    assert _wrong(tmp_path, {"tritons": ["a:1"], "controller": {"name": "c"}}) == [
        "controller: it changes a layout, and there is none: name one, or leave the controller out"
    ]


def test_what_needs_a_restart_stays_as_it_was_and_is_named() -> None:
    old = _of(policy="fifs", listen="0.0.0.0:1", limits={"max_queue_size": 1})
    new = _of(
        policy="symphony", listen="0.0.0.0:2", limits={"max_queue_size": 2, "keepalive_s": 60}, log={"format": "json"}
    )
    changes = diff(old, new)
    assert changes.live == ("limits.max_queue_size", "policy")
    assert set(changes.restart) == {"listen", "limits.keepalive_s", "log.format"}
    words = "listen: changed, which needs a restart: clients are connected to the ports that are open"
    assert words in changes.warnings
    assert changes.effective == _of(policy="symphony", listen="0.0.0.0:1", limits={"max_queue_size": 2})
    assert diff(changes.effective, new).live == ()

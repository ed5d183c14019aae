"""Options added to Locust's command line."""

from argparse import Namespace
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from locust.argument_parser import LocustArgumentParser

from tidegate_loadtest.connection import LoadTestError
from tidegate_loadtest.input_files import parse_inputs
from tidegate_loadtest.live import SendingOptions
from tidegate_loadtest.shapes import parse_shapes

OPTION_PREFIX = "tidegate_"
"""Prefix of Tidegate's options in Locust's namespace, which has a `json`, a `html` and more of its own."""


@dataclass(frozen=True)
class Options:
    """Options of a test, named like those of the command line."""

    scenario: str | None = None
    model: str | None = None
    protocol: str = "grpc"
    rate: float | None = None
    process: str = "poisson"
    gamma_shape: float = 0.25
    duration_s: float = 10.0
    warmup_s: float = 0.0
    slo_ms: float | None = None
    rows: int = 1
    policy: str | None = None
    seed: int | None = None
    shape: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    timeout_s: float = 30.0
    lateness_limit_ms: float = 5.0
    channels: int = 6
    results_json: str | None = None
    results_html: str | None = None
    requests_csv: str | None = None

    @classmethod
    def of(cls, parsed: Namespace) -> "Options":
        """Read the options from Locust's. Raises LoadTestError for invalid combinations."""
        given = {field.name: getattr(parsed, OPTION_PREFIX + field.name) for field in fields(cls)}
        options = cls(**{**given, "shape": tuple(given["shape"] or ()), "inputs": tuple(given["inputs"] or ())})
        options._check()
        return options

    def _check(self) -> None:
        if (self.scenario is None) == (self.model is None):
            raise LoadTestError("give either --scenario FILE or --model NAME: what to send")
        if self.scenario is not None:
            if self.rate is not None:
                raise LoadTestError("--rate is for --model: a scenario has its own arrivals")
        else:
            if self.slo_ms is None:
                raise LoadTestError("--model needs --slo-ms: an answer later than this is a miss")
            if self.results_html is not None:
                raise LoadTestError("--results-html needs --scenario: the report is that of `tidegate simulate`")
        for name in ("results_json", "results_html", "requests_csv"):
            file = getattr(self, name)
            if file is not None and not Path(file).absolute().parent.is_dir():
                raise LoadTestError(f"--{name.replace('_', '-')} {file}: there is no such folder")
        for name in ("duration_s", "timeout_s", "rows", "channels", "gamma_shape"):
            if not getattr(self, name) > 0:
                raise LoadTestError(f"--{name.replace('_', '-')} must be positive, not {getattr(self, name):g}")
        if self.rate is not None and not self.rate > 0:
            raise LoadTestError(f"--rate must be positive, not {self.rate:g}: leave it out for a closed loop")

    @property
    def open_loop(self) -> bool:
        """Whether requests follow a schedule. Otherwise each user waits for its response before the next request."""
        return self.scenario is not None or self.rate is not None

    @property
    def scenario_path(self) -> Path:
        """Path of the scenario file."""
        assert self.scenario is not None
        return Path(self.scenario)

    @property
    def policies(self) -> list[str]:
        """Policies or the label of the run, as `plan_runs` takes them."""
        return [self.policy] if self.policy else []

    def sending(self) -> SendingOptions:
        """Return the sending options. Raises typer.BadParameter if a shape or a folder of inputs is invalid."""
        shapes, folders = parse_shapes(self.shape), parse_inputs(self.inputs)
        return SendingOptions(shapes, self.channels, self.timeout_s, self.lateness_limit_ms, inputs=folders)

    def as_message(self) -> dict[str, Any]:
        """Serialize for the message to a worker."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> "Options":
        """Restore from the result of `as_message`."""
        return cls(**{**message, "shape": tuple(message["shape"]), "inputs": tuple(message["inputs"])})


def add_options(parser: LocustArgumentParser) -> None:
    """Add the options; a listener of Locust's `init_command_line_parser`. Locust's own --host names the server."""
    group: Any = parser.add_argument_group("Tidegate: what to send (the server: --host HOST:PORT)")
    default = Options()

    def add(flag: str, help: str, **rest: Any) -> None:  # noqa: ANN401
        name = flag.removeprefix("--").replace("-", "_")
        metavar = rest.pop("metavar", name.upper())
        repeated = rest.get("action") == "append"
        kind = {} if "choices" in rest else {"metavar": metavar}
        if not repeated:
            rest["default"] = getattr(default, name)
        parser_option = {"dest": OPTION_PREFIX + name, "help": help, "include_in_web_ui": False, **kind, **rest}
        action = group.add_argument(flag, **{k: v for k, v in parser_option.items() if k != "include_in_web_ui"})
        action.include_in_web_ui = False

    add("--scenario", "open loop: the requests of a scenario file (YAML), at their instants")
    add("--model", "the model to ask, instead of --scenario; with --rate an open loop, else -u users in a closed one")
    add("--protocol", "grpc (port 8001, 8101) or http (port 8000, 8100)", choices=("grpc", "http"))
    add("--rate", "with --model: requests per second, whatever the server does", type=float)
    add("--process", "of --rate: how arrivals are spaced", choices=("poisson", "gamma", "uniform"))
    add("--gamma-shape", "of --process gamma: below 1 bursty, above 1 steady", type=float)
    add("--duration-s", "of --rate: length of the measured window", type=float)
    add("--warmup-s", "with --model: load before the window, sent but not measured", type=float)
    add("--slo-ms", "with --model: an answer later than this after its schedule is a miss", type=float)
    add("--rows", "with --model: rows per request", type=int)
    add("--policy", "what the results call this run; one of the scenario's, or a name", metavar="NAME")
    add("--seed", "of arrivals and tensors; default: the scenario's", type=int)
    add("--shape", "[MODEL/]INPUT:3,48,320: open dimensions, without rows; 160..640 or 160|320|640: drawn for each "
        "request; repeatable", action="append", metavar="INPUT:SIZES")  # fmt: skip
    add("--inputs", "MODEL=FOLDER: real inputs, pictures or .npy/.npz files, on every worker; repeatable",
        action="append", metavar="MODEL=FOLDER")  # fmt: skip
    add("--timeout-s", "give a request up after this", type=float)
    add("--lateness-limit-ms", "p99 lateness of a generator that keeps up", type=float)
    add("--channels", "gRPC: TCP connections of each worker", type=int)
    add("--results-json", "write SLO attainment and lateness; of a scenario: the document of `tidegate simulate`",
        metavar="FILE")  # fmt: skip
    add("--results-html", "of a scenario: write the report of `tidegate simulate --html`", metavar="FILE")
    add("--requests-csv", "write a line for each request: due, sent, ended, by which worker", metavar="FILE")


def target_of(host: str | None) -> str:
    """Return HOST:PORT of Locust's --host, which may carry a scheme. Raises LoadTestError."""
    target = (host or "").rpartition("://")[2].rstrip("/")
    if not target.rpartition(":")[2].isdigit() or ":" not in target:
        raise LoadTestError(f"--host must be HOST:PORT of a server, such as localhost:8001, not {host!r}")
    return target

"""What people get wrong in their first hour, and the one line that each of it is told in: what, where, and the remedy.

Not at a terminal, as in a script or a log: nothing is wrapped at 80 columns, and nothing is cut there.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.cli import COMMANDS_OF, main
from tidegate.host import Plugins

SCENARIO = """\
duration_s: 1
workers: [{count: 1}]
models:
  - {name: resnet, slo_ms: 70, profile: {alpha_ms: 1, beta_ms: 5, max_batch: 8}}
arrivals: {process: poisson, rate_rps: 20}
policies: [{name: symphony}]
"""
CONFIGURATION = "tritons: [localhost:8001]\npolicy: symphony\n"
NOBODY = "127.0.0.1:9"
"""The port of an old service that nothing here runs, and below those that are given out."""


def scenario(*changes: tuple[str, str]) -> str:
    """The scenario with something wrong in it."""
    text = SCENARIO
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


SCENARIO_TO_SERVE = (
    "it is a scenario, not a configuration of `tidegate serve`: give it to `tidegate simulate a.yaml`, `loadtest` or "
    "`recommend`"
)
CONFIGURATION_TO_SIMULATE = (
    "it is a configuration of `tidegate serve`, not a scenario: give it to `tidegate serve a.yaml`, `check` or `doctor`"
)
UNREACHABLE = (
    f"error: {NOBODY}: no Triton and no Tidegate answers: does it run, and is this its gRPC port? (failed to connect "
    f"to all addresses; last error: UNKNOWN: ipv4:{NOBODY}: Failed to connect to remote host: Connection refused)"
)
MISTAKES = {
    "a scenario in place of a configuration": (scenario(), "serve a.yaml", f"error: a.yaml: {SCENARIO_TO_SERVE}"),
    "a scenario to check": (scenario(), "check a.yaml", f"error: a.yaml: {SCENARIO_TO_SERVE}"),
    "a configuration to simulate": (CONFIGURATION, "simulate a.yaml", f"error: a.yaml: {CONFIGURATION_TO_SIMULATE}"),
    "a configuration to load with": (
        CONFIGURATION,
        "loadtest a.yaml --target localhost:8001",
        f"error: a.yaml: {CONFIGURATION_TO_SIMULATE}",
    ),
    "a configuration to recommend for": (
        CONFIGURATION,
        "recommend a.yaml",
        f"error: a.yaml: {CONFIGURATION_TO_SIMULATE}",
    ),
    "an option of a policy that is misspelt on the command line": (
        "",
        f"serve --triton {NOBODY} -O max_mis_rate=1",
        "error: options of policy 'symphony': max_mis_rate: there is no such field; did you mean max_miss_rate?",
    ),
    "a plugin that is misspelt": (
        "",
        "plugins simphony",
        "error: Invalid value for NAME: nothing named 'simphony' is installed; did you mean 'symphony'? See "
        "`tidegate plugins --help`",
    ),
    "a policy to check that is misspelt": (
        "",
        "check-policy symfony",
        "error: no policy named 'symfony' is installed; did you mean 'symphony'? Installed: {policies}",
    ),
    "a name that is none for a policy": (
        "",
        "new-policy Bad_Name",
        "error: 'Bad_Name' is no name for a policy: small letters and digits, with - between words, as in high-water",
    ),
    "a mode of scheduling that there is not": (
        "",
        "serve --triton localhost:8001 --scheduling m=merge",
        "error: command line: models.m.scheduling: must be 'batched', 'unbatched', 'bypass', 'expanded' or "
        "'auto', not 'merge'",
    ),
    "a share that is none": (
        "",
        "serve --triton localhost:8001 --canary lots",
        "error: command line: canary: must be a share, such as 5% or 0.05, not 'lots'",
    ),
    "a configuration that is not there": (
        "",
        "serve b.yaml",
        "error: b.yaml: No such file or directory; a configuration is a YAML file",
    ),
    "a folder for a file to write": (
        "",
        "serve --triton localhost:8001 --event-log .",
        "error: command line: event_log: {folder} is a directory; name a file in it",
    ),
    "rates that are none": (
        scenario(),
        "loadtest a.yaml --target localhost:8001 --rates abc",
        "error: --rates 'abc': write requests per second with commas, such as --rates 100,200,400",
    ),
    "a Triton to write a configuration for without its port": (
        "",
        "init --triton localhost",
        "error: --triton: 'localhost' is not HOST:PORT with a port up to 65535 (an IPv6 host stands in brackets)",
    ),
    "nothing to diagnose": (
        "",
        "doctor",
        "error: Invalid value for CONFIG: which file? Or give --triton HOST:PORT. See `tidegate doctor --help`",
    ),
    "a request that is no number": (
        "",
        "explain run.jsonl first",
        "error: Invalid value for 'request': must be a whole number. See `tidegate explain --help`",
    ),
    "a command that is misspelt": (
        "",
        "simulat a.yaml",
        "error: No such command 'simulat'. Did you mean 'simulate'? See `tidegate --help`",
    ),
    "an option that is misspelt": (
        scenario(),
        "simulate a.yaml --polcy symphony",
        "error: No such option: --polcy (Possible options: --policy). See `tidegate simulate --help`",
    ),
    "an option of another type": (
        scenario(),
        "simulate a.yaml --seed one",
        "error: Invalid value for '--seed': must be a whole number. See `tidegate simulate --help`",
    ),
    "no file": (
        scenario(),
        "simulate",
        "error: Missing argument 'scenario'. See `tidegate simulate --help`",
    ),
    "a file that is not there": (
        scenario(),
        "simulate b.yaml",
        "error: b.yaml: No such file or directory; a scenario is a YAML file",
    ),
    "a policy that is misspelt": (
        scenario(),
        "simulate a.yaml --policy symfony",
        "error: no policy named 'symfony' is installed; did you mean 'symphony'? Installed: {policies}",
    ),
    "an option of a policy that is misspelt": (
        scenario(("{name: symphony}", "{name: symphony, options: {max_mis_rate: 1}}")),
        "simulate a.yaml",
        "error: options of policy 'symphony': max_mis_rate: there is no such field; did you mean max_miss_rate?",
    ),
    "a word that an option of a policy does not know": (
        scenario(("{name: symphony}", "{name: symphony, options: {deferral: never}}")),
        "simulate a.yaml",
        "error: options of policy 'symphony': deferral: must be 'adaptive' or 'frontrun', not 'never'",
    ),
    "a policy twice": (
        scenario(("[{name: symphony}]", "[{name: symphony}, {name: symphony}]")),
        "simulate a.yaml",
        "error: a.yaml: policies: 'symphony' is listed twice: give one of them a label",
    ),
    "a field that is misspelt": (
        scenario(("slo_ms", "slo")),
        "simulate a.yaml",
        "error: a.yaml: models.0.slo: there is no such field; did you mean slo_ms?",
    ),
    "a required field that is misspelt": (
        scenario(("duration_s", "duration")),
        "simulate a.yaml",
        "error: a.yaml: duration: there is no such field; did you mean duration_s?",
    ),
    "a field in the wrong place": (
        scenario(("duration_s: 1", "duration_s: 1\nslo_ms: 70")),
        "simulate a.yaml",
        "error: a.yaml: slo_ms: there is no such field here; did you mean models.*.slo_ms?",
    ),
    "a rate below zero": (
        scenario(("rate_rps: 20", "rate_rps: -20")),
        "simulate a.yaml",
        "error: a.yaml: arrivals.rate_rps: must be more than 0 or a list, not -20",
    ),
    "a process that there is not": (
        scenario(("poisson", "possion")),
        "simulate a.yaml",
        "error: a.yaml: arrivals: process must be one of 'poisson', 'gamma', 'uniform', 'trace', not 'possion'",
    ),
    "a tab": (
        scenario(("  - {name", "\t- {name")),
        "simulate a.yaml",
        "error: a.yaml: it is no YAML: line 4, column 1: found character '\\t' that cannot start any token",
    ),
    "a worker that hosts what there is not": (
        scenario(("{count: 1}", "{count: 1, hosts: [resent]}")),
        "simulate a.yaml",
        "error: a.yaml: workers.0.hosts: 'resent' is no model and no partition of one in this scenario; "
        "did you mean 'resnet'? It has: resnet",
    ),
    "a scenario in place of a layout": (
        scenario(),
        "generate a.yaml -o models",
        "error: a.yaml: it is a scenario, not a document of kind 'layout': give it to `tidegate simulate a.yaml`, "
        "`loadtest` or `recommend`",
    ),
    "several values of one simulation": (
        scenario(),
        "simulate a.yaml --set arrivals.rate_rps=10,20",
        "error: --set arrivals.rate_rps: give one value; `tidegate sweep` tries several",
    ),
    "a change of a field that there is not": (
        scenario(),
        "sweep a.yaml --set arrivals.rate=10,20",
        "error: a.yaml: arrivals.rate: there is no such field; did you mean rate_rps?",
    ),
    "no Triton": (
        "",
        "serve",
        "error: no Triton is named: give --triton HOST:PORT, or a configuration with --config",
    ),
    "a Triton without its port": (
        "",
        "serve --triton localhost",
        "error: command line: tritons.0.grpc: 'localhost' is not HOST:PORT with a port up to 65535 "
        "(an IPv6 host stands in brackets)",
    ),
    "a Triton that does not run": (
        "",
        f"serve --triton {NOBODY} --startup-timeout-s 0.1 --listen 127.0.0.1:0",
        f"error: no Triton is ready at {NOBODY} after 0.1 s: does it run, and is this its gRPC port?",
    ),
    "an SLO without its model": (
        "",
        "serve --triton localhost:8001 --slo 70",
        "error: Invalid value for --slo: '70' is not NAME=VALUE. See `tidegate serve --help`",
    ),
    "a section of a configuration that is misspelt": (
        CONFIGURATION.replace("tritons", "triton"),
        "check a.yaml",
        "error: a.yaml: triton: there is no such field; did you mean tritons?",
    ),
    "a policy of a configuration that is misspelt": (
        CONFIGURATION.replace("symphony", "symfony"),
        "check a.yaml",
        "error: a.yaml: policy.name: no policy named 'symfony' is installed; did you mean 'symphony'? "
        "Installed: {policies}",
    ),
    "a bracket that is not closed": (
        CONFIGURATION.replace("]", ""),
        "serve --config a.yaml",
        "error: a.yaml: it is no YAML: line 2, column 7: expected ',' or ']', but got ':'",
    ),
    "a profile that is not there": (
        CONFIGURATION + "profiles: p.json\n",
        "serve --config a.yaml",
        "error: a.yaml: profiles: there is no file {folder}/p.json",
    ),
    "a model that is no ONNX": (
        "torch.save(...)",
        "generate a.yaml.onnx -o models",
        "error: a.yaml.onnx is not an ONNX model: export the model to ONNX first",
    ),
    "a server to profile that does not run": (
        "",
        f"profile resnet --triton {NOBODY} -o p.json",
        UNREACHABLE,
    ),
    "a target without its port": (
        scenario(),
        "loadtest a.yaml --target localhost",
        "error: 'localhost' is not HOST:PORT of a server's gRPC, such as localhost:8001",
    ),
    "a server to profile with its other addresses": (
        "",
        f"profile resnet --triton {NOBODY},http=localhost:8000,metrics=localhost:8002 -o p.json",
        UNREACHABLE,
    ),
    "a server to profile with an address that it has not": (
        "",
        f"profile resnet --triton {NOBODY},https=localhost:8000 -o p.json",
        "error: Invalid value for --triton: 'https=localhost:8000' is not http=HOST:PORT or metrics=HOST:PORT. See "
        "`tidegate profile --help`",
    ),
    "targets without names": (
        scenario(),
        "compare a.yaml --targets localhost:8001",
        "error: --targets 'localhost:8001': write NAME=HOST:PORT, such as direct=localhost:8001",
    ),
    "a planner that is misspelt": (
        "",
        "plan ppipi a.yaml",
        "error: no planner named 'ppipi' is installed; did you mean 'ppipe'? Installed: {planners}",
    ),
    "a repository that is not there": (
        "",
        "triton models",
        "error: the model repository {folder}/models does not exist or is no folder: `tidegate generate MODEL.onnx -o "
        "FOLDER` makes one",
    ),
    "a deployment that is none": (
        "",
        "up models",
        "error: models holds no deployment (it has no deployment.json): make one with `tidegate generate LAYOUT.json "
        "--blocks MODEL=DIR -o FOLDER`",
    ),
    "a recording that is none": (
        scenario(),
        "replay a.yaml",
        "error: a.yaml: line 1 is no header of an event log: JSON is malformed: invalid character (byte 0); "
        "`tidegate serve --event-log` writes such a file",
    ),
    "a Triton as a URL": (
        "",
        "serve --triton http://localhost:8001",
        "error: command line: tritons.0.grpc: 'http://localhost:8001' is not HOST:PORT with a port up to 65535 (leave "
        "out the part up to ://)",
    ),
    "an SLO with its unit": (
        "",
        f"serve --triton {NOBODY} --slo m=70ms",
        "error: Invalid value for --slo: m=70ms: not a positive number of milliseconds. See `tidegate serve --help`",
    ),
    "a port without its host": (
        "",
        f"serve --triton {NOBODY} --listen 8101",
        "error: command line: listen.grpc: '8101' is not HOST:PORT with a port up to 65535 (an IPv6 host stands in "
        "brackets)",
    ),
    "a Triton twice": (
        "",
        f"serve --triton {NOBODY} --triton {NOBODY}",
        f"error: command line: tritons: {NOBODY} stands there 2 times",
    ),
    "a share of more than all": (
        "",
        f"serve --triton {NOBODY} --canary 150%",
        "error: command line: canary: must be a share of at most 1, not 150%: 100% is the most",
    ),
    "per cent as a number": (
        CONFIGURATION + "canary: 5\n",
        "check a.yaml",
        "error: a.yaml: canary: must be a share of at most 1, not 5: for 5 percent write 5%",
    ),
    "shadow and canary": (
        "",
        f"serve --triton {NOBODY} --shadow --canary 5%",
        "error: command line: canary: a share is scheduled, and shadow schedules nothing: leave one of them out",
    ),
    "an option of a policy without its value": (
        "",
        f"serve --triton {NOBODY} -O deferral",
        "error: Invalid value for --option: 'deferral' is not NAME=VALUE. See `tidegate serve --help`",
    ),
    "a scenario in place of profiles": (
        scenario(),
        f"serve --triton {NOBODY} --profiles a.yaml",
        "error: {folder}/a.yaml: is no JSON: expected value at line 1 column 1; `tidegate profile` writes such a file",
    ),
    "a folder in place of a configuration": (
        "",
        "serve .",
        "error: .: Is a directory; a configuration is a YAML file",
    ),
    "an empty configuration": ("", "check a.yaml", "error: a.yaml: it is empty; `tidegate init` writes one"),
    "an SLO with its unit in a configuration": (
        CONFIGURATION + "models: {m: {slo_ms: 70ms}}\n",
        "check a.yaml",
        "error: a.yaml: models.m.slo_ms: must be a number, not '70ms'",
    ),
    "models as a list": (
        CONFIGURATION + "models: [{name: m}]\n",
        "check a.yaml",
        "error: a.yaml: models: must be fields with values, not a list",
    ),
    "Tritons as text": (
        "tritons: localhost:8001\n",
        "check a.yaml",
        "error: a.yaml: tritons: must be a list, not 'localhost:8001'",
    ),
    "a policy as a mapping of its name": (
        CONFIGURATION.replace("symphony", "{symphony: {}}"),
        "check a.yaml",
        "error: a.yaml: policy.symphony: there is no such field; there are: name, options",
    ),
    "one port for two protocols": (
        CONFIGURATION + "listen: {grpc: 0.0.0.0:8101, http: 0.0.0.0:8101}\n",
        "check a.yaml",
        "error: a.yaml: listen: grpc and http both want port 8101: give one another",
    ),
    "the port of a Triton": (
        CONFIGURATION + "listen: {grpc: localhost:8001}\n",
        "check a.yaml",
        "error: a.yaml: listen.grpc: localhost:8001 is the address of a Triton, localhost:8001",
    ),
    "a limit without its unit": (
        CONFIGURATION + "limits: {execution_timeout: 5}\n",
        "check a.yaml",
        "error: a.yaml: limits.execution_timeout: there is no such field; did you mean execution_timeout_s?",
    ),
    "a field twice": (
        CONFIGURATION + "policy: fifs\n",
        "check a.yaml",
        "error: a.yaml: it is no YAML: line 3, column 1: 'policy' stands there twice; leave one of them out",
    ),
    "a word for what happens to late requests": (
        CONFIGURATION + "models: {m: {on_deadline_miss: drop}}\n",
        "check a.yaml",
        "error: a.yaml: models.m.on_deadline_miss: must be 'reject' or 'serve', not 'drop'",
    ),
    "an event log in a folder that is not there": (
        CONFIGURATION + "event_log: nowhere/run.jsonl\n",
        "check a.yaml",
        "error: a.yaml: event_log: there is no folder {folder}/nowhere",
    ),
    "verdicts in a folder that is not there": (
        CONFIGURATION + "rollouts: {verdict_file: nowhere/verdicts.json}\n",
        "check a.yaml",
        "error: a.yaml: rollouts.verdict_file: there is no folder {folder}/nowhere",
    ),
    "a certificate by its long name": (
        CONFIGURATION + "tls: {certificate: a.yaml, key: a.yaml}\n",
        "check a.yaml",
        "error: a.yaml: tls.certificate: there is no such field; did you mean cert?",
    ),
    "workers as a number": (
        scenario(("[{count: 1}]", "1")),
        "simulate a.yaml",
        "error: a.yaml: workers: must be a list, not 1",
    ),
    "no arrivals": (
        scenario(("arrivals: {process: poisson, rate_rps: 20}\n", "")),
        "simulate a.yaml",
        "error: a.yaml: arrivals: must be given",
    ),
    "a rate with its unit": (
        scenario(("rate_rps: 20", "rate_rps: 20/s")),
        "simulate a.yaml",
        "error: a.yaml: arrivals.rate_rps: must be a number or a list, not '20/s'",
    ),
    "half a profile": (
        scenario((", beta_ms: 5", "")),
        "simulate a.yaml",
        "error: a.yaml: models.0.profile: give alpha_ms and beta_ms, or points_ms, or csv: exactly one of the three",
    ),
    "a model without a profile": (
        scenario((", profile: {alpha_ms: 1, beta_ms: 5, max_batch: 8}", "")),
        "simulate a.yaml",
        "error: a.yaml: models.0: give profile (for every GPU) or profiles (by device class), or pipelines: one of "
        "them",
    ),
    "another name for a required field": (
        scenario(("process: poisson, rate_rps: 20", "process: trace, path: t.csv")),
        "simulate a.yaml",
        "error: a.yaml: arrivals.path: there is no such field; did you mean file?",
    ),
    "a trace that is not there": (
        scenario(("process: poisson, rate_rps: 20", "process: trace, file: t.csv")),
        "simulate a.yaml",
        "error: t.csv: No such file or directory; a trace has one arrival per line, or is an Azure Functions CSV",
    ),
    "a sweep of nothing": (
        scenario(),
        "sweep a.yaml",
        "error: Missing option '--set'. See `tidegate sweep --help`",
    ),
    "seeds with commas": (
        scenario(),
        "simulate a.yaml --seed 1,2",
        "error: Invalid value for '--seed': must be a whole number. See `tidegate simulate --help`",
    ),
    "results in a folder that is not there": (
        scenario(),
        "simulate a.yaml -o nowhere/x.json",
        "error: Invalid value for '--output' / '-o': there is no folder nowhere; make it first. See `tidegate simulate "
        "--help`",
    ),
    "a folder for a report": (
        scenario(),
        "simulate a.yaml --html .",
        "error: Invalid value for '--html': . is a directory; name a file in it. See `tidegate simulate --help`",
    ),
    "two targets of one name": (
        scenario(),
        f"compare a.yaml --targets x={NOBODY} x={NOBODY}",
        "error: --targets: 'x' is named twice: give each its own name",
    ),
    "a comparison of one": (
        scenario(),
        f"compare a.yaml --targets x={NOBODY}",
        "error: --targets: a comparison needs two servers at least, 1 given: --targets direct=localhost:8001 "
        "tidegate=localhost:8101",
    ),
    "a target that does not run": (scenario(), f"loadtest a.yaml --target {NOBODY}", UNREACHABLE),
    "GPUs without the x": (
        scenario(),
        "recommend a.yaml --gpus 8T4",
        "error: GPUs: '8T4' is not of the form 8xT4,2xA100: '8T4'",
    ),
    "an event log that is not there": ("", "replay b.jsonl", "error: b.jsonl: No such file or directory"),
    "a configuration to diagnose that is not there": (
        "",
        "doctor b.yaml",
        "error: b.yaml: No such file or directory; a configuration is a YAML file",
    ),
    "a scenario to diagnose": (scenario(), "doctor a.yaml", f"error: a.yaml: {SCENARIO_TO_SERVE}"),
    "a change without its value": (
        scenario(),
        "simulate a.yaml --set duration_s",
        "error: --set 'duration_s': give PATH=V1,V2,..., each path once",
    ),
    "no simulation at a time": (
        scenario(),
        "simulate a.yaml --jobs 0",
        "error: Invalid value for '--jobs': 0 runs nothing; give 1 or more, or -1 for one per core. See `tidegate "
        "simulate --help`",
    ),
    "a field of a scenario twice": (
        scenario(("duration_s: 1", "duration_s: 1\nduration_s: 2")),
        "simulate a.yaml",
        "error: a.yaml: it is no YAML: line 2, column 1: 'duration_s' stands there twice; leave one of them out",
    ),
    "a folder for a first configuration": (
        "",
        f"init --triton {NOBODY} -o . --force",
        "error: Invalid value for '--output' / '-o': . is a directory; name a file in it. See `tidegate init --help`",
    ),
    "a layout in a folder that is not there": (
        scenario(),
        "plan ppipe a.yaml --layout nowhere/l.json",
        "error: Invalid value for '--layout': there is no folder nowhere; make it first. See `tidegate plan --help`",
    ),
    "a scenario in place of metrics": (
        scenario(),
        "accounts a.yaml a.yaml",
        "error: a.yaml: it is no page of metrics; give a page of `curl localhost:8102/metrics`",
    ),
    "an event log where none can be written": (
        "",
        f"serve --triton {NOBODY} --event-log /proc/run.jsonl",
        "error: /proc/run.jsonl: No such file or directory",
    ),
    "a Triton's address in place of a configuration": (
        "",
        "serve localhost:8001",
        "error: Invalid value for '[CONFIG]': localhost:8001 is an address, not a file: give --triton localhost:8001. "
        "See `tidegate serve --help`",
    ),
    "a flag for the port": (
        "",
        f"serve --triton {NOBODY} --port 8101",
        "error: No such option: --port; the address is --listen HOST:PORT. See `tidegate serve --help`",
    ),
    "a flag for the TLS of a Triton": (
        "",
        f"serve --triton {NOBODY} --tls-ca ca.pem",
        "error: No such option: --tls-ca; TLS of a Triton is set in a configuration, as tritons[].tls. See `tidegate "
        "serve --help`",
    ),
    "a flag for the TLS of clients": (
        "",
        f"serve --triton {NOBODY} --tls-cert c.pem --tls-key k.pem",
        "error: No such option: --tls-cert; TLS for clients is set in a configuration, as tls: {cert: FILE, key: FILE}"
        "; TLS of a Triton is set in a configuration, as tritons[].tls. See `tidegate serve --help`",
    ),
    "an option of a policy that is to be simulated": (
        scenario(),
        "simulate a.yaml --option max_miss_rate=1",
        "error: No such option: --option; list the policy in the scenario with its options: policies: [{name: NAME, "
        "options: {OPTION: VALUE}}]. See `tidegate simulate --help`",
    ),
    "a request before the first": (
        "",
        "explain run.jsonl -1",
        "error: No such option: -1; requests are numbered from 0. See `tidegate explain --help`",
    ),
    "a policy of a scenario by its name alone": (
        scenario(("[{name: symphony}]", "[symphony]")),
        "simulate a.yaml",
        "error: a.yaml: policies.0: must be fields with values, such as name: ..., not 'symphony'",
    ),
    "a Triton as a number": (
        "tritons: [8001]\n",
        "check a.yaml",
        "error: a.yaml: tritons.0: must be fields with values, such as grpc: ..., not 8001",
    ),
    "two scenarios in a file": (
        scenario() + "---\n" + scenario(),
        "simulate a.yaml",
        "error: a.yaml: line 7 begins a second document (---): give each a file of its own",
    ),
    "an empty scenario": (
        "",
        "simulate a.yaml",
        "error: a.yaml: it is empty; a scenario has fields with values, such as duration_s: 10",
    ),
    "a scenario of words": (
        "resnet at 20 requests/s\n",
        "simulate a.yaml",
        "error: a.yaml: must be fields with values, such as duration_s: ..., not 'resnet at 20 requests/s'",
    ),
    "a model twice": (
        scenario(("arrivals", "  - {name: resnet, profile: {alpha_ms: 1, beta_ms: 5, max_batch: 8}}\narrivals")),
        "simulate a.yaml",
        "error: a.yaml: models: 'resnet' is listed twice: give each its own name",
    ),
    "a heading in a trace": (
        scenario(("process: poisson, rate_rps: 20", "process: trace, file: a.yaml.onnx")),
        "simulate a.yaml",
        "error: a.yaml.onnx:1: 'duration_s:' is no number of seconds; a heading begins with #",
    ),
    "GPUs with their number behind": (
        scenario(),
        "recommend a.yaml --gpus T4x8",
        "error: GPUs: 'T4x8' is not of the form 8xT4,2xA100: 'T4x8'",
    ),
    "a change of a model by its name": (
        scenario(),
        "sweep a.yaml --set models.resnet.slo_ms=20,30",
        "error: a.yaml: cannot set 'models.resnet.slo_ms': 'resnet' leads nowhere, there is a list of 1, whose entries "
        "are named by number from 0 (* for all)",
    ),
    "a plan in place of a layout": (
        "kind: ppipe_plan\n",
        "generate a.yaml -o models",
        "error: a.yaml: it is a document of kind 'ppipe_plan', not 'layout'; `tidegate plan ... --layout FILE` writes "
        "the layout",
    ),
    "blocks that are not there": (
        "",
        "profile-blocks blocks -o p.json",
        "error: blocks: there are no blocks: `tidegate split MODEL.onnx -o DIR` writes them",
    ),
    "a target as a URL": (
        scenario(),
        "loadtest a.yaml --target http://localhost:8001",
        "error: 'http://localhost:8001' is not HOST:PORT of a server's gRPC, such as localhost:8001",
    ),
    "a port that there is not": (
        scenario(),
        "loadtest a.yaml --target localhost:80011",
        "error: 'localhost:80011' is not HOST:PORT of a server's gRPC, such as localhost:8001",
    ),
    "a folder for profiles": (
        CONFIGURATION + "profiles: .\n",
        "check a.yaml",
        "error: a.yaml: profiles: {folder} is a directory; name a file in it",
    ),
    "a policy that is not installed": (
        scenario(),
        "simulate a.yaml --policy high-water",
        "error: no policy named 'high-water' is installed; installed: {policies}; pip install the plugin that has it",
    ),
    "a folder to replay": ("", "replay .", "error: .: Is a directory; name a file in it"),
    "the devices of no worker": (
        "",
        "mig uuid a.yaml",
        "error: Invalid value for WORKER: uuid needs one: DIR WORKER. See `tidegate mig --help`",
    ),
    "a role without its shard": (
        "",
        f"serve --triton {NOBODY} --role shard",
        "error: Invalid value for --shard: --role shard and --shard N go together. See `tidegate serve --help`",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_told_in_one_line(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text, command, line = MISTAKES[mistake]
    for name in ("a.yaml", "a.yaml.onnx"):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["tidegate", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    plugins = Plugins.installed()
    names = {"policies": ", ".join(sorted(plugins.policies)), "planners": ", ".join(sorted(plugins.planners))}
    for word, meant in {**names, "folder": str(tmp_path)}.items():
        line = line.replace(f"{{{word}}}", meant)
    assert capsys.readouterr() == ("", f"{line}\n")
    assert ended.value.code in (1, 2)


def test_a_process_tells_the_same(tmp_path: Path) -> None:
    """The command itself, in a script: its status tells that something is wrong, and its error is the last line."""
    command = [sys.executable, "-c", "from tidegate.cli import main; main()", "simulate", "nowhere.yaml"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"COLUMNS": "80"}, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: nowhere.yaml: No such file or directory; a scenario is a YAML file\n"


@pytest.mark.parametrize(
    ("extra", "command"), [(extra, name) for extra, names in COMMANDS_OF.items() for name in names]
)
def test_a_command_that_is_not_installed_names_what_brings_it(
    extra: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command in Plugins.installed().commands
    monkeypatch.setattr(Plugins, "installed", classmethod(lambda cls: cls()))
    monkeypatch.setattr(sys, "argv", ["tidegate", command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = f'error: the command {command!r} is not installed: pip install "tidegate[{extra}]"\n'
    assert capsys.readouterr() == ("", said)

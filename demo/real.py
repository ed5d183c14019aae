"""Part (a): real models on real input, through Tidegate and without it."""

import json
import subprocess
import sys
from pathlib import Path

import skimage
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from demo.processes import tidegate
from demo.read_text import MODEL_FILES, model_path
from tidegate_loadtest.processes import serving_command
from tidegate_proxy.tritons.embedded import EmbeddedTriton

PICTURE = Path(skimage.__file__).parent / "data" / "page.png"
"""A photographed page of a book."""
SHAPES = {
    "text_detection": ["x:3,736,736"],
    "text_direction": ["x:3,48,192"],
    "text_recognition": ["x:3,48,320", "x:3,48,640"],
}
"""What the models are profiled with: rapidocr's own sizes; longer lines of text are wider."""
MAX_BATCH = {"text_detection": 2, "text_direction": 8, "text_recognition": 8}
SLO_MS = {"text_detection": 3000, "text_direction": 500, "text_recognition": 3000}


def run_real(console: Console, work: Path) -> bool:
    """Generate, serve, profile, front, read. Whether both ways gave the same."""
    repository, profiles = work / "models", work / "profiles.json"
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("generating repositories", total=2 * len(MODEL_FILES) + 2)
        for name in MODEL_FILES:
            limits = ("--max-batch", str(MAX_BATCH[name]), "--slo-ms", str(SLO_MS[name]))
            tidegate("generate", str(model_path(name)), "-o", str(repository), "--name", name, *limits)
            progress.advance(task)
        with EmbeddedTriton([repository], log=work / "triton.log") as triton:
            for name in MODEL_FILES:
                progress.update(task, description=f"profiling {name}")
                shapes = [word for shape in SHAPES[name] for word in ("--shape", shape)]
                where = ("--triton", triton.grpc_address, "-o", str(profiles))
                tidegate("profile", name, *where, *shapes, "--samples", "8")
                progress.advance(task)
            serve = (
                "--listen",
                "127.0.0.1:0",
                "--triton",
                triton.grpc_address,
                "--policy",
                "symphony",
                "--profiles",
                str(profiles),
            )
            with serving_command("serve", *serve, log=work / "tidegate.log") as address:
                progress.update(task, description="reading the picture")
                through_tidegate = _read(address)
                progress.advance(task)
                direct = _read(triton.grpc_address)
                progress.advance(task)
    _show_profiles(console, profiles)
    console.print(f"What [bold]{PICTURE.name}[/bold] says, read through Tidegate (confidence, text):")
    console.print(through_tidegate, highlight=False)
    same = through_tidegate == direct
    verdict = "[green]equal[/green]" if same else f"[red]different:[/red]\n{direct}"
    console.print(f"The same program on Triton itself: {verdict}\n")
    return same


def _read(address: str) -> str:
    program = Path(__file__).with_name("read_text.py")
    return subprocess.run(
        [sys.executable, program, address, PICTURE], capture_output=True, text=True, check=True
    ).stdout.rstrip()


def _show_profiles(console: Console, profiles: Path) -> None:
    heads = ("model", "shape", "l(b), measured through Triton", "rows measured")
    table = Table(*heads, title="Profiles (tidegate profile)")
    for entry in json.loads(profiles.read_text())["profiles"]:
        line = f"{entry['alpha_ms']:.2f} ms * b + {entry['beta_ms']:.2f} ms"
        rows = ", ".join(str(point["rows"]) for point in entry["points"])
        table.add_row(entry["model"], entry["shape"], line, rows)
    console.print(table)

"""Every report and page as pictures, dark and light, 400 and 1200 pixels wide, to be looked at before a release.

    python -m release.screens FOLDER [--only NAME ...]

Commands make the pages of small scenarios, some two minutes of two cores; Chromium, which must be installed, shoots
them. The first page of the documents is shot where `make site` has built it. The dashboard, which needs a server,
is not among them.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageChops
from rich.console import Console
from rich.progress import track

from release.members import ROOT

WIDTHS: Final = (400, 1200)
SCHEMES: Final = {"dark": 0, "light": 1}
"""Chromium's numbers of what people prefer."""
TALLEST: Final = 9000
MARGIN: Final = 20
ONE_MODEL: Final = """
warmup_s: 1
duration_s: 3
workers: [{count: 8, gpu: 1080Ti}]
models: [{name: resnet50, slo_ms: 25, profile: {alpha_ms: 1.053, beta_ms: 5.072, max_batch: 64}}]
arrivals: {process: poisson, rate_rps: 5000}
policies: [{name: symphony}, {name: triton}]
"""
LIVE: Final = """
warmup_s: 1
duration_s: 3
workers: [{count: 2, gpu: A100}]
models:
  - {name: resnet, slo_ms: 60, weight: 2, profile: {alpha_ms: 1, beta_ms: 12, max_batch: 16}}
  - {name: bert, slo_ms: 120, weight: 1, profile: {alpha_ms: 4, beta_ms: 10, max_batch: 8}}
arrivals: {process: poisson, rate_rps: 150}
policies: [{name: symphony}, {name: triton}]
"""
PAGES: Final = {
    "simulate": "simulate one.yaml --seed 1 --seed 2",
    "simulate-ten-models": "simulate ten.yaml --policy symphony --seed 1",
    "simulate-ten-models-by-policy": "simulate ten.yaml --policy symphony --policy triton --policy nexus --seed 1",
    "goodput": "goodput one.yaml --seed 1 --precision 0.05",
    "sweep": "sweep one.yaml --set models.0.slo_ms=15,25,50 --set arrivals.rate_rps=3000,4500,6000",
    "recommend": "recommend one.yaml --policy symphony --policy fifs --requests 1000 --planning-s 0.5",
    "loadtest": "loadtest live.yaml --seed 1",
    "loadtest-rates": "loadtest live.yaml --policy symphony --rates 100,200,300,400 --seed 1",
    "compare": "compare live.yaml --rounds 2",
}
"""The command that makes each page, without `--html`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the pages and shoot them. Exits with 1 where a page could not be made."""
    parser = argparse.ArgumentParser(prog="python -m release.screens", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="write pages and pictures here")
    parser.add_argument("--only", nargs="*", choices=[*PAGES, "site"], default=[*PAGES, "site"], help="default: all")
    options = parser.parse_args(arguments)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        parser.error("there is no Chromium: install it, e.g. apt-get install chromium")
    options.folder.mkdir(parents=True, exist_ok=True)
    write_scenarios(options.folder)
    errors = Console(stderr=True, soft_wrap=True)
    failed = []
    for name in track(options.only, "pages and pictures", console=errors, disable=not errors.is_terminal):
        page = ROOT / "build" / "site" / "index.html" if name == "site" else make_page(options.folder, name)
        if not page.exists():
            failed.append(name)
            continue
        for scheme in SCHEMES:
            for width in WIDTHS:
                shoot(chromium, page, options.folder / f"{name}-{scheme}-{width}.png", scheme, width)
    for name in failed:
        print(f"error: {name}: there is no page: {PAGES.get(name, 'make site')}", file=sys.stderr)
    raise SystemExit(1 if failed else 0)


def write_scenarios(folder: Path) -> None:
    """Write the scenarios that the commands name: one model, ten of `scenarios/`, and two that can run live."""
    ten = (ROOT / "scenarios" / "mixture_strong.yaml").read_text("utf-8")
    texts = {"one": ONE_MODEL, "ten": ten.replace("duration_s: 20", "duration_s: 3"), "live": LIVE}
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def make_page(folder: Path, name: str) -> Path:
    """Run the command of a page. Where the page is, or would be."""
    page = folder.absolute() / f"{name}.html"
    page.unlink(missing_ok=True)
    command = [str(Path(sys.executable).with_name("tidegate")), *PAGES[name].split(), "--html", str(page)]
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
    return page


def shoot(chromium: str, page: Path, picture: Path, scheme: str, width: int) -> None:
    """Take a picture of a whole page."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
    prefers = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
    window = f"--window-size={width},{TALLEST}"
    command = [chromium, *flags, prefers, window, f"--screenshot={picture}", page.absolute().as_uri()]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    with Image.open(picture) as taken:
        trimmed(taken.convert("RGB")).save(picture)


def trimmed(picture: Image.Image) -> Image.Image:
    """A picture without the empty rows at its end, but for a margin."""
    width, height = picture.size
    empty = Image.new("RGB", picture.size, picture.getpixel((1, height - 1)))
    box = ImageChops.difference(picture, empty).getbbox()
    return picture.crop((0, 0, width, min(height, (box[3] if box else 0) + MARGIN)))


if __name__ == "__main__":
    main()

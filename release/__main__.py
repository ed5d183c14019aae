"""Build and check all distributions: `make dist`, or `python -m release [--only-build]`."""

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from release.archives import problems_of
from release.assets import write_assets
from release.clean import try_out
from release.members import ROOT, Member, members, version
from release.members import problems_of as problems_of_sources

UV = Path(sys.executable).parent / "uv"


def main() -> None:
    """All of it, or only what can be uploaded. Exits with 1 where anything is wrong, and says what."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--only-build", action="store_true", help="build into dist/, and check nothing")
    only_build = parser.parse_args().only_build
    started = time.monotonic()
    folder = ROOT / "dist"
    _complain(problems_of_sources())
    with ThreadPoolExecutor(max_workers=2) as pool:
        built = [
            archive for archives in pool.map(lambda member: _build(member, folder), members()) for archive in archives
        ]
    print(f"built {len(built)} archives of version {version()} into dist/ ({time.monotonic() - started:.0f} s)")
    if only_build:
        return
    _complain([f"{archive.name}: {problem}" for archive in built for problem in problems_of(archive)])
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built))
    installed = try_out([archive for archive in built if archive.suffix == ".whl"], UV)
    for asset in write_assets(folder, installed):
        print(f"dist/{asset.name}")
    print(f"all is well ({time.monotonic() - started:.0f} s)")


def _build(member: Member, folder: Path) -> list[Path]:
    """Its source distribution, and the wheel made of that: so it can be built outside of the repository."""
    for old in folder.glob(f"{member.import_name}-*"):
        old.unlink()
    _run(UV, "build", "--quiet", "--build-constraints", ROOT / "constraints.txt", "--out-dir", folder, member.folder)
    return sorted(folder.glob(f"{member.import_name}-*"))


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")


def _complain(problems: list[str]) -> None:
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()

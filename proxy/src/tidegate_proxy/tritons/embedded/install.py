"""Installation of the nvidia-pytriton wheel: its tritonserver, and the requirements of its Python backend."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tidegate_proxy.tritons.embedded.log import TritonStartError

SUPPORTED_PYTHONS = ((3, 11), (3, 12))
"""CPython versions for which the wheel has a stub and numpy 1 has wheels."""
_RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True)
class TritonInstall:
    """Files of the wheel, found and checked."""

    server: Path
    """The tritonserver executable."""
    backend: Path
    """Folder of the Python backend's library; it lacks the stub."""
    stub: Path
    """Executable in which the Python backend runs a model, for this version of Python."""
    environment: dict[str, str]
    """Environment of the server: the wheel's libraries, and this interpreter first on PATH."""

    @classmethod
    def find(cls) -> "TritonInstall":
        """Find the wheel beside this interpreter and check the requirements of its Python backend.

        Raises TritonStartError, with the remedy, if the wheel, the right Python, numpy 1 or libpython is missing.
        """
        if sys.version_info[:2] not in SUPPORTED_PYTHONS:
            raise TritonStartError(
                f"the embedded Triton runs models in CPython 3.11 or 3.12, not in {_RUNNING}: "
                "make the environment with one of these, or point Tidegate at a Triton of your own"
            )
        # A spec, not an import: importing pytriton takes seconds and starts threads.
        spec = importlib.util.find_spec("pytriton")
        if spec is None or spec.origin is None:
            raise TritonStartError(
                'nvidia-pytriton, which carries tritonserver, is not installed: pip install "tidegate-proxy[embedded]"'
            )
        _require_numpy_1()
        package = Path(spec.origin).parent
        root = package / "tritonserver"
        install = cls(
            server=root / "bin" / "tritonserver",
            backend=root / "backends" / "python",
            stub=root / "python_backend_stubs" / _RUNNING / "triton_python_backend_stub",
            environment=_environment(package.parent / "nvidia_pytriton.libs"),
        )
        for path in (install.server, install.backend, install.stub):
            if not path.exists():
                raise TritonStartError(f"nvidia-pytriton has no {path}: install version 0.7.0 of it")
        install._require_loadable_stub()
        return install

    def link_backends(self, folder: Path) -> None:
        """Create a backend directory in `folder`: library and stub side by side, as the backend requires.

        They are links, so starting copies nothing; the wheel's own folder is never written to.
        """
        target = folder / "python"
        target.mkdir()
        for path in (*self.backend.iterdir(), self.stub):
            (target / path.name).symlink_to(path)

    def _require_loadable_stub(self) -> None:
        # Run without arguments, the stub ends at once; what the loader misses it says in one line.
        run = subprocess.run([self.stub], env=self.environment, capture_output=True, text=True, check=False, timeout=30)
        if "error while loading shared libraries" not in run.stderr:
            return
        library = run.stderr.partition("error while loading shared libraries: ")[2].partition(":")[0]
        remedy = f": apt-get install libpython{_RUNNING}" if library.startswith("libpython") else ""
        raise TritonStartError(f"Triton's Python backend needs {library}, which is not on this machine{remedy}")


def _require_numpy_1() -> None:
    try:
        version = importlib.metadata.version("numpy")
    except importlib.metadata.PackageNotFoundError:
        raise TritonStartError('Triton\'s Python backend needs numpy: pip install "numpy<2"') from None
    if int(version.partition(".")[0]) >= 2:
        raise TritonStartError(
            f"Triton's Python backend was built for numpy 1, and numpy {version} is installed (its tensors would "
            'come out with wrong sizes): pip install "numpy<2"'
        )


def _environment(libraries: Path) -> dict[str, str]:
    environment = dict(os.environ)
    library_path = [str(libraries)]
    name = f"libpython{_RUNNING}.so.1.0"
    for folder in (sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"):
        if folder and Path(folder, name).exists() and folder not in library_path:
            library_path.append(folder)
    inherited = environment.get("LD_LIBRARY_PATH")
    environment["LD_LIBRARY_PATH"] = ":".join([*library_path, inherited] if inherited else library_path)
    # The stub ignores PYTHONPATH and PYTHONHOME: it takes the environment of the first python3 on PATH.
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment.get('PATH', os.defpath)}"
    return environment

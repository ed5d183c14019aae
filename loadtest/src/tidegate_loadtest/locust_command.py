"""Command `tidegate-locust`: Locust's own command line, with Tidegate's options and default users.

It is no subcommand of `tidegate`, because gevent replaces the standard library's sockets and threads in its process.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    """Run Locust. `-f FILE` names another locustfile.

    `locust -f FILE --help` lists none of Tidegate's options, because it prints its help before it reads the file. Here
    they are registered before.
    """
    try:
        from locust.main import main as locust  # noqa: PLC0415 - replaces the standard library

        import tidegate_loadtest.locust.users  # noqa: PLC0415 - registers the options
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("locust", "gevent"):
            raise
        sys.exit(f'error: {error.name} is not installed: pip install "tidegate-loadtest[locust]"')
    locustfile = Path(tidegate_loadtest.locust.users.__file__).with_name("locustfile.py")
    os.environ.setdefault("LOCUST_LOCUSTFILE", str(locustfile))
    locust()

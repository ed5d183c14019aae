"""The site: every page is reached by links, on the site and on GitHub, and nothing is fetched from elsewhere."""

import json
import posixpath
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import quickjs

from docsite.links import for_the_site, linked_files
from docsite.listing import list_versions
from docsite.places import ROOT, members, page_of

PAGES = [
    "README.md", "CONTRIBUTING.md", "CHANGELOG.md", *map(str, members()),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
]  # fmt: skip
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


def _markdown_reached(start: str) -> set[str]:
    """The pages that links lead to from one, as GitHub shows them; a link to a folder shows what is in it."""
    reached, todo = set(), [start]
    while todo:
        page = todo.pop()
        if page in reached:
            continue
        reached.add(page)
        folder = ROOT / posixpath.dirname(page)
        if page.endswith("README.md") and page != "README.md" and folder.is_relative_to(ROOT / "docs"):
            todo += [str(path.relative_to(ROOT)) for path in folder.glob("*.md")]  # above it GitHub lists its folder
        links = linked_files((ROOT / page).read_text(encoding="utf-8"), page)
        todo += [link for link in links if link.endswith(".md") and (ROOT / link).is_file()]
    return reached


def test_every_page_is_reached_from_the_readme_on_github() -> None:
    assert sorted(set(PAGES) - _markdown_reached("README.md")) == []


@pytest.mark.parametrize("page", [page for page in PAGES if not page.startswith("docs/")])
def test_links_of_pages_outside_of_docs_lead_somewhere(page: str) -> None:
    links = linked_files((ROOT / page).read_text(encoding="utf-8"), page)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_links_become_links_between_pages() -> None:
    def there(link: str, path: str = "docs/how-to/pad.md") -> str:
        return for_the_site(f"[x]({link})", path).removeprefix("[x](").removesuffix(")")

    assert there("../reference/config.md#models") == "../reference/config.md#models"
    assert there("../../README.md") == "../index.md"
    assert there("../../plugins/symphony/README.md#symphony") == "../plugins/symphony.md#symphony"
    assert there("../decisions") == "../decisions/README.md"
    assert there("../../deploy/kserve/serving_runtime.yaml") == "../source/deploy/kserve/serving_runtime.yaml.md"
    assert there("docs/start.md", "README.md") == "start.md"
    assert there("src/x.py", "plugins/inss/README.md") == "src/x.py", "Zensical reports what does not exist"
    assert there("https://docs.locust.io") == "https://docs.locust.io"
    for code in ("`[x](../../README.md)`", "```\n[x](../../README.md)\n```"):
        assert for_the_site(code, "docs/how-to/pad.md") == code


def test_no_two_files_are_one_page() -> None:
    assert len({page_of(path) for path in PAGES}) == len(PAGES) - 1, "README.md and docs/index.md are the first page"


def test_the_first_page_leads_to_the_newest_version(tmp_path: Path) -> None:
    for version in ("0.9.0", "0.10.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "index.html").touch()
    list_versions(tmp_path)
    listed = json.loads((tmp_path / "versions.json").read_text(encoding="utf-8"))
    assert [each["version"] for each in listed] == ["0.10.0", "0.9.0"]
    assert "url=0.10.0/index.html" in (tmp_path / "index.html").read_text(encoding="utf-8")


class _Links(HTMLParser):
    """The links of a page, and what a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        elif tag in FETCHED and given.get("rel") != "canonical":
            self.fetched.add(given.get(FETCHED[tag], ""))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built site's version; a link that leads nowhere fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "docsite", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (version,) = (entry["version"] for entry in json.loads((folder / "versions.json").read_text(encoding="utf-8")))
    assert f"{version}/index.html" in (folder / "index.html").read_text(encoding="utf-8")
    return folder / str(version)


@pytest.fixture(scope="module")
def site(folder: Path) -> dict[str, _Links]:
    """The pages of the site, by their place in it."""
    assert (folder / "search.js").exists(), "the search works from file://"
    sheets = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*.css"))
    assert not re.search(r"url\(['\"]?(https?:)?//", sheets)
    pages = {str(path.relative_to(folder)): _Links(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    pages.pop("404.html")
    return pages


@pytest.mark.slow
def test_every_page_is_reached_from_the_first_one(site: dict[str, _Links]) -> None:
    reached, todo = set(), ["index.html"]
    while todo:
        page = todo.pop()
        if page in reached or page not in site:
            continue
        reached.add(page)
        for link in site[page].links:
            parts = urlsplit(link)
            if not parts.scheme and parts.path:
                todo.append(posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path))))
    assert sorted(set(site) - reached) == []
    made = {posixpath.splitext(page_of(path))[0].replace("README", "index") + ".html" for path in PAGES}
    assert made <= set(site)


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site: dict[str, _Links]) -> None:
    elsewhere = {page: [url for url in links.fetched if "//" in url] for page, links in site.items()}
    assert {page: urls for page, urls in elsewhere.items() if urls} == {}


@pytest.mark.slow
def test_the_reference_is_written_from_what_is_installed(site: dict[str, _Links]) -> None:
    assert {"symphony", "gslice-loop", "paris"} <= site["reference/plugins.html"].anchors
    assert {"tidegate-serve", "tidegate-new-policy"} <= site["reference/cli.html"].anchors
    assert "tidegate.api.policy.Policy" in site["reference/api/api.html"].anchors
    assert "tidegate.testing.playbook.Playbook" in site["reference/api/testing.html"].anchors


QUESTIONS = {
    "rate limit a tenant": "how-to/overload",
    "noisy neighbor": "how-to/concurrent-models",
    "load shedding": "how-to/overload",
    "circuit breaker": "how-to/overload",
    "p99 went up after adding a model": "how-to/latency",
    "why was my request rejected": "reference/rejections",
    "UNAVAILABLE request timeout expired": "reference/troubleshooting",
    "why is my model not batched": "faq",
    "drain for a rolling update": "how-to/upgrade",
    "zero downtime upgrade": "how-to/upgrade",
    "how many GPUs do I need": "how-to/capacity-planning",
    "prometheus alerts": "how-to/alerts",
    "grafana dashboard": "how-to/monitor",
    "health check endpoint": "how-to/monitor",
    "opentelemetry tracing": "reference/tracing",
    "enable TLS": "how-to/harden",
    "api key authentication": "how-to/harden",
    "shared memory disabled allow-client-shm": "how-to/harden",
    "horizontal scaling": "how-to/scale-out",
    "high availability": "how-to/scale-out",
    "kubernetes autoscaling": "how-to/kubernetes",
    "helm chart values": "how-to/kubernetes",
    "which triton versions are supported": "reference/compatibility",
    "set SLO for a model": "reference/config",
    "retry budget": "reference/config",
    "split model across GPUs": "how-to/split-models",
    "MIG partition": "how-to/mig-mps",
    "different policy per model": "how-to/combine-policies",
    "batch requests of different shapes": "how-to/pad",
    "compare with triton dynamic batcher": "how-to/compare",
    "systemd unit file": "faq",
    "request priority": "faq",
    "envoy istio nginx": "faq",
    "429 from triton": "reference/troubleshooting",
    "gpu idle but requests wait": "faq",
    "cold start": "how-to/on-demand-models",
    "queue is full": "how-to/overload",
    "client disconnects mid request": "faq",
    "how to roll back": "how-to/upgrade",
    "cost per tenant": "how-to/multi-tenancy",
    "autoscale on queue length": "how-to/kubernetes",
    "test a new policy offline": "faq",
    "ensemble latency budget": "how-to/ensembles",
    "CUDA out of memory": "how-to/on-demand-models",
    "streaming LLM tokens": "how-to/streams",
    "requests stuck in queue": "faq",
    "batch size too small": "faq",
    "load balancing across tritons": "faq",
    "sticky sessions": "faq",
    "offline batch inference": "faq",
    "model repository s3": "faq",
    "switch back to plain triton": "faq",
    "one customer uses up all GPUs": "faq",
}
"""Questions as operators type them, each with the page that answers it."""
MIN_ANSWERED = 50
SHOWN_PAGES = 3


class _Search:
    """The site's own search: its worker script and its index, run by QuickJS."""

    def __init__(self, folder: Path) -> None:
        index = (folder / "search.json").read_text(encoding="utf-8")
        self._items = json.loads(index)["items"]
        self._context = quickjs.Context()
        self._context.eval("var self = globalThis, answers = []; self.postMessage = message => answers.push(message)")
        (worker,) = folder.glob("assets/javascripts/workers/search.*.min.js")
        self._context.eval(worker.read_text(encoding="utf-8"))
        self._ask(0, json.loads(index))

    def pages(self, question: str) -> list[str]:
        """The pages of the hits, best first, without their suffix."""
        hits = self._ask(2, {"input": question})["items"]
        return list(dict.fromkeys(self._items[hit["id"]]["location"].partition(".html")[0] for hit in hits))

    def _ask(self, kind: int, data: object) -> Any:
        message = json.dumps({"data": {"type": kind, "data": data}})
        self._context.eval(f"answers = []; self.onmessage({message})")
        while self._context.execute_pending_job():
            pass
        (answer,) = json.loads(self._context.eval("JSON.stringify(answers)"))
        assert answer["type"] == kind + 1
        return answer.get("data")


@pytest.mark.slow
def test_operators_find_their_answers_by_searching(folder: Path) -> None:
    search = _Search(folder)
    missed = [question for question, page in QUESTIONS.items() if page not in search.pages(question)[:SHOWN_PAGES]]
    assert len(QUESTIONS) >= MIN_ANSWERED + len(missed), missed
    assert search.pages("tidegate zzzqqqxxx") == [], "a search that finds everything would answer all of them"

"""The report page: what is in it, whole without a network, and in a real browser."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from html import escape
from html.parser import HTMLParser

import pytest

from analysis.__main__ import main
from analysis.exhibits import KINDS
from launch.recipe import ROOT
from record import read_json
from tests.analysis.records import write_record
from tests.analysis.test_wandb import CONFIG, history
from tests.analysis.wandb_server import node, wandb_server


class Page(HTMLParser):
    """The ids, links and pictures of a page, and whatever it would load from elsewhere."""

    VOID = frozenset(("meta", "link", "img", "br", "hr"))

    def __init__(self, text: str):
        super().__init__()
        self.ids, self.links, self.pictures, self.loaded, self._open = [], [], [], [], []
        self.feed(text)
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag not in self.VOID:
            self._open.append(tag)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"])
        elif tag == "img":
            self.pictures.append(attributes)
        self.loaded += [
            value for key, value in attrs if key in ("src", "srcset", "data") or (tag == "link" and key == "href")
        ]

    def handle_endtag(self, tag):
        assert self._open.pop() == tag


def made(monkeypatch, out, *paths) -> str:
    monkeypatch.setattr("sys.argv", ["analysis", "report", *map(str, paths), "--out", str(out)])
    assert main() == 0
    return out.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        out = tmp_path_factory.mktemp("report") / "report.html"
        made(monkeypatch, out)
        return out


def test_the_page_is_whole_and_loads_nothing(report):
    text = report.read_text(encoding="utf-8")
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert {"claims", "arms", "runs", "left-out", "metrics", *KINDS} <= set(page.ids)
    assert page.links
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links), "every link leads somewhere"
    assert page.loaded
    assert all(value.startswith("data:") for value in page.loaded), "all of it is in the file"
    assert not re.search(r"@import|url\((?!data:)|<script", text)
    for picture in page.pictures:
        assert picture["alt"], "a picture says what it shows"
        content = base64.b64decode(picture["src"].removeprefix("data:image/svg+xml;base64,"), validate=True)
        assert content.startswith(b"<?xml")
        assert content.rstrip().endswith(b"</svg>")
    assert text.count('<ul class="provenance">') >= len(page.pictures), "what made it is below each figure"
    learnt = json.loads(next((ROOT / "results" / "arms" / "learning").glob("*.json")).read_text())
    failed = [
        run for run in map(read_json, (ROOT / "results").rglob("*.json")) if isinstance(run, dict) and "curve" in run
    ]
    causes = [escape(run["exit"]["cause"]) for run in failed if run["exit"]["cause"]]
    for said in (learnt["git"]["commit"][:7], f"trl {learnt['packages']['trl']}", "1 x NVIDIA H200", *causes):
        assert said in text, "commit, versions, hardware, and why runs failed"
    assert str(ROOT) not in text


def test_a_report_of_ones_own_runs_replaces_the_old_one_whole(tmp_path, monkeypatch, capsys):
    write_record(tmp_path / "runs" / "synthetic" / "one")
    out = tmp_path / "out" / "report.html"
    text = made(monkeypatch, out, tmp_path / "runs")
    runs = text.split('<section id="runs">')[1].split("</section>")[0]
    assert "made_up_colocate" in runs
    assert "tiny_" not in runs
    monkeypatch.setattr("sys.argv", ["analysis", "report", str(tmp_path / "nowhere"), "--out", str(out)])
    assert main() == 2
    assert "nowhere" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8") == text
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_a_report_of_a_wandb_project(tmp_path):
    nodes = [node("ours", "finished", CONFIG, history()), node("crashed", "crashed", CONFIG, history(2))]
    out = tmp_path / "report.html"
    command = [sys.executable, "-m", "analysis", "report", "wandb:me/project", "--out", str(out)]
    with wandb_server(nodes) as address:
        environment = os.environ | {"WANDB_BASE_URL": address, "WANDB_API_KEY": "a" * 40, "WANDB_DIR": str(tmp_path),
                                    "WANDB_CACHE_DIR": str(tmp_path / "cache"), "WANDB_SILENT": "true"}  # fmt: skip
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
    assert done.returncode == 0, done.stderr
    text = out.read_text(encoding="utf-8")
    assert "mirrored" in text.split('<section id="runs">')[1]
    assert "wandb says crashed" in text
    assert "Training reward of mirrored" in text
    assert "in wandb, which has the rest" in text


PROBE = """
<script>
const errors = [];
window.addEventListener("error", event => errors.push(String(event.message || event.target.src)), true);
window.addEventListener("load", () => setTimeout(() => {
  const dead = [...document.querySelectorAll("a[href^='#']")].filter(a => !document.getElementById(a.hash.slice(1)));
  const found = {
    pictures: [...document.images].map(image => image.naturalWidth),
    dead: dead.map(a => a.hash), errors: errors, links: document.links.length,
    beyond: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    fetched: performance.getEntriesByType("resource").map(entry => entry.name).filter(name => !name.startsWith("data:")),
  };
  document.body.replaceChildren(Object.assign(document.createElement("pre"), {textContent: JSON.stringify(found)}));
}, 0));
</script>
"""


def chromium(profile, *arguments):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium: apt-get install chromium")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
    ]
    return subprocess.run([*command, *arguments], capture_output=True, timeout=240, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("width_pixels", [1280, 390])
def test_in_a_browser_every_picture_and_link_is_alive(report, tmp_path, width_pixels):
    probed = tmp_path / "probed.html"
    probed.write_text(report.read_text(encoding="utf-8").replace("<head>", "<head>" + PROBE), encoding="utf-8")
    done = chromium(tmp_path / "profile", f"--window-size={width_pixels},900", "--dump-dom", probed.as_uri())
    found = json.loads(re.search(r"<pre>(.*?)</pre>", done.stdout.decode(), re.DOTALL)[1].replace("&gt;", ">"))
    assert len(found["pictures"]) == report.read_text(encoding="utf-8").count("<img ")
    assert all(width > 100 for width in found["pictures"]), "each has been decoded"
    assert found["links"] > 5
    assert found["dead"] == found["errors"] == found["fetched"] == []
    assert found["beyond"] <= 0, "the page does not scroll sideways; wide tables and figures do in their own frame"
    assert b"CONSOLE" not in done.stderr


@pytest.mark.slow
def test_it_prints(report, tmp_path):
    pages = tmp_path / "report.pdf"
    chromium(tmp_path / "profile", "--no-pdf-header-footer", f"--print-to-pdf={pages}", report.as_uri())
    content = pages.read_bytes()
    assert content.startswith(b"%PDF-")
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 40

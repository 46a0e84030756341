"""What a reader sees, in a real browser: JupyterLab on chapter 00, and the HTML pages."""

import shutil
import subprocess
import time
import urllib.request

import pytest

from kernelbook.course import chapters, format, pages, serve, stages

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from playwright.sync_api import sync_playwright

BROWSER = stages.chromium()
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome found")
OFFLINE = "--disable-background-networking --disable-component-update --disable-sync"
ARGUMENTS = f"--headless --no-sandbox --disable-gpu --disable-quic --no-first-run {OFFLINE}".split()
FORMULAS = "mathjax"  # the one thing that a page may load from elsewhere
TOKEN = "only-for-this-test"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
        yield browser
        browser.close()


# --- the pages -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return pages.build(chapters.find(), tmp_path_factory.mktemp("build") / "site")


def visit(browser, address):
    """The page, and what it complained about while it loaded."""
    page, complaints = browser.new_page(), []

    def note(message):
        if message.type == "error" and FORMULAS not in message.location["url"]:
            complaints.append(f"{message.text} {message.location['url']}")

    page.on("console", note)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(address, wait_until="load")
    return page, complaints


@pytest.mark.parametrize("path", chapters.find(), ids=lambda path: path.stem)
def test_page_of_a_chapter(browser, site, path):
    page, complaints = visit(browser, (site / f"{path.stem}.html").as_uri())
    assert complaints == []
    images = page.eval_on_selector_all("img", "all => all.map(i => [i.naturalWidth, i.alt])")
    assert all(width > 0 for width, _ in images)
    assert all(alt and alt != pages.MISSING for _, alt in images)
    inside = "all => all.map(d => d.children.length > 1 && !d.open)"
    assert all(page.eval_on_selector_all("details", inside)), "an answer is not folded"
    too_wide = "document.documentElement.scrollWidth > window.innerWidth"
    assert not page.evaluate(too_wide), "the page scrolls sideways"
    page.close()


def test_index_leads_to_every_page(browser, site):
    page, complaints = visit(browser, (site / "index.html").as_uri())
    links = page.eval_on_selector_all("td a", "all => all.map(a => a.getAttribute('href'))")
    assert links == [f"{path.stem}.html" for path in chapters.find()]
    assert complaints == [] and all((site / link).exists() for link in links)
    page.close()


# --- JupyterLab, as `make lab` starts it ---------------------------------------------------


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a JupyterLab on a copy of chapter 00, which it may save at any time."""
    root = tmp_path_factory.mktemp("course")
    (root / serve.START).parent.mkdir()
    shutil.copy(chapters.ROOT / serve.START, root / serve.START)
    port = serve.free_port(8988)
    options = [f"--IdentityProvider.token={TOKEN}", "--LabApp.expose_app_in_browser=True"]
    options += ["--no-browser", f"--LabApp.workspaces_dir={root}/workspaces"]
    environment = chapters.environment(JUPYTER_CONFIG_DIR=f"{root}/config")
    with (root / "log").open("w") as log:
        line = serve.command(port, *options, root=root)
        server = subprocess.Popen(line, env=environment, stdout=log, stderr=log)
    try:
        await_answer(f"http://127.0.0.1:{port}/api?token={TOKEN}", server)
        yield f"http://127.0.0.1:{port}/lab/tree/{serve.START}?token={TOKEN}"
    finally:
        server.terminate()
        server.wait(30)


def await_answer(address, server, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert server.poll() is None, "JupyterLab ended before it answered"
        try:
            return urllib.request.urlopen(address, timeout=5).read()
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"no answer in {seconds} s")


def run_all(page):
    """Runs the notebook in front from top to bottom; its cells with their outputs."""
    page.wait_for_function(
        "window.jupyterapp?.shell.currentWidget?.context?.isReady"
        " && jupyterapp.shell.currentWidget.sessionContext.session?.kernel?.status === 'idle'",
        timeout=90_000,
    )
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    return page.evaluate("jupyterapp.shell.currentWidget.content.model.toJSON().cells")


def test_chapter_00_runs_in_jupyterlab(browser, lab):
    """All cells run without an error, and each widget shows something to move."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(240_000)
    page.goto(lab)
    cells = [cell for cell in run_all(page) if cell["cell_type"] == "code"]
    assert cells and all(cell["execution_count"] for cell in cells)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert [output for output in outputs if output["output_type"] == "error"] == []
    widgets = [output for output in outputs if format.WIDGET in output.get("data", {})]
    assert widgets, "chapter 00 has a guess to write down"
    page.locator(".jp-OutputArea .jupyter-widgets").first.wait_for(state="attached")
    assert page.get_by_text("Error displaying widget").count() == 0
    page.close()

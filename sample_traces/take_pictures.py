"""The pictures of README and docs: the terminal, pages and TensorBoard of the sample runs, as they are shown.

`make pictures` runs it; it needs chromium on PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

HERE = Path(__file__).parent
PICTURES = HERE / "pictures"
RUN = HERE / "convnet-gloo-2ranks"
DDPPROF = [sys.executable, "-m", "ddpprof"]
CHROMIUM = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")


def take_terminal() -> None:
    """The first screen of a run, as SVG."""
    env = {**os.environ, "COLUMNS": "90", "FORCE_COLOR": "1"}
    words = ["report", RUN.relative_to(HERE.parent)]
    done = subprocess.run([*DDPPROF, *words], env=env, cwd=HERE.parent, capture_output=True, text=True, check=True)
    console = Console(record=True, width=90, file=StringIO())
    console.print(Text.from_ansi(done.stdout), soft_wrap=True)
    path = PICTURES / "terminal.svg"
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)  # they are on the web
    path.write_text(console.export_svg(title=f"ddpprof {' '.join(map(str, words))}", code_format=without_fonts))
    print(path.relative_to(HERE.parent), path.stat().st_size // 1000, "kB")


def take(page: Page, name: str, height: int) -> None:
    """The first `height` pixels of what is in view, in 64 colours."""
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height})
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
    print(path.relative_to(HERE.parent), path.stat().st_size // 1000, "kB")


def take_page(page: Page, folder: Path) -> None:
    out = folder / "report.html"
    subprocess.run([*DDPPROF, "report", RUN, "--out", out], check=True)
    page.goto(out.as_uri())
    page.wait_for_timeout(1500)
    take(page, "report", 800)
    page.locator("#timeline").evaluate("section => window.scrollTo(0, section.offsetTop - 60)")
    page.wait_for_timeout(500)
    take(page, "timeline", 640)


def take_tensorboard(page: Page, folder: Path) -> None:
    runs = (RUN, HERE / "transformer-gloo-4ranks")
    command = [*DDPPROF, "tensorboard", *runs, "--logdir", folder / "logs", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        address = next(match[0] for line in server.stdout if (match := re.search(r"http://\S+", line)))
        page.goto(f"{address}#scalars")
        page.wait_for_timeout(6000)
        take(page, "tensorboard", 720)
        server.send_signal(signal.SIGINT)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=CHROMIUM)
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        take_terminal()
        take_page(page, Path(folder))
        take_tensorboard(page, Path(folder))
        browser.close()


main()

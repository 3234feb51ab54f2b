"""Takes the pictures of this folder: `make screens`. Needs Chromium, and Pillow (`pip install pillow`).

`make.py console` takes those of the console only: the demo, served and used in a browser.

Every command runs in a terminal of 100 columns, in a folder with a copy of examples/; what it prints becomes a picture.
Look at each picture before you commit it.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from model_store.demo import install_demo
from tests.service.console.browser import THREE, draw, launch
from tests.service.console.conftest import TOKEN
from tests.service.console.test_console import start_retraining
from tests.service.serving import free_port, in_thread
from tests.terminals import Terminal

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
COLUMNS, SCALE, COLOURS, CONSOLE_COLOURS = 100, 1.4, 32, 200
STYLES = {"1": "font-weight:bold", "2": "color:#6b7280", "31": "color:#b91c1c", "32": "color:#15803d", "33": "color:#a16207"}
STYLES |= {"34": "color:#1d4ed8", "35": "color:#7e22ce", "36": "color:#0e7490", "90": "color:#6b7280"}
PAGE = """<meta charset="utf-8"><style>body{margin:0;background:#fff}
pre{font:15px/1.35 "DejaVu Sans Mono",monospace;color:#1f2328;margin:0;padding:14px 18px;width:100ch;white-space:pre-wrap;
word-break:break-all}
</style><pre>%s</pre>"""
TRAIN = ("--data", "examples/packages", "--impute", "flag", "--activate")
COMMANDS = {
    "check": ("sgf-train", "check", "examples/packages", "--impute", "flag"),
    "error": ("sgf-train", "--data", "examples/packages"),
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        os.environ["PYTHONPATH"] = str(ROOT)
        os.chdir(folder)
        take_console(Path(folder) / "digits")
        if "console" in sys.argv:
            return
        for name, command in COMMANDS.items():
            with terminal(*command) as program:
                program.wait()
                picture(name, screen_text(program, command))
        with terminal("sgf-train", *TRAIN) as program:
            program.read_until(r"packages +[2-4]\d%")
            picture("training", screen_text(program, ("sgf-train", *TRAIN)))
            program.wait(600)
        screenshot("report", Path(folder) / "var/models/packages/1/report.html", 1000, 925)
        serve("sgf-serve", "--model", "packages")


def take_console(store: Path) -> None:
    install_demo(store)
    with in_thread(store, admin_token=TOKEN) as client, sync_playwright() as playwright, launch(playwright) as browser:
        for name, scheme, width, height in CONSOLE:
            options = {
                "viewport": {"width": width, "height": height},
                "reduced_motion": "reduce",
                "device_scale_factor": SCALE,
                "base_url": str(client.base_url),
            }
            with browser.new_context(color_scheme=scheme, **options) as context:
                page = context.new_page()
                page.goto("")
                draw(page, THREE)
                expect(page.get_by_test_id("answer")).to_have_text("3")
                SHOWN.get(name, lambda _page: None)(page)
                page.mouse.move(0, 0)
                page.screenshot(path=FOLDER / f"console_{name}.png")
            reduce(f"console_{name}", CONSOLE_COLOURS)


def show_map(page: Page) -> None:
    page.get_by_role("link", name="Map", exact=True).click()
    expect(page.get_by_text("your drawing")).to_be_visible()
    page.wait_for_timeout(500)


def show_node(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/node/133")
    for neighbor in (379, 120):
        page.get_by_role("button", name=f"Remove the link to {neighbor}").click()
    expect(page.get_by_role("heading", name="Answer, if changed")).to_be_visible()
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(500)


def show_models(page: Page) -> None:
    page.get_by_role("link", name="Models", exact=True).click()
    page.get_by_label("Admin token").fill(TOKEN)
    page.get_by_role("button", name="Unlock").click()
    start_retraining(page, epochs="100")
    expect(page.get_by_test_id("job-state")).to_have_text("succeeded", timeout=240_000)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(500)


def show_health(page: Page) -> None:
    """One minute of requests, ten per second."""
    page.get_by_role("link", name="Health", exact=True).click()
    for number in range(600):
        page.request.post("/predict", data={"nodes": [number]})
        page.wait_for_timeout(100)


CONSOLE = (
    ("ask", "light", 1120, 880),
    ("map", "light", 1120, 760),
    ("node", "dark", 1120, 1180),
    ("phone", "light", 390, 844),
    ("models", "light", 1120, 860),
    ("health", "dark", 1120, 760),
)
SHOWN = {"map": show_map, "node": show_node, "models": show_models, "health": show_health}


def terminal(program: str, *words: str, **environ: str) -> Terminal:
    return Terminal(str(Path(sys.executable).parent / program), *words, columns=COLUMNS, OMP_NUM_THREADS="1", **environ)


def serve(*command: str) -> None:
    port = free_port()
    with terminal(*command, SGF_PORT=str(port)) as program:
        program.read_until("Try it(.|\n)*}'\n\n")
        for node in ("lmms", "lmsm"):
            httpx.post(f"http://127.0.0.1:{port}/predict", json={"nodes": [node]})
        program.read_until("unknown_node.*\n")
        picture("banner", screen_text(program, command).replace(f":{port}", ":8000"))
        program.press_ctrl_c()
        program.wait()


def screen_text(program: Terminal, command: tuple[str, ...]) -> str:
    """The text on the screen: a carriage return starts a line again; of the escape sequences, only colours are kept."""
    text = re.sub(r"\x1b\[[\d;?]*[A-LN-Za-ln-z]", "", program.text)
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")]
    return "\n".join((f"$ {' '.join(command)}", *lines))


def picture(name: str, text: str) -> None:
    colours = re.sub(r"\x1b\[([\d;]*)m", lambda code: span(code[1]), html.escape(text))
    page = Path(f"{name}.html")
    page.write_text(PAGE % colours)
    lines = sum(1 + len(re.sub(r"\x1b\[[\d;]*m", "", line)) // (COLUMNS + 1) for line in text.split("\n"))
    screenshot(name, page, 950, 28 + round(20.25 * lines), SCALE)


def span(codes: str) -> str:
    styles = ";".join(STYLES[code] for code in codes.split(";") if code in STYLES)
    return f'<span style="{styles}">' if styles else "</span>"


def screenshot(name: str, page: Path, width: int, height: int, scale: float = 1) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("needs Chromium: apt-get install chromium")
    target = FOLDER / f"{name}.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-lcd-text"]
    options += [f"--force-device-scale-factor={scale}", f"--window-size={width},{height}", f"--screenshot={target}"]
    subprocess.run([chromium, *options, page.resolve().as_uri()], check=True, capture_output=True)
    reduce(name, COLOURS)


def reduce(name: str, count: int) -> None:
    """Fewer colours: a tenth of the bytes."""
    target = FOLDER / f"{name}.png"
    method = Image.Quantize.MAXCOVERAGE if count < CONSOLE_COLOURS else Image.Quantize.MEDIANCUT
    colours = Image.open(target).convert("RGB").quantize(count, method, dither=Image.Dither.NONE)
    colours.save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()

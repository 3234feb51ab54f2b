"""Accessibility by axe-core; keys; names that are markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from model_store import NodeIds, Store
from sgformer import Graph
from tests.model_store.samples import small_contents
from tests.service.console.browser import draw, opened
from tests.service.console.conftest import TOKEN
from tests.service.named import IDS, SCHEMA, named_contents
from tests.service.serving import in_thread

KEY = "k" * 20
HOSTILE = '<img src=x onerror="window.hacked=1">'
READY = {"#/ask": ".pad", "#/map": ".legend", "#/node/92": ".ego", "#/models": "table", "#/health": ".plots"}

MARK_AT = """point => {
    const mark = document.querySelector(".map-mark"), {e, f} = new DOMMatrix(mark.style.transform);
    const expected = window.sgfMap?.toScreen(...point);
    return expected && Math.hypot(expected[0] - e, expected[1] - f) < 0.5 && expected;
}"""
"""The pixel of a point of the map as soon as the mark is there, to half a pixel."""


def faults(page: Page, *rules: str) -> list[str]:
    """By default of all rules."""
    violations = Axe().run(page, options={"runOnly": list(rules)} if rules else {}).response["violations"]
    return [
        f"{fault['id']}: {fault['nodes'][0]['html']}" for fault in violations if fault["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize(("scheme", "rules"), [("light", ()), ("dark", ("color-contrast",))])
def test_axe_finds_no_serious_fault(visit: Any, scheme: str, rules: tuple[str, ...]) -> None:
    """The themes differ in colours only."""
    with visit("#/ask", color_scheme=scheme) as page:
        for view, part in READY.items():
            page.goto(f"{page.url.partition('#')[0]}{view}")
            expect(page.locator(part).first).to_be_visible()
            if view == "#/ask":
                draw(page)
                expect(page.get_by_test_id("answer")).to_be_visible()
            if view == "#/models":
                page.get_by_label("Admin token").fill(TOKEN)
                page.get_by_role("button", name="Unlock").click()
                page.get_by_role("button", name="Roll back").click()
                expect(page.get_by_role("dialog")).to_be_visible()
                assert faults(page, *rules) == [], "the dialog"
                page.keyboard.press("Escape")
            assert faults(page, *rules) == [], view


def test_the_page_can_be_used_without_a_mouse(visit: Any) -> None:
    with visit("#/ask") as page:
        expect(page.get_by_test_id("pad")).to_be_visible()
        page.keyboard.press("Tab")
        expect(page.get_by_text("Skip to the content")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("main")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_role("radio", name="Draw a digit")).to_be_focused()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Tab")
        page.keyboard.type("92")
        page.keyboard.press("Enter")
        expect(page.get_by_test_id("answer")).to_have_text("1")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model whose classes, nodes and features have names that are markup, behind a key."""
    root: Path = tmp_path_factory.mktemp("hostile")
    ids = [HOSTILE, *IDS[1:]]
    contents = named_contents(
        classes=(HOSTILE, "<script>window.hacked=1</script>", "</td>&amp;"), node_ids=NodeIds.build(ids)
    )
    Store(root).publish("fans", contents, onnx=False, activate=True)
    with in_thread(root, api_keys=(KEY,)) as client:
        yield client


def test_a_key_is_asked_for_and_kept_in_memory_only(browser: Browser, hostile: httpx.Client) -> None:
    with opened(browser, f"{hostile.base_url}/") as page:
        page.get_by_label("API key").fill("wrong" * 4)
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_role("alert")).to_contain_text("does not know this key")
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_label("Id of a node")).to_be_visible()
        stored = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")
        assert KEY not in stored
        page.reload()
        expect(page.get_by_label("API key")).to_be_visible()


def test_names_that_are_markup_are_text(browser: Browser, hostile: httpx.Client) -> None:
    with opened(browser, f"{hostile.base_url}/") as page:
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Continue").click()
        page.get_by_label("Id of a node").fill("ONERROR")
        expect(page.locator("datalist option")).to_have_attribute("value", HOSTILE)  # the search suggests it
        page.get_by_label("Id of a node").fill(HOSTILE)
        page.get_by_role("button", name="Ask").click()
        expect(page.locator(".bars")).to_contain_text(HOSTILE)
        page.get_by_role("link", name="Open the node").click()
        expect(page.get_by_role("heading", name=f"Node {HOSTILE}")).to_be_visible()
        page.get_by_role("link", name="fan-", exact=False).first.click()
        expect(page.get_by_role("heading", name="Node fan-")).to_be_visible()
        assert page.locator("main img, main script").count() == 0
        assert page.evaluate("window.hacked") is None


def test_the_asked_node_lands_on_the_map(browser: Browser, hostile: httpx.Client) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    plane = hostile.get("/map", headers=headers).json()
    body = {"nodes": ["fan-7"], "embeddings": True}
    embedding = hostile.post("/predict", json=body, headers=headers).json()["predictions"][0]["embedding"]
    place = np.array(plane["components"]) @ (np.array(embedding) - plane["mean"])
    row = plane["ids"].index("fan-7")
    assert place == pytest.approx([plane["x"][row], plane["y"][row]], abs=1e-3)
    with opened(browser, f"{hostile.base_url}/") as page:
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Continue").click()
        page.get_by_label("Id of a node").fill("fan-7")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_test_id("answer")).to_be_visible()
        page.get_by_role("link", name="Map").click()
        mark = page.get_by_test_id("asked")
        expect(mark).to_have_text("node fan-7")
        drawn = page.wait_for_function(MARK_AT, arg=place.tolist())  # the map is drawn later than the mark is in the page
        expected = drawn.json_value()
        assert faults(page) == []
        page.get_by_role("button", name=HOSTILE).click()
        expect(page.get_by_role("button", name=HOSTILE)).to_have_attribute("aria-pressed", "true")

        page.get_by_test_id("map").click(position={"x": expected[0], "y": expected[1]})
        expect(page.get_by_role("heading", name="Node fan-7")).to_be_visible()
        expect(page.get_by_test_id("similar").locator("li")).to_have_count(10)
        parts = page.get_by_test_id("branches").get_by_role("listitem")
        expect(parts).to_have_count(4)


def test_a_new_node_is_described_by_names(browser: Browser, hostile: httpx.Client) -> None:
    with opened(browser, f"{hostile.base_url}/") as page:
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Continue").click()
        page.get_by_text("A new node").click()
        for name, value in (("days", "100"), ("joined", "2024-01-31")):
            page.get_by_label(name, exact=True).fill(value)
        page.get_by_label("partner").select_option("true")
        page.get_by_label("genre").select_option("rock")
        page.get_by_label("Neighbours").fill("fan-7, a b")
        page.get_by_role("button", name="Ask").click()
        features = {"days": 100, "partner": True, "genre": "rock", "joined": "2024-01-31"}
        assert set(features) < {column.name for column in SCHEMA.columns}
        question = {"new_nodes": [{"id": "x", "features": features, "neighbors": ["fan-7", "a b"]}]}
        reply = hostile.post("/predict", json=question, headers={"authorization": f"Bearer {KEY}"}).json()
        expect(page.get_by_test_id("answer")).to_have_text(reply["predictions"][0]["class"])
        page.get_by_role("button", name="Why this answer?").click()
        expect(page.get_by_test_id("features")).to_contain_text("days")
        expect(page.get_by_test_id("links")).to_contain_text("Node a b")
        assert faults(page) == []


def test_of_many_neighbours_those_with_the_largest_effects_are_shown(browser: Browser, tmp_path: Path) -> None:
    rng, others = np.random.default_rng(1), np.arange(1, 60)
    graph = Graph.build(rng.normal(size=(60, 5)).astype(np.float32), np.stack([np.zeros_like(others), others]))
    Store(tmp_path).publish("demo", small_contents(graph=graph), onnx=False, activate=True)
    with in_thread(tmp_path) as client, opened(browser, f"{client.base_url}/#/node/0") as page:
        expect(page.get_by_text("30 of 59, those with the largest effects")).to_be_visible()
        answer = client.post("/explain", json={"node": 0, "top": 30}).json()
        shown = page.get_by_test_id("neighbors").locator("tbody a").all_inner_texts()
        assert set(map(int, shown)) == {entry["node"] for entry in answer["neighbors"]} != set(range(1, 31))


@pytest.mark.parametrize(("task", "outputs"), [("multilabel", 3), ("regression", 1)])
def test_other_tasks_are_shown_too(browser: Browser, tmp_path: Path, task: str, outputs: int) -> None:
    names = ("x", "y", "z") if task == "multilabel" else None
    contents = small_contents(config={"task": task, "out_features": outputs}, classes=names)
    Store(tmp_path).publish("demo", contents, onnx=False, activate=True)
    with in_thread(tmp_path) as client, opened(browser, f"{client.base_url}/#/node/3") as page:
        prediction = client.post("/predict", json={"nodes": [3]}).json()["predictions"][0]
        if task == "multilabel":
            expect(page.get_by_test_id("answer")).to_have_text(", ".join(prediction["classes"]) or "no label")
            expect(page.locator(".bars li")).to_have_count(3)
        else:
            assert float(page.get_by_test_id("answer").inner_text()) == pytest.approx(prediction["value"], rel=1e-3)
        expect(page.get_by_test_id("branches").get_by_role("listitem")).to_have_count(4)
        page.get_by_role("button", name="Remove the link to").first.click()
        expect(page.get_by_role("heading", name="Answer, if changed")).to_be_visible()
        page.get_by_role("link", name="Map", exact=True).click()
        expect(page.get_by_test_id("asked")).to_have_text("node 3")
        expect(page.get_by_role("group", name="Groups").get_by_role("button").first).to_be_visible()


def test_an_address_that_is_not_valid_is_no_crash(visit: Any) -> None:
    with visit("#/node/%E0%A4%A") as page:
        expect(page.get_by_role("alert")).to_contain_text("is not in the graph")

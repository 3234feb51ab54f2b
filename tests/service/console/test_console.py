"""The console in a real browser: ask, what-if, commit, retrain, roll back."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, Route, expect

from tests.service.console.browser import confirm, draw
from tests.service.console.conftest import TOKEN, WRITE_KEY
from tests.service.serving import Running


def answer(page: Page) -> Any:
    return page.get_by_test_id("answer")


def test_a_drawn_digit_is_answered(visit: Any, demo: Running) -> None:
    with visit("") as page:
        draw(page)
        expect(answer(page)).to_have_text("3")
        expect(page.get_by_text("exact", exact=True)).to_be_visible()
        expect(page.locator(".thumbs li")).to_have_count(8)
        page.get_by_role("link", name="Show it on the map").click()
        expect(page.get_by_text("your drawing")).to_be_visible()
        page.go_back()
        expect(answer(page)).to_have_text("3")  # the drawing is still there
        draw(page)
        page.get_by_role("button", name="Clear").click()
        expect(page.get_by_text("Draw on the board")).to_be_visible()


def test_the_answer_for_a_drawing_is_explained(visit: Any, demo: Running) -> None:
    with visit("") as page:
        draw(page)
        expect(answer(page)).to_have_text("3")
        with page.expect_request("**/explain") as request:
            page.get_by_role("button", name="Why this answer?").click()
        explanation = demo.client.post("/explain", json=request.value.post_data_json).json()
        links = page.get_by_test_id("links").get_by_role("listitem")
        expect(links).to_have_count(8)
        strongest = explanation["neighbors"][0]
        expect(links.first).to_contain_text(f"Node {strongest['node']}")
        expect(links.first).to_contain_text(f"{abs(strongest['effect'][3]):.2f}")
        expect(page.get_by_test_id("branches").get_by_role("listitem")).to_have_count(4)
        expect(page.get_by_test_id("features").get_by_role("listitem")).to_have_count(8)
        draw(page, [(0.5, 0.2), (0.5, 0.8)])
        expect(page.get_by_test_id("links")).to_have_count(0)  # of another drawing


def test_a_digit_can_be_drawn_with_keys(visit: Any) -> None:
    """A 1: the pen goes down in a straight line."""
    with visit("#/ask") as page:
        page.get_by_test_id("pad").focus()
        page.keyboard.press(" ")
        for _ in range(4):
            page.keyboard.press("ArrowDown")
        expect(answer(page)).to_have_text("1")
        page.keyboard.press("Delete")
        expect(page.get_by_text("Draw on the board")).to_be_visible()


def test_a_node_of_the_graph_and_a_new_one_are_answered(visit: Any, demo: Running) -> None:
    with visit("#/ask") as page:
        page.get_by_text("A node of the graph").click()
        page.get_by_label("Id of a node").fill("92")
        page.get_by_role("button", name="Ask").click()
        expect(answer(page)).to_have_text("1")
        page.get_by_label("Id of a node").fill("5000000")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("alert")).to_contain_text("node 5000000 is not in the graph")
        page.get_by_text("A new node").click()
        page.get_by_label("Features").fill("0.5 0.5")
        page.get_by_role("button", name="Ask").click()
        expect(page.get_by_role("alert")).to_contain_text("The list has 2 values, expected 64")
        page.get_by_label("Features").fill("12:1 20:1 28:1 36:1 44:1 52:1")
        page.get_by_label("Neighbours").fill("92, 84")
        page.get_by_role("button", name="Ask").click()
        features = {"indices": [12, 20, 28, 36, 44, 52], "values": [1] * 6}
        body = {"new_nodes": [{"id": "x", "features": features, "neighbors": [92, 84]}]}
        expected = demo.client.post("/predict", json=body).json()["predictions"][0]
        expect(answer(page)).to_have_text(expected["class"])


def test_a_removed_link_and_a_changed_feature_change_the_answer(visit: Any, demo: Running) -> None:
    with visit("#/node/92") as page:
        bar = page.locator(".bars li").nth(1).locator(".bar-value")
        before = demo.client.post("/predict", json={"nodes": [92]}).json()["predictions"][0]["probabilities"][1]
        expect(bar).to_have_text(f"{100 * before:.1f} %")
        page.get_by_role("button", name="Remove the link to 84").click()
        page.get_by_role("button", name="Remove the link to 465").click()
        page.get_by_label("Feature", exact=True).fill("12")
        features = demo.client.get("/nodes/92").json()["features"]
        expect(page.get_by_label("New value")).to_have_attribute("placeholder", f"now {features[12]:g}")
        page.get_by_label("New value").fill("0")
        page.get_by_role("button", name="Change", exact=True).click()
        expect(page.get_by_role("heading", name="Answer, if changed")).to_be_visible()
        features[12] = 0
        steps = [{"op": "remove_edge", "source": 92, "target": target} for target in (84, 465)]
        steps.append({"op": "set_features", "id": 92, "features": features})
        reply = demo.client.post("/predict", json={"nodes": [92], "assuming": steps}).json()["predictions"][0]
        assert f"{reply['probabilities'][1]:.3f}" != f"{before:.3f}"
        expect(bar).to_have_text(f"{100 * reply['probabilities'][1]:.1f} %")
        page.get_by_role("button", name="Discard").click()
        expect(bar).to_have_text(f"{100 * before:.1f} %")
        assert demo.client.get("/graph").json()["sequence"] == 0, "nothing was kept"


def test_a_drawn_digit_and_a_change_are_committed(visit: Any, demo: Running) -> None:
    with visit("#/ask") as page:
        draw(page)
        page.get_by_role("button", name="Add it to the graph").click()
        page.get_by_label("Write key").fill("wrong" * 4)
        page.get_by_role("button", name="Use key").click()
        page.get_by_label("Label").select_option("3")
        page.get_by_role("button", name="Add to the graph").click()
        confirm(page, "Add the node")
        expect(page.get_by_role("alert")).to_contain_text("the key is not valid")
        page.get_by_role("button", name="Use another key").click()
        page.get_by_label("Write key").fill(WRITE_KEY)
        page.get_by_role("button", name="Use key").click()
        expect(page.get_by_label("Id", exact=True)).to_have_value("1796")
        page.get_by_role("button", name="Add to the graph").click()
        confirm(page, "Add the node")
        expect(page.get_by_role("link", name="1796")).to_be_visible()
        page.get_by_role("button", name="Clear").click()
        draw(page)
        page.get_by_role("button", name="Add it to the graph").click()
        expect(page.get_by_label("Id", exact=True)).to_have_value("1797")
        expect(page.locator(".thumbs li").first).to_contain_text("node 1796")  # the same drawing
        page.locator(".thumbs a").first.click()
        expect(page.get_by_role("heading", name="Node 1796")).to_be_visible()
        expect(page.get_by_text("labelled 3")).to_be_visible()
        first = demo.client.get("/graph/nodes/1796").json()
        assert (first["degree"], first["class"]) == (8, "3")

        page.get_by_role("button", name=f"Remove the link to {first['neighbors'][0]}", exact=True).click()
        page.get_by_role("button", name="Commit to the graph").click()
        confirm(page, "Commit")
        expect(page.get_by_text("7 neighbours")).to_be_visible()
        expect(page.get_by_text("The changes are in the graph, at sequence 2")).to_be_visible()
        assert demo.client.get("/graph/nodes/1796").json()["neighbors"] == first["neighbors"][1:]


def test_a_retraining_runs_is_followed_and_rolled_back(visit: Any, demo: Running) -> None:
    with visit("#/models") as page:
        page.get_by_label("Admin token").fill("wrong" * 4)
        page.get_by_role("button", name="Unlock").click()
        expect(page.get_by_role("alert")).to_contain_text("the key is not valid")
        page.get_by_label("Admin token").fill(TOKEN)
        page.get_by_role("button", name="Unlock").click()

        start_retraining(page, epochs="12")
        state = page.get_by_test_id("job-state")
        expect(state).to_have_text("succeeded", timeout=240_000)
        expect(page.get_by_text("epoch 12 of at most 12")).to_be_visible()
        live = page.get_by_test_id("versions").locator("tr", has=page.locator(".tag.live")).get_by_role("cell").first
        expect(live).to_contain_text("2")

        page.get_by_role("button", name="Compare version 1").click()
        expect(page.get_by_role("row", name="training.epochs 12 100")).to_be_visible()

        page.get_by_role("button", name="Roll back").click()
        confirm(page, "Back")
        page.get_by_role("button", name="Roll back").click()
        confirm(page, "Roll back")
        expect(page.get_by_text("Version 1 is live")).to_be_visible()
        expect(live).to_contain_text("1")
        expect(page.get_by_text("What differs")).to_have_count(0)  # the version that was compared is live
        assert demo.client.get("/models").json()["rolled_back"]["to"] == 1
        demo.client.post("/admin/models/activate", json={"version": 2}, headers={"authorization": f"Bearer {TOKEN}"})
        expect(page.get_by_role("link", name="digits v2")).to_be_visible()  # the page follows what others do

        start_retraining(page, epochs="1000000")
        expect(state).to_have_text("running", timeout=120_000)
        page.get_by_role("button", name="Cancel the job").click()
        confirm(page, "Cancel the job")
        expect(state).to_have_text("cancelled")
        expect(page.get_by_role("button", name="Retrain …")).to_be_enabled()


def start_retraining(page: Page, epochs: str) -> None:
    page.get_by_label("Epochs").fill(epochs)
    page.get_by_label("Goes live").select_option("always")
    page.get_by_role("button", name="Retrain …").click()
    confirm(page, "Start")


def test_health_follows_the_metrics(visit: Any, demo: Running) -> None:
    with visit("#/health") as page:
        expect(page.get_by_text("ready", exact=True)).to_be_visible()
        panels = page.locator(".plots .card")
        expect(panels).to_have_count(9)
        before = page.get_by_text("since the start").first.text_content()
        demo.client.post("/predict", json={"nodes": [1]})
        expect(page.get_by_text("since the start").first).not_to_have_text(before or "")


RED_PIXEL = """() => {
    if (!window.sgfMap) return false;
    const { canvas } = sgfMap, [x, y] = sgfMap.toScreen(0, 0), ratio = canvas.width / canvas.clientWidth;
    const [red, green, , alpha] = canvas.getContext("2d").getImageData(x * ratio, y * ratio, 1, 1).data;
    return red > 200 && green < 100 && alpha === 255;
}"""
"""The point at (0, 0) of the map is red."""


def test_wrong_predictions_lie_above_right_ones(visit: Any, demo: Running) -> None:
    """Three nodes, two of them at the same place. The first is wrong, and would be covered by the second."""
    plane = demo.client.get("/map?limit=3").json()
    plane |= {"x": [0, 0, 1], "y": [0, 0, 0], "labels": [1, 2, 3], "predictions": [0, 2, 3]}
    with visit("#/ask") as page:
        page.route("**/map?*", lambda route: route.fulfill(json=plane))
        page.get_by_role("link", name="Map", exact=True).click()
        page.get_by_text("Error", exact=True).click()
        expect(page.get_by_role("button", name="wrong 1")).to_be_visible()
        page.wait_for_function(RED_PIXEL)  # the map is drawn later than its legend


def test_a_request_that_misses_its_deadline_is_sent_again(visit: Any) -> None:
    refused = []

    def refuse_first(route: Route) -> None:
        if refused:
            route.fallback()
        else:
            refused.append(route.request.url)
            route.fulfill(status=503, json={"error": "no answer within 2 s", "code": "deadline", "details": {}})

    with visit("#/ask") as page:
        page.route("**/map?*", refuse_first)
        page.get_by_role("link", name="Map", exact=True).click()
        expect(page.get_by_test_id("map")).to_be_visible()
        assert len(refused) == 1


def test_the_theme_follows_the_system_and_the_switch(visit: Any) -> None:
    def color(page: Page) -> Any:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    with visit("#/health", color_scheme="dark") as page:
        dark = color(page)
        page.get_by_role("button", name="Theme: system").click()
        assert color(page) != dark
        page.get_by_role("button", name="Theme: light").click()
        assert color(page) == dark


def test_a_phone_needs_no_sideways_scrolling(visit: Any) -> None:
    with visit("#/ask", viewport={"width": 360, "height": 740}, has_touch=True) as page:
        for view, part in (("ask", ".pad"), ("node/92", ".ego"), ("models", "table"), ("health", ".plots")):
            page.goto(f"{page.url.partition('#')[0]}#/{view}")
            expect(page.locator(part).first).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
            if view == "health":
                expect(page.get_by_role("region", name="Drift").first).to_be_visible()
            for table in page.locator(".scroll").all():
                assert table.evaluate("part => part.scrollWidth <= part.clientWidth"), (
                    view,
                    table.get_attribute("aria-label"),
                )

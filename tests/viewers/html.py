"""Opens pages of `report/html` in Chromium and uses them as people do.

    html.py walk PAGE FOLDER         clicks through everything, and tells what was there to see
    html.py keys PAGE                goes from one thing to the next with the tab key alone
    html.py hostile PAGE FOLDER      the same page with names that are markup, 10 kB long, or worse
    html.py large PAGE FOLDER        a page of 10,000 callsites of 40 frames, and how long it takes to be drawn
    html.py plain PAGE FOLDER        the same page without a history
    html.py damaged PAGE FOLDER      the same page with other data, and in a browser that is too old: what it says then
    html.py pictures PAGE FOLDER     screenshots at two widths, light and dark
"""

import json
import os
import random
import re
import sys

import browser
from report_page import DATA, box, chosen, ended, opened, rewritten, text, watch, whole

HOSTILE = [
    "</script><script>window.owned = 1</script>",
    "<img src=x onerror=window.owned=2>",
    "\"'><svg onload=window.owned=3>",
    "javascript:window.owned=4",
    "{{script}} ${window.owned=5} \u2028\u202e-->",
    "a\nb\0c " + "long<b>" * 1500,
]


def column(page, number, rows=10):
    cells = page.locator(f"#table-body > tr:not(.details) > td:nth-child({number})").all_inner_texts()
    return cells[:rows]


def views(page, answer):
    answer["views"] = {}
    for view in ["live-count", "alloc-bytes", "alloc-count", "live-bytes"]:
        page.click(f"#view-{view}")
        page.click("#flame-reset", force=True)
        answer["views"][view] = {"whole": whole(page), "card": text(page, f"#view-{view} strong"), "subject": text(page, "#flame-subject")}


def flame(page, answer):
    scroller = page.locator("#flame-scroller")
    scroller.hover(position=box(page, 1, 0.1))
    answer["tip"] = text(page, "#tip")
    scroller.click(position=box(page, 2, 0.1))
    answer["zoomed"] = {"name": chosen(page), "whole": whole(page)}
    page.click("#flame-reset")
    answer["reset"] = {"name": chosen(page), "whole": whole(page)}
    # The same by keys: into the widest child, and out again.
    scroller.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    answer["by_keys"] = chosen(page)
    page.keyboard.press("Enter")
    answer["reset_is_offered"] = page.locator("#flame-reset").is_enabled()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("Branch<")
    answer["matched"] = text(page, "#matched")
    page.fill("#search", "no such function")
    answer["unmatched"] = text(page, "#matched")
    page.fill("#search", "/[/")
    answer["refused"] = text(page, "#query-error")
    page.fill("#search", "")
    page.click("#flame-reverse")
    scroller.focus()
    page.keyboard.press("ArrowDown")
    answer["reversed"] = {"pressed": page.get_attribute("#flame-reverse", "aria-pressed"), "first": chosen(page)}
    page.keyboard.press("f")
    answer["focus"] = {"text": text(page, "#flame-focus"), "whole": 0}
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Home")
    answer["focus"]["whole"] = whole(page)
    page.click("#flame-focus button")
    page.click("#flame-reverse")
    page.select_option("#flame-colour", "kind")
    answer["legend"] = text(page, "#flame-legend")
    page.select_option("#flame-colour", "module")


def compared_detail(page):
    """The line on the widest box below all."""
    scroller = page.locator("#flame-scroller")
    scroller.hover(position=box(page, 0))
    return text(page, "#tip span")


def periods(page, answer):
    chart = page.locator("#timeline-chart .u-over")
    bounds = chart.bounding_box()
    at = lambda share: {"x": bounds["width"] * share, "y": bounds["height"] / 2}
    chart.hover(position=at(0.9))
    answer["value"] = text(page, "#timeline-value")
    page.click("#view-alloc-bytes")
    chart.click(position=at(0.98))
    answer["last_window"] = {"text": text(page, "#period-status"), "whole": whole(page)}
    answer["points"] = page.locator("#period-from option, #period-to option").all_inner_texts()
    page.click("#period-previous")
    answer["window_before"] = {"text": text(page, "#period-status"), "whole": whole(page)}
    page.click("#period-all")
    answer["all_again"] = whole(page)
    bounds = chart.bounding_box()
    page.mouse.move(bounds["x"] + bounds["width"] * 0.02, bounds["y"] + 50)
    page.mouse.down()
    page.mouse.move(bounds["x"] + bounds["width"] * 0.5, bounds["y"] + 60, steps=4)
    page.mouse.up()
    answer["dragged"] = [page.input_value("#period-from"), page.input_value("#period-to"), text(page, "#period-status")]
    page.click("#period-all")
    page.click("#view-live-bytes")
    page.click("#compare")
    answer["compared"] = {
        "text": text(page, "#period-status"),
        "detail": compared_detail(page),
        "legend": text(page, "#flame-legend"),
        "head": text(page, "#table-head th"),
        "growth": column(page, 1),
    }
    page.check("#picks-base")
    chart.click(position=at(0.98))
    answer["compared"]["base"] = [page.input_value("#base-from"), page.input_value("#base-to")]
    page.click("#compare")
    page.click("#period-all")


def selections(page, answer):
    answer["targets"] = page.locator("#target option").all_inner_texts()
    answer["by_target"] = []
    for at in range(len(answer["targets"]) - 1):
        page.select_option("#target", str(at))
        page.click("#flame-reset", force=True)
        answer["by_target"].append({"whole": whole(page), "card": text(page, "#view-live-bytes strong"), "callsites": text(page, "#table-count")})
    page.select_option("#target", "-1")
    answer["groups"] = page.locator("#group option").all_inner_texts()
    page.select_option("#group", "command")
    page.locator("#flame-scroller").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    answer["group"] = chosen(page)
    page.select_option("#group", "")


def table(page, answer):
    head = lambda name: page.locator("#table-head th", has_text=name)
    button = lambda name: head(name).locator("button")
    button("Mean size").click()
    answer["sorted"] = {"state": head("Mean size").get_attribute("aria-sort"), "down": column(page, 6)}
    button("Mean size").click()
    answer["sorted"]["up"] = column(page, 6)
    answer["sorted"]["focus"] = page.evaluate("() => document.activeElement.dataset.column")
    page.locator("#table-head button[data-column=live_bytes]").click()
    page.fill("#search", "stores")
    answer["filtered"] = text(page, "#table-count")
    page.fill("#search", "")
    first = page.locator("#table-body .where").first
    first.focus()
    page.keyboard.press("Enter")
    answer["opened"] = {
        "expanded": page.locator("#table-body .where").first.get_attribute("aria-expanded"),
        "stack": page.locator(".callsite li").all_inner_texts(),
        "histograms": page.locator(".histogram figcaption").all_inner_texts(),
        "bars": page.locator(".histogram tr").count(),
        "facts": text(page, ".callsite dl"),
    }


def walk(path, folder):
    answer = {}
    with browser.page(1280, 900) as page:
        watch(page)
        answer["drawn_ms"] = opened(page, path)
        answer["title"] = page.title()
        answer["facts"] = text(page, "#facts")
        views(page, answer)
        flame(page, answer)
        periods(page, answer)
        selections(page, answer)
        table(page, answer)
        answer["health"] = text(page, "#health")
        answer["leaks"] = text(page, "#leaks")
        page.click("#theme")
        page.wait_for_selector("html[data-theme=light]", state="attached")
        answer["theme"] = [page.get_attribute("html", "data-theme"), text(page, "#theme")]
        browser.screenshot(page, os.path.join(folder, "walked.png"))
        ended(page, answer)
    return answer


def keys(path):
    """What is reached, in order: ids, or what comes nearest; and whether each shows that it is."""
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, path)
        reached, unseen = [], []
        for _ in range(80):
            page.keyboard.press("Tab")
            name, seen, label = page.evaluate(
                """() => {
                    const at = document.activeElement;
                    const style = getComputedStyle(at);
                    const label = at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent;
                    return [at.id || at.dataset.column || at.className || at.getAttribute("href") || at.tagName,
                            style.outlineStyle !== "none", label.trim() !== ""];
                }"""
            )
            if reached and name == "BODY":
                break
            reached.append(name)
            if not seen or not label:
                unseen.append(name)
        page.locator("#view-live-bytes").focus()
        page.keyboard.press("ArrowRight")
        checked = page.evaluate("() => [document.activeElement.id, document.activeElement.getAttribute('aria-checked')]")
        return ended(page, {"reached": reached, "unseen": unseen, "arrow": checked})


def hostile(path, folder):
    def change(data):
        some = lambda at: HOSTILE[at % len(HOSTILE)] + str(at)
        data["strings"] = [some(at) for at in range(len(data["strings"]))]
        data["gaps"] = [[some(at) for at, _ in enumerate(gap)] for gap in data["gaps"]]
        data["header"].update(subject=some(0), interval=some(1), losses=some(2), beginnings=[some(3), some(0)], window=None)
        for at, target in enumerate(data["targets"]):
            target.update(name=some(at), command=some(at + 1), cgroup=some(at + 2))
            target["heaps"].append({**target["heaps"][0], "name": some(1)})
            target["heaps"][0]["name"] = some(0)
            columns = target["callsites"]
            columns["heap"] = [number % 2 for number in range(columns["count"])]
            for thread in target["threads"]:
                thread["name"] = some(thread["tid"])
            target["leaks"] = {
                "span": 1000, "too_short": False, "count": 1, "suppressed_count": 0, "suppressed_bytes": 0,
                "candidates": [{"callsite": 0, "bytes_per_second": 5, "margin": 1, "old_share": 0.5, "survival": None}],
            }
        for at, hook in enumerate(data["health"]["hooks"]):
            hook.update(function=some(at), module=some(at + 1), error=some(at + 2), backend=some(at), instruction=some(at))
        data["health"].update(
            lost=[{"reason": some(0), "count": 3, "meaning": None, "remedy": None}],
            frame_pointer_modules=HOSTILE, skipped=HOSTILE, reached=HOSTILE, interval_changes=HOSTILE,
            unfound=[{"heap": some(0), "function": some(1), "modules": HOSTILE, "required": True}],
        )
        return data

    copy = rewritten(path, folder, "hostile.html", change)
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, copy)
        scroller = page.locator("#flame-scroller")
        scroller.hover(position=box(page, 1))
        scroller.click(position=box(page, 2))
        page.click("#flame-reset")
        answer = {"heaps": page.locator("#heap option").count(), "all": whole(page), "by_heap": []}
        answer["note"] = text(page, "#view-live-bytes .view-note")
        answer["accuracy"] = text(page, "#health .card:has-text('Accuracy')")
        for at in range(1, answer["heaps"]):
            page.select_option("#heap", index=at)
            answer["by_heap"].append(whole(page))
        page.select_option("#heap", index=0)
        page.select_option("#group", "heap")
        page.fill("#search", "<img")
        answer["matched"] = text(page, "#matched")
        page.fill("#search", "")
        page.locator("#table-body .where").first.click()
        more = page.locator(".callsite li .more")
        while more.count() > 0:
            more.first.click()
        answer["longest"] = page.evaluate("() => Math.max(...[...document.querySelectorAll('.callsite code')].map(code => code.textContent.length))")
        page.locator("#leaks-body .where").first.click()
        answer["made"] = page.locator("img, #page svg[onload], iframe, object").count()
        answer["scripts"] = page.locator("script").count()
        browser.screenshot(page, os.path.join(folder, "hostile.png"))
        return ended(page, answer)


def large(path, folder, callsites=10_000, depth=40, functions=20_000):
    """Made up: outer frames from few functions, inner ones from ever more."""
    draw = random.Random(42)
    children, back, frame = {}, [], []

    def node(parent, of):
        known = children.get((parent, of))
        if known is None:
            frame.append(of)
            known = children[parent, of] = len(frame)
            back.append(known - parent)
        return known

    def change(data):
        nodes = []
        for _ in range(callsites):
            at = 0
            for level in range(depth):
                at = node(at, draw.randrange(min(functions, 1 + 3 * level * level)))
            nodes.append(at)
        data["strings"] = [f"app::part{at % 97}::Widget<T{at}>::make_thing_{at}(int, char const*)" for at in range(functions)]
        data["strings"] += [f"/usr/lib/libpart{at}.so.1" for at in range(37)]
        numbers = list(range(functions))
        data["functions"] = {"name": numbers, "short": numbers, "module": [functions + 1 + at % 37 for at in numbers], "kind": [at % 3 for at in numbers]}
        data["frames"] = {"function": numbers, "file": [0] * functions, "line": [0] * functions, "inlined": [0] * functions, "offset": [at * 16 for at in numbers]}
        data["nodes"] = {"back": back, "frame": frame}
        data["gaps"] = [[]]
        data["header"]["nothing"] = []
        target = data["targets"][0]
        target.update(threads=[], leaks=None)
        amounts = [draw.randrange(1, 5000) for _ in range(callsites)]
        none = {"count": [], "bucket": [], "blocks": []}
        columns = {name: [] for name in target["callsites"]}
        columns.update(count=callsites, node=nodes, live_bytes=amounts, alloc_bytes=amounts, live_count=[1] * callsites, alloc_count=[1] * callsites)
        columns.update(sizes=none, ages=none, lifetimes=none)
        target["callsites"] = columns
        for column in target["history"]["changes"]:
            target["history"]["changes"][column] = []
        data["targets"] = [target]
        return data

    copy = rewritten(path, folder, "large.html", change)
    answer = {"nodes": len(frame), "bytes": os.path.getsize(copy), "drawn_ms": []}
    for width in (1280, 390):
        with browser.page(width, 900) as page:
            watch(page)
            answer["drawn_ms"].append(opened(page, copy))
            page.fill("#search", "make_thing_12")
            answer["matched"] = text(page, "#matched")
            page.fill("#search", "")
            page.click("#flame-reverse")
            answer["all"] = whole(page)
            answer["rows"] = page.locator("#table-body tr").count()
            page.click("#table-more")
            answer["more_rows"] = page.locator("#table-body tr").count()
            ended(page, answer)
    return answer


def plain(path, folder):
    def change(data):
        for target in data["targets"]:
            for columns in target["history"].values():
                for name in columns:
                    columns[name] = []
        return data

    copy = rewritten(path, folder, "plain.html", change)
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, copy)
        answer = {
            "text": text(page, "#timeline"),
            "chart": page.locator("#timeline-chart").count() > 0,
            "whole": whole(page),
            "callsites": text(page, "#table-count"),
        }
        page.locator("#flame-scroller").click(position=box(page, 2))
        page.locator("#table-body .where").first.click()
        answer["histograms"] = page.locator(".histogram").count()
        return ended(page, answer)


def damaged(path, folder):
    with open(path, encoding="utf-8") as file:
        whole_page = file.read()
    middle = sum(DATA.search(whole_page).span(2)) // 2
    copy = os.path.join(folder, "damaged.html")
    with open(copy, "w", encoding="utf-8") as file:
        file.write(whole_page[:middle] + "AAAA" + whole_page[middle + 4 :])
    told = "() => document.querySelector('#opening').getAttribute('role') === 'alert'"
    # What is told is thrown as well, for whoever looks at the console: that is no complaint.
    answer = {"complaints": [], "requests": []}
    with browser.page(1280, 900) as page:
        page.goto(browser.address(copy))
        page.wait_for_function(told)
        answer["damaged"] = text(page, "#opening")
    with browser.page(1280, 900) as page:
        page.add_init_script("delete window.DecompressionStream")
        page.goto(browser.address(path))
        page.wait_for_function(told)
        answer["old"] = text(page, "#opening")
    return answer


def pictures(path, folder):
    answer = {"overflows": []}
    for width in (1280, 390):
        for scheme in ("light", "dark"):
            with browser.page(width, 900, color_scheme=scheme) as page:
                watch(page)
                opened(page, path)
                page.locator("#table-body .where").first.click()
                page.mouse.move(0, 0)
                if page.evaluate("() => document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                    answer["overflows"].append([width, scheme])
                page.screenshot(path=os.path.join(folder, f"page.{width}.{scheme}.png"), full_page=True)
                answer[f"{width} {scheme}"] = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
                ended(page, answer)
    return answer


def main(what, *arguments):
    scenes = {scene.__name__: scene for scene in (walk, keys, hostile, large, plain, damaged, pictures)}
    json.dump(scenes[what](*arguments), sys.stdout)


main(*sys.argv[1:])

"""Panels, filters, links, exports and accessibility of pages of `report/html` in Chromium.

    html_panels.py panels PAGE FOLDER    tables of functions, modules and sizes, and the trees
    html_panels.py filters PAGE FOLDER   search, focus, ignore, hide, threads, and rows without an amount
    html_panels.py links PAGE FOLDER     the state in the address: written, opened again, and changed by hand
    html_panels.py exports PAGE FOLDER   every file of the export menu
    html_panels.py source PAGE FOLDER    source lines, paths that are copied, and the editor's URL
    html_panels.py access PAGE FOLDER    axe-core at two widths, light and dark
"""

import json
import os
import sys
import xml.dom.minidom

import browser
from report_page import box, chosen, ended, fragment, opened, rewritten, tab, text, watch, whole

TABS = ["callsites", "functions", "top-down", "bottom-up", "callers", "modules", "sizes"]


def rows(page, selector):
    """The cells of each row."""
    lines = page.locator(f"{selector} > tr:not(.details)")
    return [line.locator("td").all_inner_texts() for line in lines.all()]


def named(page, table, name):
    return page.locator(f"#{table}-body .where", has=page.locator(f".chain:text-is('{name}')")).first


def panels(path, folder):
    answer = {}
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, path)
        page.select_option("#target", "0")
        tab(page, "functions")
        answer["functions"] = [[cells[0], cells[2], cells[-1]] for cells in rows(page, "#functions-body")]
        named(page, "functions", "stores").click()
        page.locator("#functions-body .details button", has_text="Callers and callees").click()
        answer["selected"] = text(page, "#tables-panel .whole-name")
        answer["callers"] = rows(page, "#callers tbody")
        answer["callees"] = page.locator("#callees tbody tr").count()
        tab(page, "modules")
        answer["modules"] = [[cells[0], cells[-1]] for cells in rows(page, "#modules-body")]
        tab(page, "sizes")
        answer["sizes"] = page.locator("#tables-panel .histogram figcaption").all_inner_texts()
        answer["blocks"] = page.locator("#tables-panel .histogram").first.locator("td.number:nth-child(3)").all_inner_texts()
        tab(page, "bottom-up")
        answer["leaf"] = rows(page, "#bottom-up tbody")[0]
        tab(page, "top-down")
        answer["tree"] = tree(page)
        browser.screenshot(page, os.path.join(folder, "panels.png"))
        return ended(page, answer)


def tree(page):
    """The treegrid by keys: down, closed, opened, to the parent."""
    grid = page.locator("#top-down")
    seen = {"role": grid.get_attribute("role"), "before": grid.locator("tbody tr").count()}
    grid.locator("tbody tr").first.focus()
    at = lambda: page.evaluate("() => [document.activeElement.getAttribute('aria-level'), document.activeElement.getAttribute('aria-expanded')]")
    seen["first"] = at()
    page.keyboard.press("ArrowLeft")
    seen["closed"] = [at(), grid.locator("tbody tr").count()]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    seen["child"] = at()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("End")
    page.keyboard.press("Home")
    seen["home"] = at()
    return seen


def filters(path, folder):
    def change(data):
        for target in data["targets"]:
            target["threads"] = [{"tid": 1, "name": "<i>main"}, {"tid": 2, "name": None}]
            columns = target["callsites"]
            columns["thread"] = [1 + at % 2 for at in range(columns["count"])]
        return data

    copy = rewritten(path, folder, "threads.html", change)
    answer = {}
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, copy)
        answer["all"] = whole(page)
        page.click("#filters-toggle")
        for name in ("focus", "ignore", "hide"):
            page.fill(f"#filter-{name}", "^stores$")
            answer[name] = {"whole": whole(page), "card": text(page, "#view-live-bytes strong"), "callsites": text(page, "#table-count")}
            page.fill("#search", "/^stores$/")
            answer[name]["matched"] = text(page, "#matched")
            page.fill("#search", "")
            page.click("#filters-clear")
        page.fill("#filter-focus", "(")
        answer["refused"] = text(page, "#query-error")
        page.click("#filters-clear")
        # Several words, in one name.
        page.fill("#search", "branch climb")
        answer["words"] = text(page, "#matched")
        page.fill("#search", "climb nowhere")
        answer["no_words"] = text(page, "#matched")
        page.fill("#search", "")
        answer["threads"] = page.locator("#thread option").all_inner_texts()
        answer["by_thread"] = []
        for at in (1, 2):
            page.select_option("#thread", index=at)
            answer["by_thread"].append([whole(page), text(page, "#view-live-bytes strong"), text(page, "#table-count")])
        page.select_option("#thread", index=0)
        # Freed blocks leave rows without live bytes.
        answer["rows"] = page.locator("#table-body > tr").count()
        while page.locator("#table-more").count() > 0:
            page.click("#table-more")
        answer["zeros"] = text(page, "#table-zeros")
        before = page.locator("#table-body > tr").count()
        page.click("#table-zeros")
        while page.locator("#table-more").count() > 0:
            page.click("#table-more")
        answer["unfolded"] = page.locator("#table-body > tr").count() - before
        page.click("#peak")
        answer["peak"] = {"whole": whole(page), "subject": text(page, "#flame-subject"), "status": text(page, "#period-status")}
        page.click("#period-all")
        # A window applies to leak candidates, too.
        page.click("#period-next")
        answer["leaks"] = text(page, "#leaks")
        browser.screenshot(page, os.path.join(folder, "filters.png"))
        return ended(page, answer)


def shown(page):
    values = {name: page.input_value(f"#{name}") for name in ("target", "period-from", "period-to", "base-from", "base-to", "search", "flame-colour")}
    values["subject"] = text(page, "#flame-subject")
    values["whole"] = whole(page)
    values["chosen"] = chosen(page)
    values["tab"] = page.locator("[role=tab][aria-selected=true]").inner_text()
    values["reversed"] = page.get_attribute("#flame-reverse", "aria-pressed")
    values["filters"] = page.input_value("#filter-ignore")
    return values


def links(path, folder):
    answer = {}
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, path)
        answer["plain"] = fragment(page)
        page.select_option("#target", "0")
        page.click("#view-alloc-count")
        page.click("#compare")
        page.fill("#search", "orchard & climb")
        page.click("#filters-toggle")
        page.fill("#filter-ignore", "plugin_.*")
        page.click("#flame-reverse")
        tab(page, "modules")
        page.locator("#flame-scroller").click(position=box(page, 1, 0.1))
        answer["fragment"] = fragment(page)
        answer["made"] = shown(page)
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, path, answer["fragment"])
        answer["opened"] = shown(page)
        # Changed by hand while the page is open.
        page.evaluate("() => { location.hash = '#view=live-count&tab=functions'; }")
        page.wait_for_timeout(100)
        answer["changed"] = [text(page, "#flame-subject"), page.locator("[role=tab][aria-selected=true]").inner_text()]
        # What is not valid is ignored.
        page.evaluate("() => { location.hash = '#view=nothing&from=x&to=5&root=99999999&target=77&open=1.x.-4&tab=%3Cimg%3E'; }")
        page.wait_for_timeout(100)
        answer["ignored"] = text(page, "#flame-subject")
        return ended(page, answer)


def exports(path, folder):
    answer = {}
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, path)
        answer["live"] = whole(page)
        for kind in page.locator("#export button[data-format]").all():
            if page.get_attribute("#export", "open") is None:
                page.click("#export summary")
            with page.expect_download() as download:
                kind.click()
            name = download.value.suggested_filename
            download.value.save_as(os.path.join(folder, name))
            answer[kind.get_attribute("data-format")] = name
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("#table-body .where").first.click()
        page.locator(".callsite button", has_text="Copy stack").click()
        answer["stack"] = page.evaluate("() => navigator.clipboard.readText()")
        answer["folder"] = folder
        drawn = xml.dom.minidom.parse(os.path.join(folder, answer["svg"]))
        answer["svg_frames"] = len(drawn.getElementsByTagName("rect"))
        return ended(page, answer)


def source(path, folder):
    """The page with source lines: those of `--source`, or, where there are none, of every file up to the largest line."""

    def change(data):
        frames = data["frames"]
        lines = {}
        for file, line in zip(frames["file"], frames["line"]):
            if file > 0 and line > 0:
                lines.setdefault(file - 1, []).append(line)
        first = {file: max(1, min(numbers) - 2) for file, numbers in lines.items()}
        data["sources"] = {
            "file": list(lines),
            "line": [first[file] for file in lines],
            "text": ["\n".join(f"<b>line {at}</b>" for at in range(first[file], max(numbers) + 3)) for file, numbers in lines.items()],
        }
        return data

    copy = rewritten(path, folder, "source.html", change)
    answer = {}
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, copy)
        page.locator("#table-body .where").first.click()
        place = page.locator(".callsite .path").first
        answer["place"] = place.inner_text()
        place.click()
        answer["marked"] = text(page, ".source .marked")
        answer["lines"] = page.locator(".source .line").count()
        answer["bold"] = page.locator(".source b").count()
        browser.screenshot(page, os.path.join(folder, "source.png"))
        page.click("#editor-menu summary")
        page.fill("#editor", "javascript://{path}")
        answer["refused"] = text(page, "#editor-menu [role=status]")
        answer["edit_before"] = page.locator(".callsite .edit").count()
        page.fill("#editor", "vscode://file/{path}:{line}")
        answer["edit"] = page.locator(".callsite .edit").first.get_attribute("href")
        ended(page, answer)
    with browser.page(1280, 900) as page:
        watch(page)
        opened(page, path)
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.locator("#table-body .where").first.click()
        page.locator(".callsite .path").first.click()
        page.locator(".copied", has_text="copied").first.wait_for()
        answer["copied"] = page.evaluate("() => navigator.clipboard.readText()")
        return ended(page, answer)


def access(path, folder):
    with open(os.path.join(browser.viewers(), "node_modules/axe-core/axe.min.js"), encoding="utf-8") as file:
        axe = file.read()
    answer = {"violations": [], "checks": 0, "above_the_fold": None}
    for width, height in ((1280, 800), (390, 844)):
        for scheme in ("light", "dark"):
            with browser.page(width, height, color_scheme=scheme) as page:
                watch(page)
                opened(page, path)
                page.evaluate(axe)
                if width == 1280 and scheme == "light":
                    answer["above_the_fold"] = page.locator("#flame-scroller").bounding_box()["y"]
                page.locator("#table-body .where").first.click()
                page.click("#compare")
                page.click("#filters-toggle")
                page.click("#editor-menu summary")
                for name in TABS:
                    tab(page, name)
                    found = page.evaluate("async () => (await axe.run(document, { resultTypes: ['violations'] }))")
                    answer["checks"] += len(found["passes"])
                    for violation in found["violations"]:
                        nodes = [node["html"][:200] for node in violation["nodes"][:3]]
                        answer["violations"].append([width, scheme, name, violation["id"], violation["help"], nodes])
                ended(page, answer)
    return answer


def main(what, *arguments):
    scenes = {scene.__name__: scene for scene in (panels, filters, links, exports, source, access)}
    json.dump(scenes[what](*arguments), sys.stdout)


main(*sys.argv[1:])

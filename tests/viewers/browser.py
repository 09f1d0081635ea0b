"""Chromium for the scripts beside this one: no network unless a script needs it, its own profile, and what it complained about."""

import contextlib
import os
import shutil
import sys
import tempfile

from playwright.sync_api import sync_playwright


@contextlib.contextmanager
def page(width=1280, height=800, **context):
    """A page, with `page.complaints`: errors of scripts and what was written to the console as an error."""
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as profile:
        browser = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
            viewport={"width": width, "height": height},
            **{"offline": True, **context},
        )
        try:
            opened = browser.pages[0] if browser.pages else browser.new_page()
            opened.set_default_timeout(60_000)
            opened.complaints = []
            opened.on("pageerror", lambda error: opened.complaints.append(f"error: {error}"))
            opened.on("dialog", lambda dialog: (opened.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            opened.on(
                "console",
                lambda message: opened.complaints.append(f"console: {message.text}") if message.type == "error" else None,
            )
            yield opened
        finally:
            browser.close()


def address(path):
    """Of a file."""
    return "file://" + os.path.abspath(path)


def viewers():
    """Where what `cargo xtask viewers` installs is."""
    return os.path.dirname(os.environ["NODE_PATH"])


def screenshot(opened, path):
    """Beside what was opened, for people."""
    opened.screenshot(path=path)
    print(f"screenshot: {path}", file=sys.stderr)

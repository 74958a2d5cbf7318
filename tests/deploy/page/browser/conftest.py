"""Debian's Chromium over the real deploy server: what a person sees and does."""

import shutil
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:  # the machine may have none; each test's file skips it then
    pass

_PATIENCE_MS = 60_000
"""a busy machine"""


@pytest.fixture(scope="module")
def chromium():
    """The browser that this machine has."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=_PATIENCE_MS)
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("Chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, served):
    """Opens a window on the server, of a browser with a session of its own.

    None of them may warn on the console, open a dialog, or ask another host for anything.
    """
    host, complaints, contexts = urlsplit(served).netloc, [], []

    def asked(request):
        if urlsplit(request.url).netloc != host:
            complaints.append(f"asked {request.url}")

    def wrote(message):
        # The browser tells of a view that was refused; the view says it itself.
        refused = message.page is not None and message.location["url"] == message.page.url
        if message.type in ("error", "warning") and not refused:
            complaints.append(f"{message.type}: {message.text} {message.location['url']}")

    def opened(dialog):
        complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open_one(**options):
        context = chromium.new_context(base_url=served, **options)
        contexts.append(context)
        context.set_default_timeout(_PATIENCE_MS)
        window = context.new_page()
        window.on("request", asked)
        window.on("console", wrote)
        window.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        window.on("dialog", opened)
        return window

    yield open_one
    for context in contexts:
        context.close()
    assert complaints == []

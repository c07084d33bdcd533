"""The console by keyboard alone: everything is reached, seen to have the focus, and works."""

from __future__ import annotations

import pytest

from tests.browser.synthetic import Fleet, serve
from tests.browser.test_console import REFUSED, newest_event, route_of, row
from tests.browser.test_console_page import GONE

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
# More than a page of the tests has; who presses Tab so often has gone round.
MOST_STOPS = 150
NAME = """(e) => e.ariaLabel ?? e.labels?.[0]?.textContent.trim() ?? e.textContent.trim()"""
CONTROLS = """() => [...document.querySelectorAll('a[href], button, input, select, [tabindex="0"]')]
  .filter((e) => !e.disabled && e.checkVisibility())"""


def focused(page) -> str:
    """Return the name of what has the focus; nothing where the page itself has it."""
    return page.evaluate(
        f"document.activeElement === document.body ? '' : ({NAME})(document.activeElement)"
    )


def step(page) -> str:
    """Press Tab; return the name of what has the focus now, which must be seen to have it."""
    page.keyboard.press("Tab")
    name = focused(page)
    if name:
        style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert style == "solid", f"the focus on {name!r} cannot be seen"
    return name


def go_to(page, label: str) -> None:
    """Press Tab until what is called so has the focus."""
    for _ in range(MOST_STOPS):
        if step(page) == label:
            return
    raise AssertionError(f"{label!r} is not reached with Tab")


def choose(page, label: str):
    """Go to a button and press it; return the dialog that it opens."""
    go_to(page, label)
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    return dialog


def finish(page, dialog, *, typed: str = "") -> None:
    """Type into the field that has the focus, press Enter, and wait until the dialog is gone."""
    page.keyboard.type(typed)
    page.keyboard.press("Enter")
    dialog.wait_for(state="detached")


def look_for(page, words: str) -> None:
    """Filter the table of models."""
    page.keyboard.press("/")
    page.keyboard.type(words)


def test_every_control_is_reached_and_every_dialog_keeps_and_returns_the_focus(open_page):
    """Tab stops at all that can be pressed; Esc goes back to the button that opened a dialog."""
    with serve(Fleet(2, 3, 2), every_s=0.1) as url:
        page = open_page(url, expected=(*GONE, *REFUSED))
        page.locator("tr.version").first.wait_for()
        wanted = page.evaluate(f"({CONTROLS})().map({NAME})")
        reached, opened = [], []
        dialog = page.get_by_role("dialog")
        while len(reached) < MOST_STOPS and (name := step(page)):
            reached.append(name)
            if not page.evaluate("document.activeElement.textContent.endsWith('…')"):
                continue
            page.keyboard.press("Enter")
            dialog.wait_for()
            # The plan of what is made up is a 404; the dialog stands all the same.
            inside = dialog.evaluate(f"(e) => ({CONTROLS})().filter((c) => e.contains(c)).length")
            for _ in range(inside + 2):
                page.keyboard.press("Tab")
                assert page.evaluate(
                    "document.activeElement === document.body"
                    " || !!document.activeElement.closest('dialog')"
                ), f"the focus left the dialog of {name!r}"
            page.keyboard.press("Escape")
            dialog.wait_for(state="detached")
            assert focused(page) == name
            opened.append(name)
    assert sorted(reached) == sorted(wanted)
    kinds = ("Load", "Unload", "Delete", "Set an alias of", "Edit the route of", "Roll back",
             "Restart…", "Collect garbage…")  # fmt: skip
    assert [kind for kind in kinds if not any(name.startswith(kind) for name in opened)] == []


def test_a_version_is_loaded_named_routed_taken_back_and_deleted(server, open_page, model):
    """Each button of a version and of its model does its work without a mouse."""
    name = model(2, 1)
    page = open_page(server.admin_url)
    row(page, name, 3).wait_for()
    look_for(page, name)

    dialog = choose(page, f"Load {name} version 3")
    dialog.get_by_text("It fits").wait_for()
    finish(page, dialog, typed="by keyboard")
    row(page, name, 3).get_by_text("READY").wait_for()
    assert newest_event(server, name)["reason"] == "by keyboard"

    finish(page, choose(page, f"Set an alias of {name} version 2"), typed="prod")
    chip = f"Alias prod of {name}: remove it"
    page.get_by_role("button", name=chip).wait_for()
    finish(page, choose(page, chip))
    page.get_by_role("button", name=chip).wait_for(state="detached")

    dialog = choose(page, f"Edit the route of {name}")
    for version, share in ((2, "40"), (1, "60")):
        go_to(page, f"Share of v{version} in percent")
        page.keyboard.press("Control+a")
        page.keyboard.type(share)
    dialog.locator(".to").get_by_text("v1 60 % · v2 40 %").wait_for()
    finish(page, dialog)
    page.get_by_text("v1 60 % · v2 40 %").first.wait_for()
    finish(page, choose(page, f"Roll back {name}"))
    row(page, name, 1).get_by_text("100 %").wait_for()
    assert route_of(server, name)["split"] == [{"version": 1, "weight": 100}]

    finish(page, choose(page, f"Unload {name} version 3"))
    row(page, name, 3).get_by_text("UNLOADED").wait_for()
    finish(page, choose(page, f"Delete {name} version 3"))
    row(page, name, 3).wait_for(state="detached")
    assert server.admin("GET", f"/admin/v1/models/{name}/versions/3").status_code == 404

    dialog = choose(page, f"Details of {name} version 1")
    dialog.get_by_text("Inputs").first.wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_the_server_s_own_buttons_and_switches(server, open_page, model):
    """Garbage, workers, what is shown, and the theme."""
    name = model(1, 1)
    page = open_page(server.admin_url)
    row(page, name, 2).wait_for()
    go_to(page, "in memory only")
    page.keyboard.press("Space")
    row(page, name, 2).wait_for(state="detached")

    finish(page, choose(page, "Restart…"), typed="a new setting")
    page.locator("#operations").get_by_text("restart of the workers").first.wait_for()
    finish(page, choose(page, "Collect garbage…"))
    page.get_by_text("objects dropped").wait_for()

    go_to(page, "Theme: as the system. Change it")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") in ("light", "dark")

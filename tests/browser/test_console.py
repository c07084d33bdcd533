"""Every button of the console does what it says, on a real server, in a real browser."""

from __future__ import annotations

import pytest

from tests import graphs

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
# A browser notes each answer that is an error; the tests below ask for these.
REFUSED = ("the server responded with a status of 4", "the server responded with a status of 5")


def row(page, name: str, version: int):
    """The table row of a version."""
    button = page.get_by_role("button", name=f"Details of {name} version {version}", exact=True)
    return page.locator("tr.version", has=button)


def press(page, label: str):
    """Press a button of the page; return the dialog that it opens."""
    page.get_by_role("button", name=label, exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    return dialog


def confirm(dialog, label: str, reason: str = "") -> None:
    """Give the reason, press the button, and wait until the dialog is gone."""
    if reason:
        dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=label, exact=True).click()
    dialog.wait_for(state="detached")


def newest_event(server, name: str) -> dict:
    return server.admin("GET", "/admin/v1/events", params={"model": name, "limit": 1000}).json()[
        "events"
    ][-1]


def route_of(server, name: str) -> dict:
    return server.admin("GET", f"/admin/v1/models/{name}/route").json()


def test_load(server, open_page, model):
    """The plan stands in the dialog before anything happens; the reason is in the events."""
    name = model(1, 1)
    page = open_page(server.admin_url)
    line = row(page, name, 2)
    line.get_by_text("UNLOADED").wait_for()

    dialog = press(page, f"Load {name} version 2")
    dialog.get_by_text("It fits").wait_for()
    dialog.get_by_text("Free now").wait_for()
    assert server.admin("GET", f"/admin/v1/models/{name}/versions/2").json()["state"] == "UNLOADED"
    confirm(dialog, "Load", "needed for the test")

    line.get_by_text("READY").wait_for()
    page.locator("#operations").get_by_text(f"load {name}/2").first.wait_for()
    page.locator("#events").get_by_text("needed for the test").first.wait_for()
    assert newest_event(server, name)["reason"] == "needed for the test"


def test_load_that_does_not_fit(server, open_page, model):
    """The server's refusal stands in the dialog, with the plan, and nothing has changed."""
    name = model(0)
    server.push("too_large", graphs.big(mb=70), is_loading=False)
    page = open_page(server.admin_url, expected=REFUSED)

    dialog = press(page, "Load too_large version 1")
    dialog.get_by_text("It does not fit.").wait_for()
    dialog.get_by_role("button", name="Load", exact=True).click()

    alert = dialog.get_by_role("alert")
    alert.get_by_text("budget").wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    row(page, "too_large", 1).get_by_text("FAILED").wait_for()
    assert name


def test_unload(server, open_page, model):
    """What is routed is refused in place, with the server's words; what nothing names goes."""
    name = model(2)
    page = open_page(server.admin_url, expected=REFUSED)

    dialog = press(page, f"Unload {name} version 1")
    dialog.get_by_text("The server will refuse it").wait_for()
    dialog.get_by_role("button", name="Unload", exact=True).click()
    dialog.get_by_role("alert").get_by_text("cannot be unloaded").wait_for()
    dialog.get_by_role("button", name="Cancel").click()

    confirm(press(page, f"Unload {name} version 2"), "Unload", "not used")
    row(page, name, 2).get_by_text("UNLOADED").wait_for()
    assert newest_event(server, name)["kind"] == "unload"


def test_alias(server, open_page, model):
    """An alias is set, moved and removed; the difference is shown before each."""
    name = model(2)
    page = open_page(server.admin_url)

    dialog = press(page, f"Set an alias of {name} version 1")
    dialog.get_by_label("Alias").fill("prod")
    dialog.get_by_text("prod is not set").wait_for()
    confirm(dialog, "Set alias")
    row(page, name, 1).get_by_role("button", name=f"Alias prod of {name}: remove it").wait_for()

    dialog = press(page, f"Set an alias of {name} version 2")
    dialog.get_by_label("Alias").fill("prod")
    dialog.get_by_text("prod names v1").wait_for()
    confirm(dialog, "Set alias", "moved")
    chip = row(page, name, 2).get_by_role("button", name=f"Alias prod of {name}: remove it")
    chip.wait_for()
    assert server.admin("GET", f"/admin/v1/models/{name}").json()["aliases"] == {"prod": 2}

    dialog = press(page, f"Alias prod of {name}: remove it")
    dialog.get_by_text("prod names nothing").wait_for()
    confirm(dialog, "Remove alias")
    chip.wait_for(state="detached")
    assert server.admin("GET", f"/admin/v1/models/{name}").json()["aliases"] == {}


def test_alias_name_that_is_not_allowed(server, open_page, model):
    """What the server says of a bad name stands in the dialog, which stays open."""
    name = model(1)
    page = open_page(server.admin_url, expected=REFUSED)
    dialog = press(page, f"Set an alias of {name} version 1")
    dialog.get_by_role("button", name="Set alias").click()
    dialog.get_by_role("alert").get_by_text("give a name").wait_for()
    dialog.get_by_label("Alias").fill("Not/Allowed")
    dialog.get_by_role("button", name="Set alias").click()
    dialog.get_by_role("alert").get_by_text("Not/Allowed").wait_for()


def test_route_and_rollback(server, open_page, model):
    """Shares must make 100, before and after are shown, and a rollback restores what was."""
    name = model(3)
    page = open_page(server.admin_url)

    dialog = press(page, f"Edit the route of {name}")
    change = dialog.get_by_role("button", name="Change route")
    dialog.get_by_label("Share of v2 in percent").fill("40")
    dialog.get_by_text("The shares make 140 %").wait_for()
    assert change.is_disabled()
    dialog.get_by_label("Share of v1 in percent").fill("60")
    dialog.get_by_label("v3 is a shadow").check()
    dialog.locator(".to").get_by_text("v1 60 % · v2 40 % · shadow v3").wait_for()
    dialog.locator(".from").get_by_text("v1 100 %").wait_for()
    confirm(dialog, "Change route", "a canary")
    page.get_by_text("v1 60 % · v2 40 % · shadow v3").first.wait_for()
    found = route_of(server, name)
    assert found["split"] == [{"version": 1, "weight": 60}, {"version": 2, "weight": 40}]
    assert found["shadow"] == [3]
    assert newest_event(server, name)["reason"] == "a canary"

    dialog = press(page, f"Roll back {name}")
    dialog.locator(".to").get_by_text("v1 100 %").wait_for()
    confirm(dialog, "Roll back", "second thoughts")
    row(page, name, 1).get_by_text("100 %").wait_for()
    assert route_of(server, name)["split"] == [{"version": 1, "weight": 100}]

    dialog = press(page, f"Edit the route of {name}")
    dialog.get_by_label("Follow the latest").check()
    confirm(dialog, "Change route")
    page.get_by_text("latest: v3 100 %").first.wait_for()
    assert route_of(server, name)["latest"] is True

    dialog = press(page, f"Edit the route of {name}")
    dialog.get_by_label("Remove the route").check()
    dialog.locator(".to").get_by_text("no route").wait_for()
    confirm(dialog, "Change route")
    wanted = page.locator("tr.model", has_text=name).get_by_text("no route")
    wanted.wait_for()
    assert route_of(server, name).get("error")


def test_route_that_somebody_else_changed(server, open_page, model):
    """A change is made only to what was seen: the dialog says so, and so does the server."""
    name = model(2)
    page = open_page(server.admin_url, expected=REFUSED)
    dialog = press(page, f"Edit the route of {name}")
    dialog.get_by_role("button", name="All to v2").click()
    split = [{"version": 1, "weight": 50}, {"version": 2, "weight": 50}]
    server.expect(server.admin("PUT", f"/admin/v1/models/{name}/route", json={"split": split}))
    dialog.get_by_role("alert").get_by_text("Somebody changed the route").wait_for()
    dialog.get_by_role("button", name="Change route").click()
    dialog.get_by_role("button", name="Cancel").click()
    assert route_of(server, name)["split"] == split


def test_delete_and_garbage(server, open_page, model):
    """A version that is not loaded is deleted, and its objects with the next collection."""
    name = model(1, 1)
    page = open_page(server.admin_url)
    confirm(press(page, f"Delete {name} version 2"), "Delete", "a mistake")
    row(page, name, 2).wait_for(state="detached")
    assert server.admin("GET", f"/admin/v1/models/{name}/versions/2").status_code == 404

    confirm(press(page, "Collect garbage…"), "Collect")
    page.get_by_text("objects dropped").wait_for()
    events = server.admin("GET", "/admin/v1/events", params={"limit": 1000}).json()["events"]
    assert events[-1]["kind"] == "gc"


def test_restart_of_the_workers(server, open_page):
    """Workers are replaced one by one; the page shows the operation and the new process."""
    page = open_page(server.admin_url)
    before = server.worker_pids()
    page.locator("#workers").get_by_text(str(before[0])).wait_for()
    confirm(press(page, "Restart…"), "Restart", "a new setting")
    page.locator("#operations").get_by_text("restart of the workers").first.wait_for()
    page.locator("#workers").get_by_text(str(before[0])).wait_for(state="detached")
    server.wait_until_ready()
    assert server.worker_pids() != before


def test_hostile_texts_stay_texts(server, open_page, model):
    """Neither a reason, nor free meta, nor a name in a source ever becomes part of the page."""
    name = model(1)
    attack = '<img src=x onerror="window.taken=1"><script>window.taken=1</script>\u202e'
    manifest = server.admin("GET", f"/admin/v1/models/{name}/versions/1").json()
    path = f"/admin/v1/models/{name}/aliases/prod"
    server.expect(server.admin("PUT", path, json={"version": 1}, params={"reason": attack}))
    split = [{"version": 1, "weight": 100}]
    server.expect(server.admin("PUT", f"/admin/v1/models/{name}/route",
                               json={"latest": True}, params={"reason": attack}))  # fmt: skip
    assert split == route_of(server, name)["split"]

    def hostile(route):
        answer = route.fetch()
        body = answer.json() | {"reason": attack, "meta": {attack: attack}, "source": {attack: 1}}
        route.fulfill(response=answer, json=body)

    page = open_page(server.admin_url)
    page.route(f"**/models/{name}/versions/1", hostile)
    page.locator("#events").get_by_text("onerror").first.wait_for()
    page.locator(".swapped", has_text="onerror").first.wait_for()
    dialog = press(page, f"Details of {name} version 1")
    dialog.get_by_text("onerror").nth(2).wait_for()

    assert page.locator("main img, dialog img, main script, dialog script").count() == 0
    assert page.evaluate("window.taken") is None
    assert manifest["meta"] == {}


def test_page_cannot_be_made_to_run_text(server, open_page):
    """Even a fault in a script could not: the browser refuses markup, inline scripts and eval."""
    page = open_page(
        server.admin_url, expected=("Content Security Policy", "TrustedHTML", "TrustedScript")
    )
    tries = {
        "markup": "() => { document.body.innerHTML = '<b>x</b>' }",
        "inline": "() => { const s = document.createElement('script');"
                  "s.text = 'window.ran = 1'; document.body.append(s) }",
    }  # fmt: skip
    refused = []
    for what, script in tries.items():
        try:
            page.evaluate(script)
        except Exception as error:  # noqa: BLE001 - whatever playwright makes of it
            refused.append((what, "TrustedHTML" in str(error) or "TrustedScript" in str(error)))
    assert ("markup", True) in refused
    assert page.evaluate("window.ran") is None

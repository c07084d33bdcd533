"""The console as a page: tokens, names, every width, both themes, many versions."""

from __future__ import annotations

import hashlib
import re

import pytest

from tests import graphs
from tests.browser.synthetic import Fleet, serve
from tests.browser.test_console import REFUSED, press, row
from tests.process.server import running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
WIDTHS = (360, 768, 1024, 1440, 2560, 3840)
# A page outlives its made-up server by a moment, and notes that nobody answers any more.
GONE = ("net::ERR",)
SECRETS = {"everything": "secret-everything", "reader": "secret-reader", "pusher": "secret-pusher"}


@pytest.fixture(scope="module")
def guarded(browser, tmp_path_factory):
    """A server with three tokens: one may do everything, one may look, one may only push."""
    folder = tmp_path_factory.mktemp("guarded")
    scopes = {"everything": ["read", "push", "promote", "admin"], "reader": ["read"],
              "pusher": ["push"]}  # fmt: skip
    config = "".join(
        f'[[tokens]]\nname = "{name}"\nsha256 = "{hashlib.sha256(secret.encode()).hexdigest()}"\n'
        f"scopes = {scopes[name]}\n"
        for name, secret in SECRETS.items()
    ).replace("'", '"')
    path = folder / "ramrack.toml"
    path.write_text(config)
    with running_server(folder, environ={"RAMRACK_CONFIG": str(path)}, is_waiting=False) as started:
        yield started


def enter(page, secret: str):
    """Give the token that the page asks for."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token").fill(secret)
    dialog.get_by_role("button", name="Connect").click()


def test_token_is_asked_for_once_and_kept_for_the_tab_alone(guarded, open_page):
    """Nothing is shown before; a wrong one is asked for again; a reload knows the right one."""
    page = open_page(guarded.admin_url, expected=REFUSED)
    page.get_by_role("dialog").get_by_text("asks for a token").wait_for()
    assert page.locator("main").is_hidden()

    enter(page, "wrong")
    page.get_by_role("dialog").get_by_text("the token is not known here").wait_for()
    enter(page, SECRETS["everything"])
    page.locator("main").wait_for()
    page.get_by_text("Live", exact=True).wait_for()
    assert page.get_by_role("dialog").count() == 0

    page.reload()
    page.locator("main").wait_for()
    kept = page.evaluate("JSON.stringify([{...localStorage}, document.cookie, location.href])")
    assert "secret" not in kept
    assert page.evaluate("Object.values(sessionStorage)") == [SECRETS["everything"]]

    page.get_by_role("button", name="Forget token").click()
    page.get_by_role("dialog").get_by_text("asks for a token").wait_for()
    assert page.locator("main").is_hidden()
    assert page.evaluate("Object.values(sessionStorage)") == []


def test_token_never_stands_in_a_url(guarded, open_page):
    """Logs and histories of whatever is in between learn nothing."""
    page = open_page(guarded.admin_url, expected=REFUSED)
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    enter(page, SECRETS["everything"])
    page.locator("main").wait_for()
    assert any("/console/stream" in url for url in urls)
    assert not [url for url in urls if "secret" in url]


def test_token_that_may_only_look_changes_nothing(guarded, open_page):
    """Buttons say which scope they lack."""
    page = open_page(guarded.admin_url, expected=REFUSED)
    enter(page, SECRETS["reader"])
    page.locator("main").wait_for()
    for label in ("Restart…", "Collect garbage…"):
        button = page.get_by_role("button", name=label)
        assert button.is_disabled()
        assert "lacks the scope admin" in button.get_attribute("title")


def test_token_without_read_is_told_so(guarded, open_page):
    """A 403 is a sentence on the page, not an empty table."""
    page = open_page(guarded.admin_url, expected=REFUSED)
    enter(page, SECRETS["pusher"])
    page.get_by_text("lacks the scope 'read'").wait_for()
    assert page.locator("main").is_hidden()
    assert page.get_by_role("button", name="Forget token").is_visible()


def test_everything_has_a_name(server, open_page, model):
    """A screen reader finds a name for each control, headings for the parts, and live regions."""
    name = model(1, 1)
    page = open_page(server.admin_url)
    row(page, name, 2).wait_for()
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, a[href], progress, [role=img]')]
          .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.length || e.alt))
          .map((e) => e.outerHTML)"""
    )
    assert nameless == []
    headings = page.locator("h2").all_inner_texts()
    assert headings == ["Memory", "Models", "Operations", "Workers", "Events"]
    assert page.locator("#status[role=status], #toasts[aria-live=polite]").count() == 2
    dialog = press(page, f"Load {name} version 2")
    assert dialog.get_attribute("aria-labelledby")
    assert dialog.evaluate("(e) => e.matches(':modal')")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_width_holds_in_both_themes(open_page, theme):
    """From 360 pixels to 4K nothing sticks out, and text is told from its ground at 4.5 to 1."""
    with serve(Fleet(4, 3, 2), every_s=0.1) as url:
        page = open_page(url, expected=GONE, color_scheme=theme)
        page.locator("main").wait_for()
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, f"at {width} pixels it is {over} wider than the window"
        ratios = page.evaluate(CONTRAST)
        page.set_viewport_size({"width": min(WIDTHS), "height": 700})
        for label in ("Edit the route of fraud", "Unload fraud version 5", "Restart…"):
            dialog = press(page, label)
            over = dialog.evaluate("(e) => e.scrollWidth - e.clientWidth")
            assert over <= 0, f"{label}: the dialog is {over} wider than it shows"
            page.keyboard.press("Escape")
            dialog.wait_for(state="detached")
    assert ratios.pop("ground") == {"light": "rgb(246, 247, 249)", "dark": "rgb(14, 17, 22)"}[theme]
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


def test_longest_names_hold_at_every_width(open_page):
    """No button is cut off, a model's colour stays beside its name, and a rate has its unit."""
    fleet = Fleet(4, 3, 2)
    model = fleet.models[0]
    model["name"] = ("longest-name-of-a-model-" * 3)[:64]
    for alias in ("canary", "a-name-of-an-alias-with-32-chars"):
        model["aliases"][alias] = {"version": model["versions"][-1]["version"], "etag": '"1"'}
    with serve(fleet, every_s=0.1) as url:
        page = open_page(url, expected=GONE)
        page.locator("tr.version").first.wait_for()
        for width in (360, 600, 921, 1080, 1081, 1241, 1441, 1761, 3840):
            page.set_viewport_size({"width": width, "height": 900})
            over = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert over <= 0, f"at {width} pixels it is {over} wider than the window"
            wrong = page.evaluate(MISPLACED)
            assert wrong == [], f"at {width} pixels"
        loads = page.locator(".model-load b").all_inner_texts()
    assert [load for load in loads if not load.endswith("/s")] == []


MISPLACED = """() => {
  const wrong = [];
  const right = document.getElementById('models').getBoundingClientRect().right;
  for (const e of document.querySelectorAll('#models button, #models .model-load')) {
    const own = e.getBoundingClientRect();
    if (own.right > right) wrong.push(`cut off: ${e.ariaLabel ?? e.outerHTML}`);
  }
  for (const e of document.querySelectorAll('.swatch')) {
    const [colour, name] = [e, e.nextElementSibling].map((n) => n.getBoundingClientRect());
    const isApart = colour.bottom <= name.top || colour.right > name.left;
    if (isApart) wrong.push('a colour is apart from its name');
  }
  for (const e of document.querySelectorAll('.detail .seg > span')) {
    const shown = e.getBoundingClientRect().width;
    if (e.textContent && shown && shown < 40) wrong.push(`a label with no room: ${e.textContent}`);
  }
  return wrong;
}"""


CONTRAST = """() => {
  const probe = document.body.appendChild(document.createElement('i'));
  const lightness = (colour) => {
    probe.style.color = colour;
    const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3);
    const [r, g, b] = parts.map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [low, high] = [lightness(a), lightness(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const found = { ground: getComputedStyle(document.body).backgroundColor };
  for (const name of ['ink', 'muted', 'accent', 'good', 'warn', 'bad']) {
    for (const on of ['surface', 'ground', 'raised']) {
      found[`${name} on ${on}`] = ratio(`var(--${name})`, `var(--${on})`);
    }
  }
  found['button'] = ratio('var(--accent-ink)', 'var(--accent)');
  found['error'] = ratio('var(--bad)', 'var(--bad-soft)');
  return found;
}"""


def test_theme_is_chosen_and_kept(open_page):
    """The switch goes from the system's to light to dark, and a reload keeps it."""
    with serve(Fleet(1, 2, 1), every_s=0.1) as url:
        page = open_page(url, expected=GONE, color_scheme="light")
        button = page.locator("#theme")
        seen = []
        for _ in range(3):
            button.click()
            seen.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert seen == ["rgb(246, 247, 249)", "rgb(14, 17, 22)", "rgb(246, 247, 249)"]
        button.click()
        button.click()
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_motion_is_left_out_where_it_is_not_wanted(open_page):
    """Nothing breathes or slides for who asked for less of it."""
    with serve(Fleet(1, 2, 1), every_s=0.1) as url:
        page = open_page(url, expected=GONE, reduced_motion="reduce")
        page.get_by_text("Live", exact=True).wait_for()
        moving = page.evaluate(
            "[...document.querySelectorAll('*')].filter((e) => getComputedStyle(e).animationName"
            " !== 'none' || getComputedStyle(e).transitionDuration !== '0s').length"
        )
    assert moving == 0


def test_hundred_versions_and_eight_workers_change_only_what_changed(open_page):
    """A look moves figures and lines; no row is made anew."""
    fleet = Fleet(20, 5, 8)
    with serve(fleet, every_s=0.1) as url:
        page = open_page(url, expected=GONE)
        page.locator("tr.version").nth(99).wait_for()
        assert page.locator("#workers tbody tr").count() == 8
        page.evaluate(
            """() => {
              window.seen = { rows: 0, looks: 0 };
              for (const r of document.querySelectorAll('tr.version')) r.isOld = true;
              new MutationObserver((all) => {
                seen.looks += 1;
                seen.rows += all.flatMap((m) => [...m.addedNodes])
                  .filter((n) => n.tagName === 'TR' || n.tagName === 'TBODY').length;
              }).observe(document.getElementById('models'),
                { childList: true, subtree: true, characterData: true });
            }"""
        )
        wait_until(lambda: page.evaluate("seen.looks") >= 10, 60, "ten looks were drawn")
        assert page.evaluate("seen.rows") == 0
        assert page.evaluate("[...document.querySelectorAll('tr.version')].every((r) => r.isOld)")

        page.locator("#filter").fill("recommender")
        assert page.locator("tr.version").count() == 5
        page.locator("#only-loaded").check()
        assert page.locator("tr.version").count() == 2


def test_memory_bar_adds_up_to_what_is_committed(open_page):
    """Own, private and shared parts are the whole bar, and each stands in the table."""
    fleet = Fleet(3, 3, 2)
    with serve(fleet, every_s=0.1) as url:
        page = open_page(url, expected=GONE)
        page.locator("tr.version").first.wait_for()
        sizes = page.evaluate(
            "[...document.querySelectorAll('.detail .seg')].map((s) => Number(s.style.flexGrow))"
        )
        striped = "[...document.querySelectorAll('.detail .private')]"
        privately = page.evaluate(f"{striped}.map((s) => Number(s.style.flexGrow))")
        text = page.locator("#ram .figures").inner_text()
        row_text = page.locator("tr.version").first.inner_text()
    held = [v for m in fleet.models for v in m["versions"] if v["object_bytes"]]
    private = sum(v["private_bytes"] for v in held)
    own = sum(v["object_bytes"] - v["shared_bytes"] for v in held)
    # The browser keeps six digits of each.
    whole = own + private + max(v["shared_bytes"] for v in held)
    assert sum(sizes) == pytest.approx(whole, rel=1e-5)
    assert sum(privately) == pytest.approx(private, rel=1e-5)
    assert re.search(r"[\d.]+ GiB", text)
    assert "9.00 MiB" in row_text


def test_stop_is_seen_and_not_held_up(browser, open_page, tmp_path):
    """An open console does not delay the end of the server; the page says that it is gone."""
    with running_server(tmp_path) as server:
        server.push("m", graphs.gemm())
        page = open_page(server.admin_url, expected=GONE)
        row(page, "m", 1).get_by_text("READY").wait_for()
        assert server.stop() == 0
        page.get_by_text("Connection lost").first.wait_for()
        assert page.evaluate("getComputedStyle(document.querySelector('main')).opacity") == "0.6"

"""What those get who do not see the page, have no pointer, or read with large letters."""

import re

import pytest
from annotated_heard import headed, is_german, spoken
from browsers import CHROMIUM, FLAGS, served
from explore import with_browser
from test_page import HTML, built

WIDE = {"width": 1400, "height": 900}
pytestmark = pytest.mark.page


@pytest.fixture(scope="module")
def site():
    with served(built()) as address:
        yield address


@pytest.fixture(scope="module")
def large(browser):
    "A browser whose reader has chosen letters of twice the size."
    other = browser.browser_type.launch(executable_path=CHROMIUM, args=[*FLAGS, "--blink-settings=defaultFontSize=32"])
    yield other
    other.close()


@pytest.mark.parametrize(("text", "german"), [
    ("der Hund sieht die Katze", True), ("Hut", True), ("ihn", True), ("hat", False), ("in", False), ("hat gesehen", True),
    ("bleu", False), ("-er", True), ("", False), ("the dog", False), ("Bahdanau", False),
])
def test_german_is_known_by_its_words(text, german):
    assert is_german(text) == german


def test_german_words_are_marked():
    assert spoken("<em>ihn</em> for <em>it</em>") == '<em lang="de">ihn</em> for <em>it</em>'
    page = (HTML / "notebooks/01-why-attention.html").read_text(encoding="utf-8")
    assert page.count('<em lang="de">') > 3


def test_a_row_of_a_table_has_a_head():
    rows = '<tr class="row-odd"><td data-label="a"><p>x</p></td>\n<td><p>y</p></td></tr>'
    table = f'<table class="booktabs stack table"><thead><tr><th>a</th><th>b</th></tr></thead><tbody>{rows}</tbody></table>'
    done = headed(table)
    assert '<tr class="row-odd"><th scope="row" data-label="a"><p>x</p></th>\n<td>' in done and headed(done) == done
    for other in (re.sub("<thead>.*</thead>", "", table), table.replace("booktabs", "plain")):
        assert headed(other) == other


@pytest.mark.parametrize("width", [360, 1280])
@with_browser
def test_a_table_s_first_cells_look_as_the_others_do(browser, site, width):
    "Where its rows are blocks, on a phone, they stand out as titles."
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(f"{site}/notebooks/02-attention.html", wait_until="load")
    looks = """kind => [...document.querySelectorAll(`.bd-article table.stack tbody ${kind}`)].map(e => {
      const s = getComputedStyle(e); return [s.fontWeight, s.textAlign, s.borderTopWidth, s.display].join(' '); })"""
    heads, cells = (page.evaluate(looks, kind) for kind in ("tr + tr th[scope=row]", "tr + tr td"))
    page.close()
    wanted = ({"400 left 1px table-cell"}, {"400 left 1px table-cell"}) if width > 576 else ({"600 left 1px block"}, {"400 left 0px block"})
    assert (set(heads), set(cells)) == wanted


@pytest.mark.parametrize("name", ["book/index.html", "notebooks/03-masks.html", "book/B-differences.html"])
def test_parts_of_a_page_have_names(name):
    page = (HTML / name).read_text(encoding="utf-8")
    dialogs = re.findall(r"<dialog\b[^>]*>", page)
    assert len(dialogs) >= 2 and all('aria-label="' in tag for tag in dialogs)
    assert page.count('role="banner"') == 1 and 'id="pst-header" role="presentation"' in page
    assert page.count('aria-current="page"') == (name != "book/index.html")  # the list has no entry of the front page


@pytest.fixture
def copied(browser, site):
    "A page on which the code beside a button, which is there as well, has just been copied by the keyboard."
    context = browser.new_context(viewport=WIDE, permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{site}/notebooks/02-attention.html", wait_until="load")
    button = page.locator(".copybtn").nth(3)
    button.focus()
    page.keyboard.press("Enter")
    yield page, button
    context.close()


@with_browser
def test_copying_by_the_keyboard_keeps_the_place_and_is_told(copied):
    page, button = copied
    page.wait_for_function("[...document.querySelectorAll('[role=status]')].some(one => one.textContent === 'Copied')")
    page.wait_for_function("document.activeElement.matches('.copybtn')")
    assert button.evaluate("one => one === document.activeElement")
    names = page.eval_on_selector_all(".copybtn", "all => all.map(one => one.getAttribute('aria-label'))")
    assert len(names) > 10 and len(set(names)) > 0.8 * len(names) and all(name.startswith("Copy: ") for name in names)


@with_browser
def test_a_reader_who_goes_on_after_copying_keeps_the_focus_there(copied):
    page, _ = copied
    page.wait_for_function("document.activeElement.matches('.copybtn')")
    page.mouse.click(700, 500)
    page.wait_for_timeout(1200)  # the last time at which it would have come back
    assert not page.evaluate("document.activeElement.matches('.copybtn')")


@with_browser
@pytest.mark.parametrize("width", [1200, 1400, 1920])
def test_nothing_lies_on_a_button_that_copies(browser, site, width):
    page = browser.new_page(viewport=WIDE | {"width": width})
    page.goto(f"{site}/notebooks/03-masks.html", wait_until="load")
    covered = """() => { const out = [];
      for (const button of [...document.querySelectorAll('.bd-article > section div.cell .copybtn')].filter(one => one.checkVisibility()).slice(0, 6))
        for (const height of [150, 400, 700]) {  // beside the entries of the outline, and below them
          scrollBy({ top: button.getBoundingClientRect().top - height, behavior: 'instant' });
          const r = button.getBoundingClientRect();
          for (const [x, y] of [[r.left + 2, r.top + 2], [r.right - 2, r.top + 2], [r.left + 2, r.bottom - 2], [r.right - 2, r.bottom - 2]])
            out.push(document.elementFromPoint(x, y)?.closest('.copybtn') === button);
        }
      return out }"""
    found = page.evaluate(covered)
    assert len(found) > 40 and all(found)
    page.close()


@with_browser
def test_buttons_of_the_head_tell_their_state_and_keep_the_focus(browser, site):
    page = browser.new_page(viewport=WIDE)
    page.goto(f"{site}/notebooks/03-masks.html", wait_until="load")
    toggle = page.locator(".primary-toggle:visible").first
    toggle.focus()
    assert toggle.get_attribute("aria-expanded") == "true"
    for state in ("false", "true"):
        page.keyboard.press("Enter")
        page.wait_for_function("state => document.activeElement.matches(`.primary-toggle[aria-expanded=${state}]`)", arg=state)
    theme = page.locator(".theme-switch-button:visible").first
    said = []
    for _ in range(3):
        theme.click()
        page.wait_for_function("""() => [...document.querySelectorAll('.theme-switch-button')].every(
            one => one.getAttribute('aria-label') === `Colours: ${document.documentElement.dataset.mode}`)""")
        said.append(theme.get_attribute("aria-label"))
    assert len(set(said)) == 3
    page.close()


@with_browser
@pytest.mark.parametrize(("width", "name"), [(390, "primary"), (390, "secondary"), (970, "primary"), (1000, "secondary")])
def test_a_drawer_covers_the_page_and_closes_by_a_touch_beside_it(browser, site, width, name):
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto(f"{site}/notebooks/03-masks.html", wait_until="load")
    page.locator(f".{name}-toggle:visible").first.click()
    drawer = page.locator(f"#pst-{name}-sidebar-modal")
    page.wait_for_function("name => document.querySelector(`#pst-${name}-sidebar-modal`).open", arg=name)
    page.wait_for_function("name => document.querySelector(`.${name}-toggle[aria-expanded=true]`)", arg=name)
    assert re.fullmatch(r"rgb\(\d+, \d+, \d+\)", drawer.evaluate("one => getComputedStyle(one).backgroundColor"))
    page.mouse.click(*((width - 10, 600) if name == "primary" else (10, 600)))
    page.wait_for_function("name => !document.querySelector(`#pst-${name}-sidebar-modal`).open", arg=name)
    page.wait_for_function("name => document.querySelector(`.${name}-toggle[aria-expanded=false]`)", arg=name)
    page.close()


@with_browser
def test_a_docstring_unfolds_by_enter_and_an_enlarged_figure_closes_from_anywhere(browser, site):
    page = browser.new_page(viewport=WIDE)
    page.goto(f"{site}/notebooks/02-attention.html", wait_until="load")
    more = page.locator(".more").first
    more.focus()
    page.keyboard.press("Enter")
    assert more.is_checked()
    page.keyboard.press("Enter")
    assert not more.is_checked()
    page.locator(".zoom-open").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog.zoom[open]")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('dialog.zoom').open")
    page.close()


@with_browser
def test_a_search_tells_what_it_found(browser, site):
    page = browser.new_page(viewport=WIDE)
    page.goto(f"{site}/search.html?q=softmax", wait_until="load")
    page.wait_for_function("[...document.querySelectorAll('[role=status]')].some(one => /found \\d+ page/.test(one.textContent))")
    page.close()


@with_browser
@pytest.mark.parametrize("name", ["book/index", "notebooks/07-transformer", "notebooks/03-masks"])
@pytest.mark.parametrize("width", [1280, 640])
def test_letters_of_twice_the_size_stay_on_the_page(large, site, name, width):
    page = large.new_page(viewport={"width": width, "height": 900})
    page.goto(f"{site}/{name}.html", wait_until="load")
    assert page.evaluate("getComputedStyle(document.documentElement).fontSize") == "32px"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    title = page.locator(".bd-article h1:visible").first
    wide, words = title.evaluate("one => [one.clientWidth - parseFloat(getComputedStyle(one).paddingRight), one.textContent]")
    longest = max(map(len, words.split()))
    assert wide > 0.5 * 2.35 * 32 * min(longest, 12)  # no word is cut for want of room
    assert page.locator(".article-header-buttons").evaluate("one => one.getBoundingClientRect().top") >= 0
    page.close()

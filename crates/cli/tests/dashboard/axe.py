"""axe-core, which checks a page against rules of accessibility. `./test` installs a package that contains it."""

import importlib.util
import os


def source():
    """Its text; none if it is not installed, which is an error where all peers are required."""
    package = importlib.util.find_spec("axe_playwright_python")
    if package is None:
        assert os.environ.get("WORNPATH_PEERS") != "required", "no `axe_playwright_python` for python3, and WORNPATH_PEERS=required"
        return None
    with open(os.path.join(os.path.dirname(package.origin), "axe.min.js"), encoding="utf-8") as file:
        return file.read()


def serious(browser, text):
    """The serious and critical violations of what the page shows, with the first places of each."""
    browser.js(f"if (!window.axe) {{ {text} }} 1")
    found = browser.js(
        "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map(one =>"
        " ({impact: one.impact, id: one.id, at: one.nodes.slice(0, 3).map(node => node.html.slice(0, 160))})))")
    return [one for one in found if one["impact"] in ("serious", "critical")]

"""Violations that axe-core (https://github.com/dequelabs/axe-core) reports: rules of WCAG that a program can judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Page

from build_ui import MODULES
from ui.conftest import expect_at_rest

SCRIPT = MODULES / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")
COLOURS = ("color-contrast", "link-in-text-block")
"""The rules that depend on the theme."""
FITS = "document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth"
OPENED = "body > [data-part=positioner]"
"""Menus and dialogs."""
# Ours alone: the host has violations of its own. Menus and dialogs are beside the page, in portals.
FIND = """async ([theme, grave, rules, within]) => {
    const ends = document.getAnimations().filter(({ effect }) => effect.getComputedTiming().endTime < Infinity);
    await Promise.all(ends.map(({ finished }) => finished.catch(() => null)));
    const include = [...document.querySelectorAll(within)];
    const asked = { selectors: false, resultTypes: ["violations"], ...(rules && { runOnly: rules }) };
    const { violations } = await axe.run({ include }, asked);
    return violations.filter(({ impact }) => grave.includes(impact)).flatMap(({ id, help, nodes }) =>
        nodes.map(({ html, failureSummary }) => `${theme} ${location}: ${help} (${id}): ${html}: ${failureSummary}`));
}"""


def expect_fits(page: Page) -> None:
    """Expects that the page is no wider than the screen, once it is drawn for the screen's width."""
    expect_at_rest(page)
    page.wait_for_function(FITS)


def grave_violations(
    page: Page, theme: str = "light", rules: Sequence[str] | None = None, within: str = f"main, {OPENED}"
) -> list[str]:
    """Returns serious and critical violations of a page, by all rules or some, in all of it or some elements.

    Also its landmark and heading where there is not one each. Looks once the page waits for nothing any more.
    """
    expect_at_rest(page)
    if not page.evaluate("'axe' in window"):
        page.evaluate(SCRIPT.read_text())
    result: list[Any] = page.evaluate(FIND, [theme, GRAVE, rules, within])
    counts = {tag: page.locator(tag).count() for tag in ("main", "main h1")}
    return [str(each) for each in result] + [f"{page.url}: {n} {tag}" for tag, n in counts.items() if n != 1]


UNMARKED = """() => {
  const found = new Set();
  const main = document.querySelector("main");
  const words = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const text = words.currentNode;
    const isSeen = text.parentElement.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    if (!/\\d/.test(text.data) || !isSeen) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const drawn = [...range.getClientRects()].filter(({ width }) => width > 1);
    let isInline = true;
    for (let box = text.parentElement; box !== main; box = box.parentElement) {
      const { display, overflowX, textOverflow } = getComputedStyle(box);
      if (display === "inline" || display === "contents") continue;
      if (/auto|scroll/.test(overflowX)) break;
      const edge = box.getBoundingClientRect();
      const cut = /hidden|clip/.test(overflowX) && drawn.some(
        ({ left, right, top, bottom }) =>
          bottom > edge.top + 2 && top < edge.bottom - 2 && right > edge.left && left < edge.right &&
          (right > edge.right + 1.5 || left < edge.left - 1.5));
      if (cut && !(textOverflow === "ellipsis" && isInline)) found.add(`cut: ${text.data.slice(0, 60)}`);
      if (cut) break;
      isInline &&= display.startsWith("inline");
    }
  }
  for (const box of main.querySelectorAll("*")) {
    const { overflowY, borderLeftWidth, borderRightWidth } = getComputedStyle(box);
    const bar = box.offsetWidth - box.clientWidth - parseFloat(borderLeftWidth) - parseFloat(borderRightWidth);
    if (/auto|scroll/.test(overflowY) && box.clientWidth > 0 && bar > 4 && box.scrollHeight - box.clientHeight <= 1) {
      found.add(`a scroll bar that scrolls nothing: ${box.getAttribute("aria-label") ?? box.className}`);
    }
  }
  return [...found];
}"""
"""Finds numbers that are cut without a mark, and scroll bars that scroll nothing."""

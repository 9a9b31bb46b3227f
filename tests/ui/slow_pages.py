"""Pages as on a slow machine behind a slow network: each answer of the plugin's API comes up to two seconds late."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page

SLOWER = 3
"""How much slower a page's processor is."""
# By a generator of our own (mulberry32): a browser's has no seed.
LATE = """
(() => {
  let state = SEED;
  const random = () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
  const { fetch } = window;
  window.fetch = async (input, init) => {
    const answer = await fetch(input, init);
    if (String(input.url ?? input).includes("/hops/")) {
      await new Promise((resolve) => setTimeout(resolve, 2000 * random()));
      (init?.signal ?? input.signal)?.throwIfAborted();
    }
    return answer;
  };
})();
"""


def slow_page(context: BrowserContext, seed: int) -> Page:
    """Opens a slow page; the seed decides how late each of its answers is."""
    page = context.new_page()
    page.add_init_script(LATE.replace("SEED", str(seed)))
    context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    return page

"""A browser's window that measures itself: from its own clock, when something is seen."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page, Request

WATCH = """
window.painted = (seen) => new Promise((resolve, reject) => {
  setTimeout(() => reject(new Error('not seen within a minute: ' + seen)), 60000);
  const { port1, port2 } = new MessageChannel();
  // The frame that has it is drawn before the task after it runs.
  port1.onmessage = () => resolve(performance.now());
  const look = () => seen() ? port2.postMessage(0) : requestAnimationFrame(look);
  requestAnimationFrame(look);
});
"""
PAN = """async (frames) => {
  const canvas = document.querySelector('[data-dive="plot"] canvas');
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const took = [];
  let before = await frame();
  for (let at = 0; at < frames; at++) {
    const key = at % 8 < 4 ? 'ArrowLeft' : 'ArrowRight';
    canvas.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
    const now = await frame();
    took.push(now - before);
    before = now;
  }
  return took.slice(2);
}"""
"""Moves the picture in each frame, and says how many milliseconds lie between them."""
TIMEOUT_MS = 120_000


class Window:
    """A window of a browser.

    Attributes:
        page: Playwright's.
        answered: The requests whose answers came in full.
    """

    def __init__(self, context: BrowserContext, seen: str) -> None:
        """Opens it; ``seen`` is the JavaScript expression that :meth:`open` waits for."""
        self.page: Page = context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.answered: list[Request] = []
        self.page.on("requestfinished", lambda request: self.answered.append(request))
        self.page.add_init_script(f"{WATCH}\nwindow.opened = painted(() => {seen});")

    def open(self, url: str) -> float:
        """Seconds from the start of the navigation until it is seen."""
        self.page.goto(url, wait_until="commit")
        return float(self.page.evaluate("window.opened")) / 1000

    def act(self, action: str, seen: str) -> float:
        """Seconds from an action until its outcome is seen: statements of JavaScript, and an expression."""
        timed = f"const from = performance.now(); {action}; return await painted(() => {seen}) - from;"
        return float(self.page.evaluate(f"async () => {{ {timed} }}")) / 1000

    def settle(self) -> None:
        """Waits until no request is open."""
        self.page.wait_for_load_state("networkidle")

    def payload(self, part: str) -> int:
        """Bytes of the answers with this in their addresses, as sent: compressed, without headers."""
        return sum(request.sizes()["responseBodySize"] for request in self.answered if part in request.url)

    def pan(self, frames: int = 60) -> list[float]:
        """Milliseconds of each frame while Dive's picture is moved."""
        took: list[float] = self.page.evaluate(PAN, frames)
        return took

    def close(self) -> None:
        """Closes it."""
        self.page.close()

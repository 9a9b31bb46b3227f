/**
 * Calls `redraw` when the browser has lost and restored what a canvas within the element shows: its GPU process ended,
 * as when the machine slept or a tab was long in the background. It restores canvases empty.
 *
 * @returns what ends it
 */
export function onRestored(element: HTMLElement, redraw: () => void): () => void {
  // This event does not bubble.
  element.addEventListener("contextrestored", redraw, { capture: true });
  return () => element.removeEventListener("contextrestored", redraw, { capture: true });
}

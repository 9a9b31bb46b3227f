/** Tooltips of charts as elements: ECharts takes a string for markup, and text from data is never that. */

import type { ChartTheme } from "src/components/chart/theme";

export interface TooltipLine {
  label: string;
  value?: string;
  muted?: boolean;
  strong?: boolean;
  /** Of the label. */
  color?: string;
}

/** Lines of text, values to the right: what a `formatter` returns. */
export function tooltipLines(theme: ChartTheme, lines: readonly TooltipLine[]): HTMLElement {
  const box = document.createElement("div");
  box.style.maxWidth = "360px";
  box.style.whiteSpace = "normal";
  for (const { label, value, muted = value !== undefined, strong = false, color } of lines) {
    const line = document.createElement("div");
    line.style.display = "flex";
    line.style.gap = "16px";
    line.style.justifyContent = "space-between";
    line.style.overflowWrap = "anywhere";
    const said = document.createElement("span");
    said.textContent = label;
    said.style.color = color ?? (muted ? theme.muted : "");
    said.style.fontWeight = strong ? "600" : "";
    line.append(said);
    if (value !== undefined) {
      const figure = document.createElement("span");
      figure.textContent = value;
      figure.style.fontVariantNumeric = "tabular-nums";
      line.append(figure);
    }
    box.append(line);
  }
  return box;
}

import { useMemo } from "react";
import { useQueryList } from "src/hooks/useQueryState";
import { asNumber, type Compared, figureOf } from "src/pages/Runs/figures";

/** A range marked on an axis; in the address `metrics.auc:0.7:0.8`. Of words, the ones that are marked: `params.a=x`. */
export interface Brush {
  key: string;
  low: number;
  high: number;
  words: readonly string[] | null;
}

const NUMBERS = /^(.+):([^:]+):([^:]+)$/;

/** The ranges that are marked, one for each stretch of an axis. */
export function useBrushes(): { brushes: Brush[]; change: (to: (all: Brush[]) => Brush[]) => void; clear: () => void } {
  const [texts, setTexts] = useQueryList("brush");
  const brushes = useMemo(() => parseBrushes(texts), [texts]);
  return {
    brushes,
    change: (to) => setTexts((all) => to(parseBrushes(all)).map(formatBrush)),
    clear: () => setTexts([]),
  };
}

/** Whether a run lies in a marked range of each axis that has any. */
export function passes(run: Compared, brushes: readonly Brush[]): boolean {
  const keys = new Set(brushes.map(({ key }) => key));
  return [...keys].every((key) => brushes.some((brush) => brush.key === key && isWithin(run, brush)));
}

function isWithin(run: Compared, { key, low, high, words }: Brush): boolean {
  const value = figureOf(run, key);
  if (words !== null) {
    return words.includes(String(value));
  }
  const number = asNumber(value);
  return number !== null && number >= low && number <= high;
}

export function formatBrush({ key, low, high, words }: Brush): string {
  return words === null
    ? `${key}:${Number(low.toPrecision(6))}:${Number(high.toPrecision(6))}`
    : JSON.stringify([key, ...words]);
}

const parseBrushes = (texts: readonly string[]): Brush[] => texts.flatMap((text) => parseBrush(text) ?? []);

export function parseBrush(text: string): Brush | null {
  if (text.startsWith("[")) {
    try {
      const [key, ...words] = JSON.parse(text) as string[];
      return key === undefined ? null : { key, low: 0, high: 0, words };
    } catch {
      return null;
    }
  }
  const [, key, low, high] = NUMBERS.exec(text) ?? [];
  return key === undefined ? null : { key, low: Number(low), high: Number(high), words: null };
}

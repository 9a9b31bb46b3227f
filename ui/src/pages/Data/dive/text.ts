/** Values of features in words. */

import { formatNumber, formatTime } from "src/format";
import { type Column, isMissing } from "src/pages/Data/dive/columns";

const DAY_MS = 86_400_000;

/**
 * A value of a column: of a category its word, of a time the time in the zone.
 *
 * @param step how far neighbouring values are apart, which decides the digits
 */
export function textOf(column: Column, value: number, zone: string, step?: number): string {
  if (isMissing(column, value)) {
    return "missing";
  }
  if (column.role === "category") {
    const word = column.words[value] ?? "";
    return word === "" ? "(empty)" : word;
  }
  if (column.role === "time") {
    const text = formatTime(value, zone);
    return step !== undefined && step >= DAY_MS ? text.slice(0, 10) : text.slice(0, 16);
  }
  return numberText(value, step);
}

function numberText(value: number, step: number | undefined): string {
  if (!Number.isFinite(value)) {
    return value > 0 ? "∞" : "−∞";
  }
  if (step === undefined || step === 0) {
    return formatNumber(value, 6);
  }
  const size = Math.max(Math.abs(value), step);
  if (size >= 1e9 || size < 1e-4) {
    return value === 0 ? "0" : formatNumber(value, 4);
  }
  const decimals = Math.min(Math.max(-Math.floor(Math.log10(step) + 1e-9), 0), 8);
  const text = new Intl.NumberFormat("en-US", { maximumFractionDigits: decimals }).format(value);
  return text === "-0" ? "0" : text;
}

/** Where the values of a feature lie on an axis, as a share of its length. */

import { timeTicks } from "src/components/chart/timeTicks";
import { type Column, factsOf, isMissing } from "src/pages/Data/dive/columns";
import { type Groups, groupBy } from "src/pages/Data/dive/groups";
import { textOf } from "src/pages/Data/dive/text";

export type ScaleKind = "linear" | "log";

/** A mark of an axis. */
export interface Tick {
  at: number;
  label: string;
}

/** A feature on an axis. */
export interface Axis {
  column: Column;
  /** Where each row lies, 0 to 1. */
  at: Float32Array;
  /** Marks between two places, about so many. */
  ticks: (from: number, to: number, about: number) => Tick[];
  /** The bands of an axis of categories, else null. */
  bands: Groups | null;
  /** How far apart two neighbouring values lie, where there are few; 0 where jitter makes no sense. */
  step: number;
}

/** Share of an axis that rows without a value get, at its beginning. */
const MISSING_SHARE = 0.07;
const MANY_BANDS = 40;
const MARGIN = 0.03;

/** Places a feature on an axis. */
export function makeAxis(column: Column, kind: ScaleKind, zone: string): Axis {
  return column.role === "category" ? bandAxis(column, zone) : rangeAxis(column, kind, zone);
}

function bandAxis(column: Column, zone: string): Axis {
  const bands = groupBy(column, MANY_BANDS, zone);
  const count = Math.max(bands.labels.length, 1);
  const at = Float32Array.from(bands.of, (group) => (group + 0.5) / count);
  const ticks = (from: number, to: number) =>
    bands.labels
      .map((label, index) => ({ at: (index + 0.5) / count, label }))
      .filter((tick) => tick.at >= from && tick.at <= to);
  return { column, at, ticks, bands, step: 1 / count };
}

function rangeAxis(column: Column, kind: ScaleKind, zone: string): Axis {
  const { forward, backward, values } = transform(column, kind, zone);
  const start = column.nulls > 0 ? MISSING_SHARE : 0;
  const place = (share: number) => start + (1 - start) * (MARGIN + (1 - 2 * MARGIN) * share);
  const unplace = (at: number) => ((at - start) / (1 - start) - MARGIN) / (1 - 2 * MARGIN);
  const at = new Float32Array(column.values.length);
  for (let row = 0; row < at.length; row++) {
    const value = column.values[row] as number;
    // What is infinite lies at an end.
    at[row] = isMissing(column, value) ? start / 2 : place(Math.min(Math.max(forward(value), 0), 1));
  }
  const ticks = (from: number, to: number, about: number): Tick[] => {
    const low = backward(Math.min(Math.max(unplace(from), 0), 1));
    const high = backward(Math.min(Math.max(unplace(to), 0), 1));
    const found = values(low, high, about)
      .map(({ value, step, label }) => ({
        at: place(forward(value)),
        label: label ?? textOf(column, value, zone, step),
      }))
      .filter((tick) => tick.at >= from && tick.at <= to);
    return start > 0 && from < start / 2 ? [{ at: start / 2, label: "missing" }, ...found] : found;
  };
  const { distinct, min, max } = factsOf(column);
  const discrete = kind === "linear" && distinct !== null && distinct.length > 1;
  const closest = discrete ? Math.min(...distinct.slice(1).map((value, index) => value - (distinct[index] ?? 0))) : 0;
  return { column, at, ticks, bands: null, step: discrete ? (place(1) - place(0)) * (closest / (max - min)) : 0 };
}

interface Transform {
  /** A value as a share of the range. */
  forward: (value: number) => number;
  backward: (share: number) => number;
  /** Values worth a mark. */
  values: (low: number, high: number, about: number) => { value: number; step?: number; label?: string }[];
}

function transform(column: Column, kind: ScaleKind, zone: string): Transform {
  const { min, max } = factsOf(column);
  if (min === max) {
    return { forward: () => 0.5, backward: () => min, values: () => [{ value: min }] };
  }
  if (kind === "log") {
    return logarithmic(min, max);
  }
  return {
    forward: (value) => (value - min) / (max - min),
    backward: (share) => min + share * (max - min),
    values: column.role === "time" ? (from, to, about) => roundTimes(from, to, zone, about) : niceSteps,
  };
}

/** Round numbers in a range: steps of 1, 2 or 5 times a power of ten. */
function niceSteps(low: number, high: number, about: number): { value: number; step: number }[] {
  const rough = (high - low) / Math.max(about, 1);
  if (!(rough > 0)) {
    return [];
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * (rough / power < 1.5 ? 1 : rough / power < 3.5 ? 2 : rough / power < 7.5 ? 5 : 10);
  return multiples(low, high, step);
}

function roundTimes(from: number, to: number, zone: string, about: number): { value: number; label: string }[] {
  const { values, label } = timeTicks(from, to, zone, Math.max(about, 1));
  return values.map((value) => ({ value, label: label(value) }));
}

function multiples(low: number, high: number, step: number): { value: number; step: number }[] {
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(last - first + 1, 0) }, (_, index) => ({ value: (first + index) * step, step }));
}

/** Logarithmic; where there are values of 0 or less, in both directions from 0, and linear below 1. */
function logarithmic(min: number, max: number): Transform {
  const plain = min > 0;
  const bend = (value: number) => (plain ? Math.log10(value) : Math.sign(value) * Math.log10(1 + Math.abs(value)));
  const unbend = (bent: number) => (plain ? 10 ** bent : Math.sign(bent) * (10 ** Math.abs(bent) - 1));
  const [low, high] = [bend(min), bend(max)];
  return {
    forward: (value) => (bend(value) - low) / (high - low),
    backward: (share) => unbend(low + share * (high - low)),
    values: (from, to, about) => {
      if (plain ? to / from < 10 : to - from < 10) {
        return niceSteps(from, to, about);
      }
      const powers = Array.from({ length: 37 }, (_, index) => 10 ** (index - 18)).filter((p) => plain || p >= 1);
      const all = plain ? powers : [...powers.map((p) => -p), 0, ...powers];
      return all.filter((value) => value >= from && value <= to).map((value) => ({ value }));
    },
  };
}

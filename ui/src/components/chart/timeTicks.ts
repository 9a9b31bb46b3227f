/** Ticks of an axis of time at round times of the zone that the user has chosen; a chart's own are the browser's. */

import { formatTime } from "src/format";

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
const STEPS_MS = [
  ...[1, 5, 15, 30].map((minutes) => minutes * MINUTE_MS),
  ...[1, 3, 6, 12].map((hours) => hours * HOUR_MS),
  ...[1, 2, 7, 14].map((days) => days * DAY_MS),
];
const STEPS_MONTHS = [1, 3, 6, 12, 24, 60, 120];
/** 1970 began on a Thursday; weeks begin on Mondays. */
const FIRST_MONDAY_MS = 4 * DAY_MS;

/** Round times between two (ms since the epoch), about so many and one more at most, and how each is written. */
export function timeTicks(from: number, to: number, zone: string, about = 8) {
  const [first, last] = [wallOf(from, zone), wallOf(to, zone)];
  const step = STEPS_MS.find((size) => (last - first) / size <= about);
  const walls = step === undefined ? months(first, last, about) : evenly(first, last, step);
  const values = walls.map((wall) => instantOf(wall, zone)).filter((value) => value >= from && value <= to);
  const label = (value: number) => {
    const [day = "", time = ""] = formatTime(value, zone).split(" ");
    if (step === undefined) {
      return day.slice(0, 7);
    }
    if (step >= DAY_MS || time === "00:00:00") {
      return day;
    }
    // Among hours, the first says of which day they are.
    return value === values[0] ? `${day} ${time.slice(0, 5)}` : time.slice(0, 5);
  };
  return { values, label };
}

function evenly(first: number, last: number, step: number): number[] {
  const origin = step % (7 * DAY_MS) === 0 ? FIRST_MONDAY_MS : 0;
  const ticks = [];
  for (let wall = origin + Math.ceil((first - origin) / step) * step; wall <= last; wall += step) {
    ticks.push(wall);
  }
  return ticks;
}

function months(first: number, last: number, about: number): number[] {
  const [begin, end] = [monthOf(first), monthOf(last)];
  const step = STEPS_MONTHS.find((size) => (end - begin) / size <= about) ?? Math.ceil((end - begin) / about);
  const ticks = [];
  for (let month = Math.ceil(begin / step) * step; month <= end; month += step) {
    ticks.push(Date.UTC(Math.floor(month / 12), month % 12));
  }
  return ticks;
}

function monthOf(wall: number): number {
  const date = new Date(wall);
  return date.getUTCFullYear() * 12 + date.getUTCMonth();
}

/** What the clocks of a zone show, as if they were of UTC. */
function wallOf(instant: number, zone: string): number {
  return Date.parse(`${formatTime(instant, zone).replace(" ", "T")}Z`) + (instant % 1000);
}

/** When the clocks of a zone show a time; the other way round. */
function instantOf(wall: number, zone: string): number {
  const guess = wall - (wallOf(wall, zone) - wall);
  // Between the two, the clocks may have been changed.
  return guess - (wallOf(guess, zone) - wall);
}

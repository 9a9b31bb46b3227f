/** Numbers, sizes, shares and durations for people. An absent number is a dash. */

const NONE = "–";
type Maybe = number | null | undefined;

const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const significant = new Map<number, Intl.NumberFormat>();

/** Formats with so many significant digits: made once, which takes much longer than to format. */
function withDigits(digits: number): Intl.NumberFormat {
  const known = significant.get(digits) ?? new Intl.NumberFormat("en-US", { maximumSignificantDigits: digits });
  significant.set(digits, known);
  return known;
}

/** A number with so many significant digits: `0.7491`, `1,234`, `12.3M` only where it would be longer than that. */
export function formatNumber(value: Maybe, digits = 4): string {
  if (value === null || value === undefined || !Number.isFinite(value)) {
    return NONE;
  }
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e9) {
    return grouped.format(value);
  }
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) {
    return value.toExponential(Math.max(digits - 2, 0)).replace("e+", "e");
  }
  return size >= 10 ** digits ? grouped.format(value) : withDigits(digits).format(value);
}

/** A count in little space: `85.4k`, `1.2M`. */
export function formatCount(value: Maybe): string {
  if (value === null || value === undefined || !Number.isFinite(value)) {
    return NONE;
  }
  return new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 })
    .format(value)
    .replace("K", "k");
}

/** A count with its noun: `1 row`, `3 rows`, `2 entries`. */
export function plural(count: number, noun: string): string {
  return `${formatNumber(count)} ${count === 1 ? noun : /[^aeiou]y$/.test(noun) ? `${noun.slice(0, -1)}ies` : `${noun}s`}`;
}

/** How many of all are shown: `12 features`, `3 of 12 features`. */
export const countOf = (shown: number, all: number, noun: string): string =>
  `${shown === all ? "" : `${formatNumber(shown)} of `}${plural(all, noun)}`;

const LISTED = 10;

/** Names in a sentence: all where they are few, else the first of how many there are: `a, b, c and 412 more`. */
export function formatList(names: readonly string[], total = names.length): string {
  const rest = total - LISTED;
  return rest > 1 ? `${names.slice(0, LISTED).join(", ")} and ${formatNumber(rest)} more` : names.join(", ");
}

/** A share of 1 in percent: `12.3%`, `<0.01%`. */
export function formatPercent(share: Maybe, digits = 3): string {
  if (share === null || share === undefined || !Number.isFinite(share)) {
    return NONE;
  }
  const percent = share * 100;
  if (percent > 0 && percent < 0.01) {
    return "<0.01%";
  }
  return `${withDigits(digits).format(percent)}%`;
}

/** A size in bytes: `1.2 MiB`. */
export function formatBytes(bytes: Maybe): string {
  if (bytes === null || bytes === undefined || !Number.isFinite(bytes)) {
    return NONE;
  }
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), units.length - 1);
  return `${(power ? withDigits(3) : grouped).format(bytes / 2 ** (10 * power))} ${units[power]}`;
}

/** Seconds: `1.3 ms`, `4.2 s`, `3 min 5 s`, `2 h 4 min`, `3 d 2 h`. */
export function formatDuration(seconds: Maybe): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) {
    return NONE;
  }
  if (seconds < 0.9995) {
    return seconds === 0 ? "0 s" : `${Number((seconds * 1000).toPrecision(3))} ms`;
  }
  if (seconds < 60) {
    return `${Number(seconds.toPrecision(3))} s`;
  }
  const whole = Math.round(seconds);
  for (const [name, size, below, part] of [
    ["d", 86_400, "h", 3_600],
    ["h", 3_600, "min", 60],
    ["min", 60, "s", 1],
  ] as const) {
    if (whole >= size) {
      const rest = Math.floor((whole % size) / part);
      return `${Math.floor(whole / size)} ${name}${rest ? ` ${rest} ${below}` : ""}`;
    }
  }
  return `${whole} s`;
}

/** A p-value: `p = 0.032`, `p < 1e-6`. */
export function formatPValue(p: Maybe): string {
  if (p === null || p === undefined || !Number.isFinite(p)) {
    return NONE;
  }
  return p < 1e-6 ? "p < 1e-6" : `p = ${formatNumber(p, 2)}`;
}

/** A time in a zone, as the host writes it: `2026-11-20 17:13:33`. */
export function formatTime(time: string | number | Date, zone: string): string {
  // Swedish dates are ISO dates.
  return new Intl.DateTimeFormat("sv-SE", { timeZone: zone, dateStyle: "short", timeStyle: "medium" }).format(
    new Date(time),
  );
}

const STEPS = [
  ["year", 31_557_600],
  ["month", 2_629_800],
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
] as const;

/** How long ago, or in how long: `3 minutes ago`, `in 2 days`. */
export function formatRelative(time: string | number | Date, now: number): string {
  const seconds = (new Date(time).getTime() - now) / 1000;
  const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  for (const [unit, size] of STEPS) {
    if (Math.abs(seconds) >= size) {
      return relative.format(Math.trunc(seconds / size), unit);
    }
  }
  return Math.abs(seconds) < 5 ? "just now" : relative.format(Math.trunc(seconds), "second");
}

const WEEK_MS = 6 * 86_400_000;

/** A time since when something is so: `3:12` of the same day, `Monday` of the last days, else `3 Nov`. */
export function formatSince(time: string | number | Date, now: number, zone: string): string {
  const [date, clock] = formatTime(time, zone).split(" ");
  if (date === formatTime(now, zone).split(" ")[0]) {
    return clock?.slice(0, -3).replace(/^0/, "") ?? "";
  }
  const isRecent = Math.abs(now - new Date(time).getTime()) < WEEK_MS;
  const parts = isRecent ? { weekday: "long" as const } : { day: "numeric" as const, month: "short" as const };
  return new Intl.DateTimeFormat("en-GB", { timeZone: zone, ...parts }).format(new Date(time));
}

const SHORT = /^(\w+?)__\d{4}-(\d\d-\d\d)T(\d\d:\d\d)/;
const SHORT_WITH_SECONDS = /^(\w+?)__\d{4}-(\d\d-\d\d)T(\d\d:\d\d:\d\d)/;

/** A run's id without what is the same for most: `manual 11-20 17:11`, or `manual 11-20 17:11:07`. */
export function shortRun(runId: string, seconds = false): string {
  const found = (seconds ? SHORT_WITH_SECONDS : SHORT).exec(runId);
  return found ? `${found[1]?.replace("asset_triggered", "asset")} ${found[2]} ${found[3]}` : runId;
}

/** `0.7023 (0.6982 to 0.7064)`. */
export function intervalInWords(interval: readonly number[] | null | undefined, digits = 4): string {
  const [value, low, high] = (interval ?? []).map((each) => formatNumber(each, digits));
  return value === undefined || value === "–" ? "–" : `${value} (${low} to ${high})`;
}

import {
  formatBytes,
  formatCount,
  formatDuration,
  formatList,
  formatNumber,
  formatPercent,
  formatPValue,
  formatRelative,
  formatSince,
  formatTime,
  intervalInWords,
  plural,
} from "src/format";
import { describe, expect, test } from "vitest";

test.each([
  [0, "0"],
  [0.74912, "0.7491"],
  [1234, "1,234"],
  [12345.678, "12,346"],
  [999_999_999, "999,999,999"],
  [1e9, "1.00e9"],
  [0.0001, "0.0001"],
  [0.00009, "9.00e-5"],
  [-0.5, "-0.5"],
])("a number: %d is %s", (value, text) => {
  expect(formatNumber(value)).toBe(text);
});

test("what is no number is a dash, in whatever unit", () => {
  for (const format of [formatNumber, formatCount, formatPercent, formatBytes, formatDuration, formatPValue]) {
    for (const value of [null, undefined, Number.NaN, Number.POSITIVE_INFINITY]) {
      expect(format(value)).toBe("–");
    }
  }
});

test("counts, nouns and lists", () => {
  expect([999, 85_400, 1_234_567].map(formatCount)).toEqual(["999", "85.4k", "1.23M"]);
  expect([plural(1, "row"), plural(1000, "row"), plural(2, "entry")]).toEqual(["1 row", "1,000 rows", "2 entries"]);
  const names = Array.from({ length: 12 }, (_, index) => `f${index}`);
  expect(formatList(names.slice(0, 11))).toBe(names.slice(0, 11).join(", "));
  expect(formatList(names)).toBe(`${names.slice(0, 10).join(", ")} and 2 more`);
});

test("shares and p-values say where they are too small to be written", () => {
  expect([0, 0.00005, 0.0001, 0.12345, 1].map((share) => formatPercent(share))).toEqual([
    "0%",
    "<0.01%",
    "0.01%",
    "12.3%",
    "100%",
  ]);
  expect([0.032, 1e-7].map(formatPValue)).toEqual(["p = 0.032", "p < 1e-6"]);
});

test.each([
  [0, "0 B"],
  [1023, "1,023 B"],
  [1024, "1 KiB"],
  [1.5 * 2 ** 20, "1.5 MiB"],
  [5 * 2 ** 50, "5,120 TiB"],
])("a size: %d is %s", (bytes, text) => {
  expect(formatBytes(bytes)).toBe(text);
});

test.each([
  [0, "0 s"],
  [0.0013, "1.3 ms"],
  [0.9994, "999 ms"],
  [0.9996, "1 s"],
  [59.9, "59.9 s"],
  [59.999, "60 s"],
  [60, "1 min"],
  [185, "3 min 5 s"],
  [3599.6, "1 h"],
  [7440, "2 h 4 min"],
  [266_400, "3 d 2 h"],
])("a duration: %d seconds are %s", (seconds, text) => {
  expect(formatDuration(seconds)).toBe(text);
});

describe("times", () => {
  test("are those of the zone", () => {
    const time = "2026-11-20T17:13:33Z";
    expect(formatTime(time, "UTC")).toBe("2026-11-20 17:13:33");
    expect(formatTime(time, "Asia/Tokyo")).toBe("2026-11-21 02:13:33");
  });

  test("are told from now", () => {
    const now = Date.UTC(2026, 10, 20, 12);
    const ago = (seconds: number) => formatRelative(now - 1000 * seconds, now);
    expect([4, 5, 59, 60, 7199, 86_400, 3e6, 4e7].map(ago)).toEqual([
      "just now",
      "5 seconds ago",
      "59 seconds ago",
      "1 minute ago",
      "1 hour ago",
      "yesterday",
      "last month",
      "last year",
    ]);
    expect(ago(-172_800)).toBe("in 2 days");
    const since = [7200, 3600 * 13, 5 * 86_400, 7 * 86_400].map((seconds) =>
      formatSince(now - 1000 * seconds, now, "Europe/Berlin"),
    );
    expect(since).toEqual(["11:00", "0:00", "Sunday", "13 Nov"]);
  });
});

test("an interval is a value and its ends", () => {
  expect(intervalInWords([0.70231, 0.698, 0.7064])).toBe("0.7023 (0.698 to 0.7064)");
  expect(intervalInWords(null)).toBe("–");
  expect(intervalInWords([null, null, null] as unknown as [number, number, number])).toBe("–");
});

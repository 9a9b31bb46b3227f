import { timeTicks } from "src/components/chart/timeTicks";
import { versionSeries } from "src/pages/Skew/chartMarks";
import type { Shown } from "src/pages/Skew/chartShown";
import { heatIndex } from "src/pages/Skew/heat";
import type { Check, Decision, Timeline } from "src/pages/Skew/timeline";
import { doubtsOf, featureRows, placeOf, ratioOf } from "src/pages/Skew/timeline";
import {
  changeInWords,
  classesInWords,
  EVENTS,
  effectInWords,
  formatEffect,
  toldInWords,
  toldOfStop,
} from "src/pages/Skew/words";
import { describe, expect, test } from "vitest";

const HOUR = 3_600_000;
const DAY = 24 * HOUR;

describe("ticks of time", () => {
  test.each([
    ["UTC", "2026-01-01T00:00Z", "2026-01-01T08:00Z", 9, "2026-01-01", "01:00"],
    ["Asia/Kolkata", "2026-01-01T00:00Z", "2026-01-01T08:00Z", 8, "2026-01-01 06:00", "07:00"],
    ["UTC", "2026-01-01T00:00Z", "2026-01-03T00:00Z", 9, "2026-01-01", "06:00"],
    ["UTC", "2026-01-01T00:00Z", "2026-02-20T00:00Z", 7, "2026-01-05", "2026-01-12"],
    ["UTC", "2020-02-01T00:00Z", "2026-02-01T00:00Z", 6, "2021-01", "2022-01"],
  ])("in %s from %s to %s", (zone, from, to, count, first, second) => {
    const { values, label } = timeTicks(Date.parse(from), Date.parse(to), zone);
    expect([values.length, ...values.slice(0, 2).map(label)]).toEqual([count, first, second]);
    expect(values.every((value) => value >= Date.parse(from) && value <= Date.parse(to))).toBe(true);
  });

  test("are at most nine, within whatever span", () => {
    for (let span = 5 * 60_000; span < 400_000 * DAY; span *= 1.7) {
      const { values } = timeTicks(1e12, 1e12 + span, "America/New_York");
      expect(values.length).toBeGreaterThan(0);
      expect(values.length).toBeLessThanOrEqual(9);
    }
  });

  test("stay at whole hours and midnights where clocks are changed", () => {
    const zone = "America/New_York";
    const changed = Date.parse("2026-03-08T05:00Z");
    const { values, label } = timeTicks(changed - DAY, changed + 2 * DAY, zone);
    expect(values.map(label).filter((text) => !/^2026-03-\d\d$|^12:00$/.test(text))).toEqual([]);
    expect(new Set(values).size).toBe(values.length);
  });
});

test("a newest comparison of another version than the one that serves is called so", () => {
  const doubts = (serving: number | null, ...versions: number[]) => {
    const entries = versions.map((version) => ({ model: "m", version }));
    return doubtsOf({ entries, serving: { m: serving }, problems: ["why"] } as unknown as Timeline).slice(0, -1);
  };
  expect([doubts(2, 1, 2), doubts(null, 1), doubts(2)]).toEqual([[], [], []]);
  expect(doubts(2, 1)).toEqual(["The newest comparison is of v1, not of v2, which serves and has no comparison yet."]);
  expect(doubts(1, 1, 2)).toEqual(["The newest comparison is of v2, not of v1, which serves."]);
});

test("a decision lists the notifications of people", () => {
  const decision = (notified: string[]) => ({ notified }) as unknown as Decision;
  expect(toldInWords(decision([]))).toBe("");
  expect(toldInWords(decision(["drift", "stop"]))).toBe(
    "People were notified that drift began and that requests have stopped.",
  );
  expect([["request"], ["stop"]].map((told) => toldOfStop(decision(told)))).toEqual([false, true]);
});

test("an effect is of a number in its units, else in points; of classes the most moved are named", () => {
  expect([formatEffect(2270.4, "regression"), formatEffect(0.031, "binary")]).toEqual(["2,270", "3.1%"]);
  expect(effectInWords(0.031, 0.031, null)).toBe("raises the mean prediction by 3.1 points");
  expect(effectInWords(1234.5, -1200, "regression")).toBe("lowers the mean prediction by 1,200");
  expect(effectInWords(1234.5, -3, "regression")).toBe("moves a prediction by 1,235 on average");
  expect(effectInWords(0.2, null, "multiclass")).toBe("moves a prediction by 20 points on average");
  expect(classesInWords({ cat: 0.1, dog: -0.25, owl: 0 })).toBe("dog −25 points, cat +10 points");
});

test("a feature's change is a line in words, which names a fault", () => {
  const found = { drifted: true, cause: "covariate_shift", detail: null, effect: 0.06, effect_signed: -0.06 };
  const shifted = { ...found, summary: "about 30% larger" };
  const fault = { ...shifted, cause: "unit_change", detail: "kilo", summary: "median 4,000, 4 before", effect: null };
  expect(
    [shifted, fault, { ...shifted, summary: null }, { ...shifted, drifted: false, cause: null }].map((each) =>
      changeInWords(each, "binary"),
    ),
  ).toEqual([
    "about 30% larger; lowers the mean prediction by 6 points",
    "another unit (kilo): median 4,000, 4 before",
    "values shifted; lowers the mean prediction by 6 points",
    "about 30% larger",
  ]);
});

const check = (verdict: string, drifted: string[], hour: number, more: Partial<Check> = {}) =>
  ({
    verdict,
    drifted,
    causes: {},
    effects: {},
    at: new Date(hour * HOUR).toISOString(),
    window_end: new Date(hour * DAY).toISOString(),
    ...more,
  }) as unknown as Check;

const TIMELINE = {
  entries: [
    check("drift", ["temp"], 1),
    check("stable", [], 2),
    check("drift", ["temp"], 3),
    check("drift", ["temp"], 4, { causes: { temp: "covariate_shift" } }),
    check("insufficient", ["temp"], 5),
  ],
  features: {
    hour: [
      [0.01, 0.02, 0.09, null, 9],
      [0.1, 0.1, 0.1, 0.1, 0.1],
    ],
    temp: [
      [0.3, 0.05, 0.2, 0.4, null],
      [0.1, 0.1, 0.1, 0.1, null],
    ],
  },
} as unknown as Timeline;

describe("the timeline", () => {
  test("a comparison with too few rows says nothing", () => {
    const [temp, hour] = featureRows(TIMELINE);
    expect(temp).toMatchObject({ now: 0.4, driftedCount: 3, streak: 2, cause: "covariate_shift" });
    expect(hour).toMatchObject({ now: null, driftedCount: 0, streak: 0, cause: null });
    expect(temp?.drifted).toEqual([true, false, true, true, false]);
  });

  test("drifted features are first in their order, then those nearest to their thresholds", () => {
    const scores = { near: 0.04, far: 0.9, still: 0.01, rare: 0.02 };
    const features = Object.fromEntries(Object.entries(scores).map(([name, score]) => [name, [[score], [0.05]]]));
    const rows = featureRows({ entries: [check("drift", ["rare", "far"], 1)], features } as unknown as Timeline);
    expect(rows.map(({ name, rank }) => [name, rank])).toEqual([
      ["rare", 0],
      ["far", 1],
      ["near", 2],
      ["still", 3],
    ]);
  });

  test("what happened between two comparisons stands between their data", () => {
    const { entries: checks } = TIMELINE;
    const at = (hours: number) => placeOf(new Date(hours * HOUR).toISOString(), checks, "data") / DAY;
    expect([0, 1, 2.5, 9].map(at)).toEqual([1, 1, 2.5, 5]);
    expect(placeOf(new Date(HOUR).toISOString(), checks, "wall")).toBe(HOUR);
  });

  test("a canary that began after the last comparison stands at that one, several events of a moment are one mark", () => {
    const { entries: checks } = TIMELINE;
    const event = (hour: number, name: string) => ({
      at: new Date(hour * HOUR).toISOString(),
      event: name,
      version: 2,
    });
    const events = [event(2, "deployed"), event(2, "canary"), event(99, "canary")];
    const theme = { color: (token: string) => token };
    const { data } = versionSeries({ events, checks, axis: "data", theme, zone: "UTC" } as unknown as Shown) as {
      data: [number, string][];
    };
    expect(data.map(([time, row]) => [time / DAY, row])).toEqual([
      [2, "Versions"],
      [5, "Versions"],
    ]);
    expect(EVENTS.canary).toBe("began as a canary");
  });

  test("ratios and their colours", () => {
    expect([ratioOf(0.2, 0.1), ratioOf(0, 0), ratioOf(1, 0), ratioOf(null, 1)]).toEqual([2, 0, null, null]);
    expect([0, 0.5, 1.2, null].map((ratio) => heatIndex(ratio, false, undefined))).toEqual([0, 1, 1, null]);
    expect(["covariate_shift", "unit_change"].map((cause) => heatIndex(0.3, true, cause))).toEqual([2, 3]);
  });
});

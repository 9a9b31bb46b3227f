import type { ChartTheme } from "airflow-hops";
import { chartOption } from "src/extensions/replay/chartOption";
import {
  bestAt,
  chosenAt,
  netOf,
  type Policy,
  periodsOf,
  type Report,
  retrainingAt,
  servedBy,
  valueAtEnd,
  winsInWords,
  winsOf,
} from "src/extensions/replay/report";
import { describe, expect, test, vi } from "vitest";

const policy = (name: string, better: number, trainings: number): Policy =>
  ({ name, better: [better, better, better], retrainings: Array.from({ length: trainings }, () => ({})) }) as Policy;

const NEVER = policy("never", 0, 0);
const DRIFT = policy("drift", 0.012, 4);
const WEEKLY = policy("weekly", 0.02, 24);
const MONTHLY = policy("monthly", 0.008, 6);
const POLICIES = [NEVER, MONTHLY, WEEKLY, DRIFT];

describe("who earns most at a price", () => {
  test("is found from zero to any price, as trying many prices does", () => {
    const wins = winsOf(POLICIES);
    expect(wins.map(({ name }) => name)).toEqual(["weekly", "drift", "never"]);
    for (let price = 0; price < 0.01; price += 0.00007) {
      const winner = wins.find(({ to }) => to === null || price < to);
      expect(bestAt(POLICIES, price)?.name).toBe(winner?.name);
    }
  });

  test("goes to fewer trainings where several earn the same, and of lines that meet in a point to the flattest", () => {
    expect(bestAt([WEEKLY, policy("rare", 0.02, 2)], 0)?.name).toBe("rare");
    const met = [policy("a", 3, 3), policy("b", 2, 2), policy("c", 1, 1), policy("d", 0, 0)];
    expect(winsOf(met)).toEqual([
      { name: "a", to: 1 },
      { name: "d", to: null },
    ]);
    expect(winsOf([])).toEqual([]);
    const unknown = { ...policy("unknown", 0, 1), better: [null, null, null] } as unknown as Policy;
    expect(winsOf([unknown, NEVER])).toEqual([{ name: "never", to: null }]);
  });

  test("is said in a sentence", () => {
    expect(winsInWords(winsOf(POLICIES))).toBe(
      "weekly earns most up to 0.0004 per training, drift up to 0.003, never beyond.",
    );
    expect(winsInWords(winsOf([NEVER, policy("drift", -0.1, 2)]))).toBe("never earns most at any price.");
    expect(winsInWords([])).toBe("");
  });

  test("is at the report's own price what the report says", () => {
    const report = { policies: POLICIES, price: 0.001, chosen: "monthly" } as unknown as Report;
    expect(chosenAt(report, 0.001)).toBe("monthly");
    expect(chosenAt(report, 0.002)).toBe("drift");
    expect(netOf(DRIFT, 0.002)).toBeCloseTo(0.004);
  });
});

describe("what lies where in time", () => {
  const day = (number: number) => `2013-04-0${number}T00:00:00+00:00`;
  const ms = (number: number) => Date.parse(day(number));
  const report = { candidates: [{ end: day(1) }], ticks: [day(3), day(5), day(7)] } as unknown as Report;
  const one = { serving: [0, 0, 2], values: [0.7, 0.6, null], retrainings: [{ at: "2013-04-05T02:00:00+02:00" }] };

  test("are periods, the spans of candidates, and the points where a policy retrained", () => {
    const periods = periodsOf(report);
    expect(periods[0]).toEqual({ start: ms(1), end: ms(3) });
    expect(periods[2]).toEqual({ start: ms(5), end: ms(7) });
    expect(servedBy(one as unknown as Policy, periods)).toEqual([
      { candidate: 0, start: ms(1), end: ms(5) },
      { candidate: 2, start: ms(5), end: ms(7) },
    ]);
    const ends = [0, 1, 2].map((place) => valueAtEnd(one as unknown as Policy, place));
    expect(ends[0]).toBeCloseTo(0.65);
    expect(ends.slice(1)).toEqual([0.6, null]);
    expect(retrainingAt(one as unknown as Policy, day(5))).toBeDefined();
    expect(retrainingAt(one as unknown as Policy, day(3))).toBeUndefined();
  });

  test("is found by reading each time once or twice, however many there are", () => {
    const at = Array.from({ length: 300 }, (_, number) => new Date(number * 864e5).toISOString());
    const retrainings = at.map((each) => ({ at: each, promoted: true }));
    const many = { name: "daily", values: at.map(() => 0.7), serving: at.map(() => 0), decisions: [], retrainings };
    const parsed = vi.spyOn(Date, "parse");
    const theme = {} as ChartTheme;
    const shown = {
      candidates: [{ start: at[0], end: at[0] }],
      policies: [many],
      best: null,
      ticks: at,
      rows: [],
      metric: "auc",
    };
    const { series } = chartOption(shown as unknown as Report, new Map(), theme, "UTC", false);
    expect((series as { markPoint: { data: object[] } }[])[0]?.markPoint.data).toHaveLength(300);
    expect(parsed.mock.calls.length).toBeLessThan(6 * 300);
    parsed.mockRestore();
  });
});

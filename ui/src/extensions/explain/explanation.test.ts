import { type Explanation, newlyUsed, noLongerUsed, stepsOf } from "src/extensions/explain/explanation";
import { expect, test } from "vitest";

const importance = (
  feature: string,
  candidate: number[] | null,
  champion: number[] | null,
  is_beyond_chance: boolean,
) => ({
  feature,
  candidate,
  champion,
  is_beyond_chance,
});

const report = (champion: unknown) =>
  ({
    champion,
    importance: [
      importance("both", [0.2, 0.1, 0.3], [0.2, 0.1, 0.3], true),
      importance("new", [0.2, 0.1, 0.3], null, true),
      importance("noticed", [0.2, 0.1, 0.3], [0, -0.01, 0.01], true),
      importance("chance", [0.01, -0.01, 0.03], [0, -0.01, 0.01], false),
      importance("dropped", null, [0.2, 0.1, 0.3], false),
    ],
  }) as unknown as Explanation;

test("features that only one of the models looks at are named", () => {
  expect(newlyUsed(report({ version: 1 }))).toEqual(["new", "noticed"]);
  expect(noLongerUsed(report({ version: 1 }))).toEqual(["dropped"]);
  expect(newlyUsed(report(null))).toEqual([]);
});

test("a waterfall leads from the base to the prediction", () => {
  const reasons = [
    { feature: "hour", value: "7", contribution: 0.3, error: 0.01 },
    { feature: "carrier", value: null, contribution: -0.1, error: 0 },
  ];
  const row = { key: "1", class_name: null, prediction: 0.45, base: 0.2, reasons, rest: 0.05 };
  const steps = stepsOf(row);
  expect(steps.map(({ label, value }) => [label, value])).toEqual([
    ["hour", "7"],
    ["carrier", "missing"],
    ["all others", ""],
  ]);
  expect(steps[0]?.from).toBe(0.2);
  expect(steps[2]?.to).toBeCloseTo(0.45);
});

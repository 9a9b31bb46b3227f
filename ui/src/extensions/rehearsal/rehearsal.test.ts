import { widthsOf } from "src/components/table";
import { columnsFor } from "src/extensions/rehearsal/FaultTable";
import {
  afterInWords,
  alarmsOf,
  byEffect,
  effectInWords,
  type Fault,
  lossInWords,
  type Report,
  rangeInWords,
  slipsInWords,
  spanInWords,
} from "src/extensions/rehearsal/rehearsal";
import { expect, test } from "vitest";

const made = (more: Partial<Fault>) =>
  ({ feature: "temp", fault: "shift", unit: "sd", size: 0.4, words: "shift of 0.4 sd", ...more }) as Fault;
const report = (faults: Fault[], more: Partial<Report> = {}) =>
  ({ faults, features: [], windows: Array(30), every_s: 86_400, problem: "binary", metric: "auc", ...more }) as Report;

test("a span is told in its largest unit", () => {
  expect([90, 5400, 86_400, 172_800].map(spanInWords)).toEqual(["1.5 minutes", "1.5 hours", "1 day", "2 days"]);
  expect(afterInWords(made({ after: null }), report([]))).toBe("not within 30 days");
});

test.each([
  [{ interval: [0.3, 0.5] }, "0.3 sd to 0.5 sd"],
  [{ interval: [null, 0.5], unit: "share" }, "up to 50%"],
  [{ interval: [1.5, null], unit: "factor" }, "×1.5 or more"],
  [{ interval: [null, null] }, ""],
])("the interval of a size says which end is not known", (more, words) => {
  expect(rangeInWords(made(more))).toBe(words);
});

test.each([
  [{ effect: 0.0214, loss: -0.004 }, "moves predictions by ≤ 2.1 points", "AUC worse by ≤ 0.004"],
  [{ effect: 0.01, loss: 0.001 }, "moves predictions by ≤ 1 point", "AUC no worse"],
  [{ effect: 0.5, loss: -0.1, size: null }, "moves predictions by ≥ 50 points", "AUC worse by ≥ 0.1"],
  [{ effect: null, loss: null }, "has an unknown effect", ""],
  [{ effect: null, loss: -0.1, fault: "labels" }, "makes predictions wrong", "AUC worse by ≤ 0.1"],
])("what slips through is bounded by the smallest change found", (more, effect, loss) => {
  expect(effectInWords(made(more), report([]))).toBe(effect);
  expect(lossInWords(made(more), report([]))).toBe(loss);
});

test("a regression's effect is in the label's unit", () => {
  expect(effectInWords(made({ effect: 12.34 }), report([], { problem: "regression" }))).toMatch(/≤ 12$/);
});

test("faults with the largest effect come first, of equals those that are not found", () => {
  const [small, large, missed, unknown] = [{ effect: 0.1 }, { effect: 0.2 }, { effect: 0.2, size: null }, {}].map(made);
  expect(byEffect([unknown, small, large, missed] as Fault[])).toEqual([missed, large, small, unknown]);
});

test("what is not noticed is named, and the rest is bounded", () => {
  const faults = [made({ effect: 0.02, after: 2 }), made({ effect: 0.3, size: null, feature: "" })];
  const { missed, found } = slipsInWords(report(faults));
  expect(missed).toMatch(/^1 of 2 faults .* in whole rows\. The worst moves predictions by ≥ 30 points on average \(/);
  expect(found).toMatch(/^Of the other 1 fault, .* by ≤ 2 points on average \(temp: .* within 2 days\.$/);
  expect(slipsInWords(report([])).found).toBe("");
});

test("false alarms of two features are those of the model", () => {
  const features = [{ name: "temp", false_alarms: [0.1, 0, 0.2] }] as never;
  const all = report([], { features, false_alarms: [0.5, 0.4, 0.6] });
  expect([made({}), made({ feature: "temp and dest" })].map((each) => alarmsOf(each, all)[0])).toEqual([0.1, 0.5]);
});

test("the columns fit on a screen of 1280 pixels", () => {
  const widths = widthsOf(columnsFor(report([])), 1098);
  expect(widths.reduce((sum, width) => sum + width, 0)).toBeLessThanOrEqual(1098);
});

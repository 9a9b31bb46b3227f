import { chaptersOf, deciles, keyInWords, type SegmentVersion, type Story, saving } from "src/extensions/fleet/story";
import { describe, expect, test } from "vitest";

const version = (number: number, at: string, isNew: boolean): SegmentVersion => ({
  version: number,
  at,
  state: "own",
  reason: "",
  rows: 10,
  loss: 1,
  pooled_loss: 2,
  is_new_model: isNew,
});

describe("the story of a segment", () => {
  const drift = {
    dag_id: "d",
    run_id: "r",
    task_id: "t",
    map_index: -1,
    iteration: -1,
    kind: "fleet_skew",
    at: "2026-11-02T00:00:00Z",
    words: "price moved",
    group: "",
    columns: ["price"],
  };
  const story: Story = {
    segment: "A1",
    versions: [
      version(1, "2026-11-01T00:00:00Z", true),
      version(2, "2026-11-01T12:00:00Z", false),
      version(3, "2026-11-03T00:00:00Z", true),
    ],
    drifts: [drift],
    decisions: [
      { at: "2026-11-03T00:00:00Z", event: "canary", version: 3, why: "" },
      { at: "2026-11-04T00:00:00Z", event: "promoted", version: 3, why: "better" },
    ],
  };

  test("goes from drift to promotion, the newest first, without versions that kept the model", () => {
    const told = chaptersOf(story).map((each) =>
      each.kind === "decision"
        ? each.decision.event
        : each.kind === "model"
          ? `model ${each.version.version}`
          : "drift",
    );
    expect(told).toEqual(["promoted", "canary", "model 3", "drift", "model 1"]);
  });

  test("compares a new model with that of the version before", () => {
    const models = chaptersOf(story).filter((each) => each.kind === "model");
    expect(models.map((each) => each.before?.version ?? null)).toEqual([2, null]);
  });

  test("does not reorder what it was given", () => {
    const kept = structuredClone(story);
    chaptersOf(story);
    expect(story).toEqual(kept);
  });
});

test.each([
  [1, 2, 0.5],
  [3, 2, -0.5],
  [null, 2, null],
  [1, null, null],
  [0, 0, null],
])("a loss of %s beside %s saves %s", (loss, pooled, expected) => {
  expect(saving(loss, pooled)).toBe(expected);
});

test.each([
  ["north 1", "north 1"],
  ["Åre & <b> 🏪", "Åre & <b> 🏪"],
  [" a1", "\\u{20}a1"],
  ["a1  ", "a1\\u{20}\\u{20}"],
  ["A\u030a", "A\\u{30a}"],
  ["\u202egpj", "\\u{202e}gpj"],
  ["\u200b", "\\u{200b}"],
  ["a\u0000b\tc\u00a0d", "a\\u{0}b\\u{9}c\\u{a0}d"],
])("the key %j is shown as %s", (key, expected) => {
  expect(keyInWords(key)).toBe(expected);
});

test("deciles are those of the rows, however often a value comes", () => {
  const shown = (counts: number[], edges: number[], least: number, greatest: number) =>
    deciles({ counts, edges, least, greatest, missing: 0, values: [], mean: 0, deviation: 0 });
  expect(shown([6, 5, 0], [0, 1], 0, 1)).toEqual([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
  expect(shown([2, 1, 1, 1, 1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6, 7, 8, 9], 0, 10)).toEqual([...Array(11).keys()]);
  expect(shown([1], [], 7, 7)).toEqual(Array(11).fill(7));
});

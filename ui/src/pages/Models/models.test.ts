import {
  calibrationOf,
  direction,
  directionsOf,
  inUnits,
  mistakesOf,
  namesOf,
  residualsOf,
} from "src/pages/Models/figures";
import { findingsInWords, stateOf, verdictOf, worstOf } from "src/pages/Models/findings";
import { historyOf, keyOf, type RefusedCandidate } from "src/pages/Models/history";
import { impossible } from "src/pages/Models/impossible";
import type { Decision, ModelDetail } from "src/pages/Models/queries";
import { ratesOf } from "src/pages/Models/rates";
import { groupDecisions, stepsOf } from "src/pages/Models/rollouts";
import {
  askedInWords,
  gainInWords,
  metricHeading,
  metricLabel,
  metricsInWords,
  sharesInWords,
  titleOf,
} from "src/pages/Models/words";
import { describe, expect, test } from "vitest";

const SERIES = {
  at: [0, 60, 120, 180],
  seconds: [60, 60, 60, 60],
  versions: [
    {
      version: 1, requests: [600, 0, 60, 120], errors: [1, 0, 3, 0], client_errors: [0, 0, 0, 9],
      latency_ms_p50: [9, null, 1, 4], latency_ms_p99: [9, null, 10, 40],
    },
    {
      version: 2, requests: [0, 0, 0, 180], errors: [0, 0, 0, 0], client_errors: [0, 0, 0, 0],
      latency_ms_p50: [null, null, null, 2], latency_ms_p99: [null, null, null, 20],
    },
  ],
} as unknown as Parameters<typeof ratesOf>[0]; // biome-ignore format: as columns

describe("rates", () => {
  test("are of the last minutes alone", () => {
    expect(ratesOf(SERIES, 2)).toMatchObject({ seconds: 120, requests: 360, errors: 3, refused: 9, perSecond: 3 });
    expect(ratesOf(SERIES, 2, 2)).toMatchObject({ requests: 180, errorShare: 0, worst: 20 });
  });

  test("latencies weigh by their requests", () => {
    expect(ratesOf(SERIES, 2).p50).toBeCloseTo((1 * 60 + 4 * 120 + 2 * 180) / 360, 12);
    expect(ratesOf(SERIES, 2, 1).worst).toBe(40);
  });

  test("without requests there is no share, and without steps no rate", () => {
    expect(ratesOf(SERIES, 2, 9)).toMatchObject({ requests: 0, errorShare: null, p50: null, worst: null });
    expect(ratesOf({ at: [], seconds: [], versions: [] } as unknown as typeof SERIES, 5).perSecond).toBeNull();
  });
});

let clock = 0;
const decision = (event: string, version: number, more: Partial<Decision> = {}): Decision =>
  ({
    event,
    version,
    at: new Date(++clock * 1000).toISOString(),
    percent: null,
    canary: null,
    to: null,
    ...more,
  }) as Decision;

test("a canary's events stand together, from its deployment to its end", () => {
  const history = [
    decision("deployed", 1),
    decision("canary", 2),
    decision("step", 2, { percent: 20, canary: { requests: 1 } as unknown as Decision["canary"] }),
    decision("traffic", 1),
    decision("promoted", 2),
    decision("canary", 3),
    decision("left", 3),
    decision("rolled_back", 3, { to: 2 }),
    decision("promoted", 2),
  ].toReversed();
  const groups = groupDecisions(history).map((group) => group.map(({ event, version }) => `${event} ${version}`));
  expect(groups).toEqual([
    ["rolled_back 3", "left 3", "canary 3"],
    ["promoted 2", "step 2", "canary 2"],
    ["traffic 1"],
    ["deployed 1"],
  ]);
  const [, rollout] = groupDecisions(history);
  expect(rollout && stepsOf(rollout).map(({ percent }) => percent)).toEqual([20]);
});

test("decisions, shares and counts in words", () => {
  expect(titleOf(decision("rolled_back", 3, { to: 2 }))).toBe("Version 3 rolled back to version 2");
  expect(titleOf(decision("brand_new", 3))).toBe("Version 3: brand new");
  expect([sharesInWords({ 1: 80, 2: 20, 3: 0 }), sharesInWords({})]).toEqual(["v1 80% · v2 20%", "no traffic"]);
  expect(askedInWords({ requests: 1200, errors: 1, client_errors: 2 } as Parameters<typeof askedInWords>[0])).toBe(
    "1.2k requests, 1 failed, 2 refused",
  );
  expect(["auc", "brier", "evaluation.eval_log_loss", "val_auc"].map(metricLabel)).toEqual([
    "AUC",
    "Brier score",
    "eval log loss",
    "val AUC",
  ]);
  expect([metricHeading("mae"), metricsInWords("eval: auc 0.7 is enough; maebe; worst_auc")]).toEqual([
    "MAE ↓",
    "eval: AUC 0.7 is enough; maebe; worst AUC",
  ]);
  expect([0.0316, -0.02, 0, null].map((gain) => gainInWords(gain))).toEqual([
    "+0.0316 better",
    "−0.02 worse",
    "0",
    "–",
  ]);
});

test("a step is told in a line, and what was not judged is no success", () => {
  const finding = (what: string, verdict: string, numbers = {}) =>
    ({ what, verdict, text: `${what} differ`, numbers }) as Parameters<typeof findingsInWords>[0][number];
  const fine = [finding("errors", "ok", { canary_errors: 0 }), finding("latency_p50", "ok")];
  const open = [finding("latency_p99", "not_judged"), finding("predictions", "ok", { ks_statistic: 0.4 })];
  expect(findingsInWords([...fine, ...open])).toBe("no errors, latency p50 within the limit; not judged: latency p99");
  expect(findingsInWords([...fine, finding("refusals", "bad")])).toMatch(
    /^refused requests: refusals differ; no errors/,
  );
  expect([worstOf([...fine, ...open]), worstOf(open), worstOf([...fine, finding("labels", "doubt")])]).toEqual([
    "ok",
    "not judged",
    "warning",
  ]);
  expect(open.map(stateOf)).toEqual(["not judged", "not judged"]);
  expect(open.map(verdictOf)).toEqual(["not judged", "for the record"]);
});

test("figures are numbers; better is up of an AUC, down of a loss, and neither of what is not known", () => {
  expect(namesOf({ rows: 9, auc: 0.7, auc_low: 0.6, auc_high: 0.8, reason: "x", confusion: [[1]] })).toEqual(["auc"]);
  expect([
    direction("auc", 0.1),
    direction("log_loss", 0.1),
    direction("mean_label", 0.1),
    direction("auc", 0),
  ]).toEqual([1, -1, 0, 0]);
  const higher = directionsOf({ metric: "cost", higher_is_better: { cost: false, r2: true } });
  expect([direction("cost", 0.1, higher), direction("r2", 0.1, higher), direction("auc", 0.1, higher)]).toEqual([
    -1, 1, 1,
  ]);
  expect(directionsOf({}).brier).toBe(false);
  expect(inUnits("regression", ["rmse", "r2", "mean_label"])).toEqual(["rmse", "mean_label"]);
  expect(inUnits("binary", ["mean_label"])).toEqual([]);
});

test("the most frequent mistakes come first, with their share of the class", () => {
  const found = mistakesOf(
    ["a", "b", "c"],
    [
      [8, 2, 0],
      [0, 5, 5],
      [1, 0, 3],
    ],
  );
  expect(found.map(({ name, said, share }) => `${name} for ${said}: ${share}`)).toEqual([
    "b for c: 0.5",
    "a for b: 0.2",
    "c for a: 0.25",
  ]);
  expect(residualsOf({ residual_quantiles: { "95": 2, "5": -1 } })).toEqual([
    [5, -1],
    [95, 2],
  ]);
  expect([calibrationOf({ auc: 0.7 }), calibrationOf(null), residualsOf({})]).toEqual([[], [], []]);
});

describe("the history", () => {
  const at = (minute: number) => new Date(minute * 60_000).toISOString();
  const refused = (minute: number) => ({ at: at(minute), why: "AUC 0.51" }) as RefusedCandidate;
  const retraining = { at: at(4), outcome: "requested" } as Parameters<typeof historyOf>[2] extends
    | readonly (infer Word)[]
    | undefined
    ? Word
    : never;

  test("has rollouts, refused candidates and words about a retraining by their time", () => {
    const decisions = [
      decision("promoted", 2, { at: at(6) }),
      decision("canary", 2, { at: at(5) }),
      decision("deployed", 1, { at: at(1) }),
    ];
    const entries = historyOf(decisions, [refused(7), refused(3)], [retraining, { ...retraining, at: null }]);
    expect(entries.map(({ kind, at: time }) => [kind, Date.parse(time) / 60_000])).toEqual([
      ["refused", 7],
      ["decisions", 6],
      ["retraining", 4],
      ["refused", 3],
      ["decisions", 1],
    ]);
    expect(new Set(entries.map(keyOf)).size).toBe(entries.length);
  });
});

describe("what cannot be decided", () => {
  const champion = { version: 2 } as ModelDetail["champion"];
  const served = {
    champion,
    challenger: null,
    deployed: [2, 1],
    decisions: [],
    candidates: [],
  } as unknown as ModelDetail;
  const first = { ...served, deployed: [2] };

  test.each([
    ["promote", served, false, null],
    ["promote", first, false, /^There is no other version/],
    ["promote", { ...served, decisions: [decision("promoted", 2), decision("deployed", 1)] }, false, /by a rollback/],
    ["promote", { ...served, decisions: [decision("rolled_back", 1), decision("promoted", 1)] }, false, null],
    ["owners", { ...served, champion: null }, true, null],
    ["traffic", served, false, /there is no challenger/],
    ["traffic", { ...served, challenger: champion }, false, null],
    ["rollBack", first, false, /no champion before/],
    ["rollBack", { ...first, challenger: champion }, true, null],
    ["replace", { ...served, candidates: [{}] }, true, /server does not respond/],
    ["replace", served, false, /No other model was evaluated/],
    ["replace", { ...served, candidates: [{}] }, false, null],
    ["promote", { ...served, champion: null }, false, /No version serves/],
  ])("%s says why", (action, detail, isAway, why) => {
    const said = impossible(action, detail as ModelDetail, isAway);
    why === null ? expect(said).toBeNull() : expect(said).toMatch(why);
  });
});

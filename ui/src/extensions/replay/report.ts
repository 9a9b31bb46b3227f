/** What a report of a back-test says: who wins at which price of a training, and what lies where in time. */

import { formatNumber, type Schemas } from "airflow-hops";

export type Report = Schemas["BacktestReport"];
export type Policy = Schemas["PolicyOutcome"];
export type Retraining = Schemas["Retraining"];
export type Interval = Policy["average"];

export interface Period {
  /** Milliseconds since 1970. */
  start: number;
  end: number;
}

/** The prices at which a policy earns most: up to `to`, or any above where it is null. */
export interface Win {
  name: string;
  to: number | null;
}

/** The periods of a report: each ends with a tick, the first begins where the first model's training data ends. */
export function periodsOf({ candidates, ticks }: Report): Period[] {
  const ends = ticks.map((tick) => Date.parse(tick));
  const first = Date.parse(candidates[0]?.end ?? "");
  return ends.map((end, place) => ({ start: ends[place - 1] ?? first, end }));
}

/** By how much a policy is better than never to retrain, less the price of its trainings. */
export const netOf = ({ better, retrainings }: Policy, price: number): number => better[0] - price * retrainings.length;

/** The policies whose metric is known. */
const measured = (policies: readonly Policy[]) => policies.filter(({ better }) => Number.isFinite(better[0]));

/** The policy that earns most at a price; of equal ones that with fewer trainings. */
export function bestAt(policies: readonly Policy[], price: number): Policy | undefined {
  return measured(policies).reduce<Policy | undefined>((best, each) => {
    const ahead = best === undefined ? 1 : netOf(each, price) - netOf(best, price);
    const fewer = best !== undefined && each.retrainings.length < best.retrainings.length;
    return ahead > 0 || (ahead === 0 && fewer) ? each : best;
  }, undefined);
}

/** The policy chosen at a price; at the report's own, the one that the report chose. */
export function chosenAt({ policies, price: own, chosen }: Report, price: number): string | undefined {
  return price === own && chosen ? chosen : bestAt(policies, price)?.name;
}

/** Who wins as a training gets dearer, from a price of 0 on: the policies' lines of earnings by price, seen from above. */
export function winsOf(policies: readonly Policy[]): Win[] {
  const wins: Win[] = [];
  let winner = bestAt(policies, 0);
  while (winner !== undefined) {
    const { retrainings, better, name } = winner;
    const [next, to] = measured(policies).reduce<[Policy | undefined, number]>(
      ([nearest, at], each) => {
        const fewer = retrainings.length - each.retrainings.length;
        const meet = fewer > 0 ? (better[0] - each.better[0]) / fewer : Number.POSITIVE_INFINITY;
        const sooner = meet < at || (meet === at && each.retrainings.length < (nearest?.retrainings.length ?? 0));
        return sooner ? [each, meet] : [nearest, at];
      },
      [undefined, Number.POSITIVE_INFINITY],
    );
    wins.push({ name, to: next === undefined ? null : to });
    winner = next;
  }
  return wins;
}

/** `weekly earns most up to 0.0004 per training, drift up to 0.0012, never beyond.` */
export function winsInWords(wins: readonly Win[]): string {
  const [only] = wins;
  if (wins.length < 2) {
    return only ? `${only.name} earns most at any price.` : "";
  }
  return `${wins
    .map(({ name, to }, place) =>
      to === null
        ? `${name} beyond`
        : `${name} ${place === 0 ? "earns most " : ""}up to ${formatNumber(to, 3)}${place === 0 ? " per training" : ""}`,
    )
    .join(", ")}.`;
}

/** The spans in which one candidate served. */
export function servedBy({ serving }: Policy, periods: readonly Period[]): (Period & { candidate: number })[] {
  const spans: (Period & { candidate: number })[] = [];
  for (const [place, { start, end }] of periods.entries()) {
    const candidate = serving[place] ?? 0;
    const last = spans.at(-1);
    if (last?.candidate === candidate) {
      last.end = end;
    } else {
      spans.push({ candidate, start, end });
    }
  }
  return spans;
}

/** The value of a policy's curve, which joins the middles of periods, at the end of a period; null where there is none. */
export function valueAtEnd({ values }: Policy, place: number): number | null {
  const [before = null, after = null] = [values[place], values[place + 1]];
  return before === null || after === null ? (before ?? after) : (before + after) / 2;
}

/** A policy's decisions; of the best schedule, which decides nothing, its retrainings. */
export const decisionsOf = ({ decisions, retrainings }: Policy): Policy["decisions"] =>
  decisions.length > 0 ? decisions : retrainings.map(({ at, reason }) => ({ at, reason, requested: true, why: "" }));

/** By policy, its retrainings by time: of thousands, each is asked for often. */
const byTime = new WeakMap<Policy, ReadonlyMap<number, Retraining>>();

/** A policy's retraining at a moment, if it asked for one. */
export function retrainingAt(policy: Policy, at: string): Retraining | undefined {
  const found = byTime.get(policy) ?? new Map(policy.retrainings.map((each) => [Date.parse(each.at), each]));
  byTime.set(policy, found);
  return found.get(Date.parse(at));
}

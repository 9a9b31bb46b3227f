/** What happened to a segment of a fleet, in the order of time. */

import type { Schemas } from "airflow-hops";

export type Story = Schemas["SegmentStory"];
export type SegmentVersion = Schemas["SegmentVersion"];
export type SegmentColumn = Schemas["SegmentColumn"];
export type SegmentDrift = Schemas["SegmentDrift"];

/** Something that happened to a segment. */
export type Chapter = { at: string } & (
  | { kind: "drift"; drift: SegmentDrift }
  | { kind: "model"; version: SegmentVersion; before: SegmentVersion | null }
  | { kind: "decision"; decision: Schemas["SegmentDecision"] }
);

/** The order of things that happened at the same time: a model is there before it is decided on. */
const ORDER = { drift: 0, model: 1, decision: 2 } as const;

/** Drifts, new models and decisions on them, the newest first. Versions that kept the segment's model are left out. */
export function chaptersOf(story: Story): Chapter[] {
  const chapters: Chapter[] = [
    ...story.drifts.map((drift) => ({ kind: "drift" as const, at: drift.at, drift })),
    ...story.versions.flatMap((version, place) =>
      version.is_new_model
        ? [{ kind: "model" as const, at: version.at, version, before: story.versions[place - 1] ?? null }]
        : [],
    ),
    ...story.decisions.map((decision) => ({ kind: "decision" as const, at: decision.at, decision })),
  ];
  return chapters.sort(
    (one, other) => Date.parse(other.at) - Date.parse(one.at) || ORDER[other.kind] - ORDER[one.kind],
  );
}

/** Which model answers a segment, by its state. */
export const STATE_WORDS: Record<string, string> = {
  own: "own model",
  continued: "continued from the pooled model",
  pooled: "borrows the pooled model",
};

/** Share of the pooled model's loss that the segment's model saves; null where nothing is known, or nothing to save. */
export function saving(loss: number | null, pooled: number | null): number | null {
  return loss === null || pooled === null || pooled <= 0 ? null : 1 - loss / pooled;
}

/** A key that cannot be taken for another: what is not seen, or turns the text round, is written by its number. */
export function keyInWords(key: string): string {
  const hidden = /(?<=^ *) | (?= *$)|(?! )\p{Z}|\p{Cc}|\p{Cf}|\p{Co}|\p{Cs}/gu;
  const shown = key.replace(hidden, byNumber);
  return key === key.normalize("NFC") ? shown : shown.replace(/\p{M}/gu, byNumber);
}

function byNumber(character: string): string {
  return `\\u{${character.codePointAt(0)?.toString(16)}}`;
}

/** The least value of a number, its deciles and its greatest value: 11 in all. */
export function deciles({ counts, edges, least, greatest }: SegmentColumn): (number | null)[] {
  let total = 0;
  const upTo = counts.map((count) => (total += count));
  return Array.from({ length: 11 }, (_, tenth) => {
    const bin = upTo.findIndex((rows) => rows > Math.floor((tenth * (total - 1)) / 10));
    return tenth === 0 ? least : (edges[bin] ?? greatest);
  });
}

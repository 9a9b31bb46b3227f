/** Notes that people add to decisions later, as tags hold them. */

type Tags = Readonly<Record<string, string>>;
const TAG = "hops.decision_note";

/** A note: when, by whom, what. */
export type WrittenNote = { at: string; by: string; text: string };

/** The note on a decision, among the tags of the version that was decided on. */
export function noteOnDecision(tags: Tags, decidedAt: string): WrittenNote | null {
  const found = Object.entries(tags).find(
    ([name]) => name.startsWith(`${TAG}.`) && Date.parse(name.slice(TAG.length + 1)) === Date.parse(decidedAt),
  );
  return found ? readNote(found[1]) : null;
}

/** The note on the refusal of a candidate, among training runs. */
export function noteOnRefusal(runs: readonly { tags: Tags }[], fingerprint: string): WrittenNote | null {
  const value = runs.find(({ tags }) => tags["hops.fingerprint"] === fingerprint)?.tags[TAG];
  return value === undefined ? null : readNote(value);
}

/** Reads `<time> <user>`, and the note from the second line on. */
function readNote(value: string): WrittenNote {
  const [, at = "", by = "", text = value] = /^(\S+) ([^\n]*)\n(.*)$/s.exec(value) ?? [];
  return { at, by, text };
}

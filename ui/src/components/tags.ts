/** Tags that people give, as lines of text and as they are stored. */

type Tags = Readonly<Record<string, string>>;

/** People's own tags, without this package's. */
export const ownTags = (tags: Tags): Tags =>
  Object.fromEntries(Object.entries(tags).filter(([name]) => !/^hops\./.test(name)));

/** One `name: value` in a line. */
export const writeTags = (tags: Tags): string =>
  Object.entries(tags)
    .map(([name, value]) => (value ? `${name}: ${value}` : name))
    .join("\n");

/** The inverse of {@link writeTags}: a name ends at the first colon that a blank follows; empty lines say nothing. */
export function readTags(lines: string): Tags {
  const pairs = lines.split("\n").map((line): [string, string] => {
    const [, name = line, value = ""] = /^(.*?):(?:\s+(.*))?$/.exec(line) ?? [];
    return [name.trim(), value.trim()];
  });
  return Object.fromEntries(pairs.filter(([name]) => name !== ""));
}

/** Tags that come back as they are from the lines that write them; of several lines or padded, for one, do not. */
export const writableTags = (tags: Tags): Tags =>
  Object.fromEntries(
    Object.entries(tags).filter(([name, value]) => {
      const read = Object.entries(readTags(writeTags({ [name]: value })));
      return read.length === 1 && read[0]?.[0] === name && read[0][1] === value;
    }),
  );

/** What to send so that `before` becomes `after`: null removes a tag. */
export function changedTags(before: Tags, after: Tags): Record<string, string | null> {
  const removed = Object.keys(before).filter((name) => !(name in after));
  const set = Object.entries(after).filter(([name, value]) => before[name] !== value);
  return Object.fromEntries<string | null>([...set, ...removed.map((name): [string, null] => [name, null])]);
}

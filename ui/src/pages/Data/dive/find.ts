/** Rows by a text of any category. */

import type { Column } from "src/pages/Data/dive/columns";

/** The rows of the shown that have the very text, or, where none has, contain it; null where there is no text. */
export function findRows(
  text: string,
  columns: ReadonlyMap<string, Column>,
  shown: Uint8Array,
): { rows: Uint8Array; count: number } | null {
  if (text === "") {
    return null;
  }
  const searched = [...columns.values()].filter(({ role }) => role === "category");
  const exact = marked(searched, shown, (word) => word === text);
  const lower = text.toLowerCase();
  return exact.count > 0 ? exact : marked(searched, shown, (word) => word.toLowerCase().includes(lower));
}

function marked(columns: readonly Column[], shown: Uint8Array, matches: (word: string) => boolean) {
  const rows = new Uint8Array(shown.length);
  let count = 0;
  for (const { words, values } of columns) {
    const fitting = Uint8Array.from(words, (word) => (matches(word) ? 1 : 0));
    for (let row = 0; row < rows.length; row++) {
      const value = values[row] as number;
      if (shown[row] && !rows[row] && value >= 0 && fitting[value]) {
        rows[row] = 1;
        count += 1;
      }
    }
  }
  return { rows, count };
}

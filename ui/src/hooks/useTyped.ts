import { useState } from "react";
import { follow, type Search } from "src/components/search";
import { isInAddress } from "src/hooks/useQueryState";

/**
 * Text of a field that the address follows: what has been typed since stays when it has.
 *
 * @param name of the address
 * @param value which the address has there
 * @returns the text, how to change it, and how to note that the address was asked to hold a text
 */
export function useTyped(
  name: string,
  value: string,
): { typed: string; type: (text: string) => void; note: (text: string) => void } {
  const [search, setSearch] = useState<Search>({ typed: value, known: value, asked: [] });
  const followed = isInAddress(name, value) ? follow(search, value) : search;
  if (followed !== search) {
    setSearch(followed);
  }
  return {
    typed: search.typed,
    type: (text) => setSearch((before) => ({ ...before, typed: text })),
    note: (text) =>
      setSearch((before) =>
        text === (before.asked.at(-1) ?? before.known) ? before : { ...before, asked: [...before.asked, text] },
      ),
  };
}

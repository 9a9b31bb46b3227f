/** Text that is typed, and the address that follows it a moment later. */

export interface Search {
  /** What stands in the field. */
  typed: string;
  /** What the address held when it was last looked at. */
  known: string;
  /** What the address was asked to hold, and does not hold yet. */
  asked: readonly string[];
}

/**
 * The search when the address holds `value`: what was asked for is no news, since more may have been typed meanwhile;
 * anything else has come from outside, by the back button or a link, and is what is searched for now.
 */
export function follow(search: Search, value: string): Search {
  if (value === search.known) {
    return search;
  }
  const place = search.asked.lastIndexOf(value);
  return place < 0
    ? { typed: value, known: value, asked: [] }
    : { ...search, known: value, asked: search.asked.slice(place + 1) };
}

/** Changes of the address's query, of which the router applies each a moment later. */

/** Changes by name: a text, several, or null for none. */
export type QueryChanges = Record<string, string | readonly string[] | null>;

/** Changes, or how they follow from the query: what is rendered may still be of the query before. */
export type QueryChange = QueryChanges | ((query: URLSearchParams) => QueryChanges);

/** What was asked of the address, and is not there yet: other changes of that moment must build on it. */
export class PendingQuery {
  private path = "";
  /** The query that it began with, and each that was asked for since. */
  private asked: string[] = [];

  /** The query that a change leads to, where the browser's address has this path and query. */
  changed(path: string, search: string, change: QueryChange): string {
    if (this.asked.length === 0 || path !== this.path) {
      this.path = path;
      this.asked = [new URLSearchParams(search).toString()];
    }
    const query = new URLSearchParams(this.asked.at(-1));
    for (const [name, value] of Object.entries(typeof change === "function" ? change(query) : change)) {
      query.delete(name);
      for (const each of value === null ? [] : typeof value === "string" ? [value] : value) {
        query.append(name, each);
      }
    }
    this.asked.push(query.toString());
    return query.toString();
  }

  /** A query is there: nothing is pending if it is the last that was asked for, or none of them. */
  settle(search: string): void {
    if (search === this.asked.at(-1) || !this.asked.includes(search)) {
      this.asked = [];
    }
  }
}

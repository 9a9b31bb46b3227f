/** What was asked of the address's query: it holds at once, and the router follows when its outcome is painted. */

/** Changes by name: a text, several, or null for none. */
export type QueryChanges = Record<string, string | readonly string[] | null>;

/** Changes, or how they follow from the query. */
export type QueryChange = QueryChanges | ((query: URLSearchParams) => QueryChanges);

/** Queries that the router does not show yet: other changes of that moment must build on them. */
export class PendingQuery {
  private path = "";
  /** The query that it began with, and each that was asked for since. */
  private asked: string[] = [];
  private readonly listeners = new Set<() => void>();

  readonly subscribe = (listener: () => void): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** The query that holds at a path where the router shows this one. */
  at(path: string, shown: string): string {
    return path === this.path && this.asked.includes(shown) ? (this.asked.at(-1) ?? shown) : shown;
  }

  /** The query that a change leads to, where the address has this path and query. */
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
    for (const each of this.listeners) {
      each();
    }
    return query.toString();
  }

  /** The router shows a query: nothing is pending if it is the last that was asked for, or none of them. */
  settle(search: string): void {
    if (search === this.asked.at(-1) || !this.asked.includes(search)) {
      this.asked = [];
    }
  }
}

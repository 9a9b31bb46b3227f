/** State that lives in the address, so that it can be shared and found again after a reload. */

import { useCallback, useEffect, useMemo } from "react";
import { useNavigate, useSearchParams } from "react-router-dom";

/** Changes by name: a text, several, or null for none. */
export type QueryChanges = Record<string, string | readonly string[] | null>;

/**
 * Changes, or how they follow from the query of the address: what is rendered may still be of the query before.
 */
type Change = QueryChanges | ((query: URLSearchParams) => QueryChanges);

// The router applies a change a moment later; others of that moment must build on it.
let pending: URLSearchParams | null = null;
// The query that the pending one began with, and each that was asked for since.
let asked: string[] = [];

/** A query is there: nothing is pending if it is the last that was asked for, or none of them. */
function settle(query: URLSearchParams): void {
  const text = query.toString();
  if (text === asked.at(-1) || !asked.includes(text)) {
    pending = null;
    asked = [];
  }
}

function apply(parameters: URLSearchParams, changes: QueryChanges): void {
  for (const [name, value] of Object.entries(changes)) {
    parameters.delete(name);
    for (const each of value === null ? [] : typeof value === "string" ? [value] : value) {
      parameters.append(name, each);
    }
  }
}

/**
 * The query, and how to change several of its values at once.
 *
 * A change replaces the entry in the browser's history unless `push` is given: sorting is no step that one goes back.
 */
export function useQuery(): [URLSearchParams, (changes: Change, options?: { push?: boolean }) => void] {
  const [query] = useSearchParams();
  const navigate = useNavigate();
  useEffect(() => settle(query), [query]);
  const change = useCallback(
    (changes: Change, options?: { push?: boolean }) => {
      if (pending === null) {
        pending = new URLSearchParams(window.location.search);
        asked = [pending.toString()];
      }
      apply(pending, typeof changes === "function" ? changes(pending) : changes);
      asked.push(pending.toString());
      void navigate({ search: pending.toString() }, { replace: !options?.push, preventScrollReset: true });
    },
    [navigate],
  );
  return [query, change];
}

/**
 * Whether a rendered value is that of the address: while the router applies a change, what is rendered in between may
 * still have the value before.
 */
export function isInAddress(name: string, value: string): boolean {
  return (new URLSearchParams(window.location.search).get(name) ?? "") === value;
}

/** One text of the query; `initial` stands for its absence. */
export function useQueryParam(name: string, initial = ""): [string, (value: string) => void] {
  const [query, change] = useQuery();
  const set = useCallback(
    (value: string) => change({ [name]: value === initial ? null : value }),
    [change, name, initial],
  );
  return [query.get(name) ?? initial, set];
}

type ListChange = readonly string[] | ((values: string[]) => readonly string[]);

/** All values of one name; the same array as long as they are the same. */
export function useQueryList(name: string): [string[], (values: ListChange) => void] {
  const [query, change] = useQuery();
  const text = JSON.stringify(query.getAll(name));
  const values = useMemo(() => JSON.parse(text) as string[], [text]);
  const set = useCallback(
    (changed: ListChange) =>
      change((address) => ({ [name]: typeof changed === "function" ? changed(address.getAll(name)) : changed })),
    [change, name],
  );
  return [values, set];
}

/** A switch of the query. */
export function useQueryFlag(name: string, initial = false): [boolean, (value: boolean) => void] {
  const [text, set] = useQueryParam(name, initial ? "1" : "0");
  return [text === "1", useCallback((value: boolean) => set(value ? "1" : "0"), [set])];
}

/** What a table is sorted by. */
export interface Sort {
  column: string;
  descending: boolean;
}

/** Order in the query: `sort=name`, or `sort=-name` for descending. */
export function useSort(name: string, initial: Sort | null): [Sort | null, (sort: Sort | null) => void] {
  const asText = (sort: Sort | null) => (sort ? `${sort.descending ? "-" : ""}${sort.column}` : "");
  const [text, set] = useQueryParam(name, asText(initial));
  const sort = useMemo(
    () => (text ? { column: text.replace(/^-/, ""), descending: text.startsWith("-") } : null),
    [text],
  );
  return [sort, (changed) => set(asText(changed))];
}

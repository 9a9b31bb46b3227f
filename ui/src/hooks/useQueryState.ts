/** State that lives in the address, so that it can be shared and found again after a reload. */

import { useCallback, useEffect, useMemo, useRef, useSyncExternalStore } from "react";
import { useLocation, useNavigate, useSearchParams } from "react-router-dom";
import { PendingQuery, type QueryChange } from "src/hooks/pendingQuery";

export type { QueryChanges } from "src/hooks/pendingQuery";

const pending = new PendingQuery();
/** The change that the router is about to make. */
const next = { frame: 0, timer: 0, push: false };

/**
 * The query, and how to change several of its values at once.
 *
 * A change holds at once, also after a reload; the router, at whose changes all of the page is rendered, follows when
 * that is painted. It replaces the entry in the browser's history unless `push` is given: sorting is no step that one
 * goes back. A change that comes late, when the browser is at the next page and this one is still shown, is dropped.
 */
export function useQuery(): [URLSearchParams, (change: QueryChange, options?: { push?: boolean }) => void] {
  const [routed] = useSearchParams();
  const { pathname } = useLocation();
  const navigate = useNavigate();
  const shown = useRef("");
  // biome-ignore lint/correctness/useExhaustiveDependencies: the browser's path, with the host's base, changes with it
  useEffect(() => {
    shown.current = window.location.pathname;
  }, [pathname]);
  useEffect(() => pending.settle(routed.toString()), [routed]);
  const text = useSyncExternalStore(pending.subscribe, () => pending.at(pathname, routed.toString()));
  const query = useMemo(() => new URLSearchParams(text), [text]);
  const change = useCallback(
    (changes: QueryChange, options?: { push?: boolean }) => {
      if (window.location.pathname !== shown.current) {
        return;
      }
      const search = pending.changed(pathname, window.location.search, changes);
      next.push ||= options?.push ?? false;
      if (!next.push) {
        const { pathname: path, hash } = window.location;
        window.history.replaceState(window.history.state, "", `${path}${search && `?${search}`}${hash}`);
      }
      cancelAnimationFrame(next.frame);
      clearTimeout(next.timer);
      next.frame = requestAnimationFrame(() => {
        next.timer = window.setTimeout(() => {
          const isHere = window.location.pathname === shown.current;
          if (isHere && pending.at(pathname, new URLSearchParams(window.location.search).toString()) === search) {
            void navigate({ search }, { replace: !next.push, preventScrollReset: true });
          }
          next.push = false;
        });
      });
    },
    [navigate, pathname],
  );
  return [query, change];
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

/** A list with a value or without it. */
export const ticked = <Value>(values: readonly Value[], value: Value, checked: boolean): Value[] => [
  ...values.filter((each) => each !== value),
  ...(checked ? [value] : []),
];

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

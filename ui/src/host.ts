/** What the host, Airflow's web UI, tells the pages: what is looked at, colour mode, time zone, base path. */

import { useSyncExternalStore } from "react";

/** The names of the plugin's entries, as in `airflow_hops/plugin.py`. */
export const ENTRY_NAMES = ["Pipelines", "ML Artifacts", "ML Results"] as const;

/** What the host passes: the ids in its path, where there are any. `mapIndex` is absent unless a task is mapped. */
export interface HostProps {
  dagId?: string;
  runId?: string;
  taskId?: string;
  mapIndex?: string;
}

/**
 * The iteration of a loop that the host's address names, or -1. For a task that is not mapped, the host may give a
 * region, whose index is the iteration; for a mapped one, its index is that of the task.
 */
export function iterationIn(search: string, isMapped: boolean): number {
  const query = new URLSearchParams(search);
  return Number(query.get("iteration") ?? (isMapped ? null : query.get("region_index")) ?? -1);
}

export type ColorMode = "light" | "dark";

/** The path below which Airflow is served, `/` or `/some/path/`; `/` outside a browser. */
export function basePath(): string {
  return typeof document === "undefined" ? "/" : new URL(document.baseURI).pathname;
}

function subscribeToColorMode(changed: () => void): () => void {
  const observer = new MutationObserver(changed);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ["class"] });
  return () => observer.disconnect();
}

/** The host's colour mode. Chakra's components follow it by themselves; this is for what draws on a canvas. */
export function useColorMode(): ColorMode {
  return useSyncExternalStore(subscribeToColorMode, () =>
    document.documentElement.classList.contains("dark") ? "dark" : "light",
  );
}

function subscribeToStorage(changed: () => void): () => void {
  // "storage" comes from other windows; the host sends "local-storage" within its own.
  window.addEventListener("storage", changed);
  window.addEventListener("local-storage", changed);
  return () => {
    window.removeEventListener("storage", changed);
    window.removeEventListener("local-storage", changed);
  };
}

function chosenZone(): string {
  try {
    const zone: unknown = JSON.parse(localStorage.getItem("timezone") ?? "null");
    if (typeof zone === "string") {
      new Intl.DateTimeFormat(undefined, { timeZone: zone });
      return zone;
    }
  } catch {
    // Not a zone that this browser knows: its own, as the host does.
  }
  return Intl.DateTimeFormat().resolvedOptions().timeZone;
}

/** The time zone that the user has chosen in the host's user menu. */
export function useTimezone(): string {
  return useSyncExternalStore(subscribeToStorage, chosenZone, chosenZone);
}

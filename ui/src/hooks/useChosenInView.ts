import { type RefObject, useEffect, useRef } from "react";

/** Scrolls a row of tabs to the chosen one, by its place in the row. */
export function useChosenInView(place: number): RefObject<HTMLDivElement | null> {
  const tabs = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const row = tabs.current?.getBoundingClientRect();
    const tab = tabs.current?.children[place]?.getBoundingClientRect();
    if (row && tab) {
      tabs.current?.scrollBy({ left: tab.left + tab.width / 2 - row.left - row.width / 2 });
    }
  }, [place]);
  return tabs;
}

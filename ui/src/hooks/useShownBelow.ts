import { type RefObject, useEffect, useRef } from "react";

/** Scrolls to a panel that was opened, unless the window is so wide that the panel is beside what it belongs to. */
export function useShownBelow(opened: string, besideFrom: "64em" | "80em"): RefObject<HTMLDivElement | null> {
  const panel = useRef<HTMLDivElement>(null);
  // biome-ignore lint/correctness/useExhaustiveDependencies: to each that is opened
  useEffect(() => {
    if (!window.matchMedia(`(min-width: ${besideFrom})`).matches) {
      panel.current?.scrollIntoView({ block: "start" });
    }
  }, [opened]);
  return panel;
}

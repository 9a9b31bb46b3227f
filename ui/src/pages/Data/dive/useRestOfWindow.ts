import { type RefObject, useLayoutEffect, useState } from "react";

const LEAST_PX = 420;
const BELOW_PX = 16;

/** Where an element begins in the page, however far that is scrolled. */
function topOf(element: HTMLElement): number {
  let top = 0;
  for (let each: HTMLElement | null = element; each; each = each.offsetParent as HTMLElement | null) {
    top += each.offsetTop;
  }
  return top;
}

/** The height in pixels with which an element reaches the window's end; what stands above it may change. */
export function useRestOfWindow(element: RefObject<HTMLElement | null>): number {
  const [height, setHeight] = useState(LEAST_PX);
  // After each rendering: it costs little, and nothing says when what stands above has changed.
  useLayoutEffect(() => {
    const measure = () => {
      if (element.current) {
        setHeight(Math.max(window.innerHeight - topOf(element.current) - BELOW_PX, LEAST_PX));
      }
    };
    measure();
    window.addEventListener("resize", measure);
    return () => window.removeEventListener("resize", measure);
  });
  return height;
}

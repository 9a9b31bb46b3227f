import { type PointerEvent, type RefObject, useCallback, useEffect, useRef, useState } from "react";

interface View {
  x: number;
  y: number;
  scale: number;
}

const LEAST = 0.15;
const MOST = 2;
const MARGIN = 16;

/** Moves and scales what is larger than its window: drag, wheel, buttons. */
export function useCanvas(window: RefObject<HTMLElement | null>, width: number, height: number) {
  const [view, setView] = useState<View>({ x: 0, y: 0, scale: 1 });
  const drag = useRef<{ x: number; y: number } | null>(null);

  const zoom = useCallback(
    (factor: number, at?: { x: number; y: number }) => {
      const box = window.current?.getBoundingClientRect();
      const centre = at ?? { x: (box?.width ?? 0) / 2, y: (box?.height ?? 0) / 2 };
      setView((old) => {
        const scale = Math.min(Math.max(old.scale * factor, LEAST), MOST);
        const by = scale / old.scale;
        return { scale, x: centre.x - (centre.x - old.x) * by, y: centre.y - (centre.y - old.y) * by };
      });
    },
    [window],
  );

  const fit = useCallback(() => {
    const box = window.current;
    if (!box || width === 0) {
      return;
    }
    const [wide, tall] = [box.clientWidth, box.clientHeight];
    const scale = Math.max(Math.min((wide - 2 * MARGIN) / width, (tall - 2 * MARGIN) / height, 1), LEAST);
    setView({ scale, x: (wide - width * scale) / 2, y: Math.max((tall - height * scale) / 2, MARGIN) });
  }, [window, width, height]);

  useEffect(fit, [fit]);

  useEffect(() => {
    const box = window.current;
    if (!box) {
      return;
    }
    const observer = new ResizeObserver(fit);
    observer.observe(box);
    // React's own listener cannot keep the page from scrolling.
    const onWheel = (event: WheelEvent) => {
      if (!event.ctrlKey && !event.metaKey) {
        return;
      }
      event.preventDefault();
      const { left, top } = box.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 300), { x: event.clientX - left, y: event.clientY - top });
    };
    box.addEventListener("wheel", onWheel, { passive: false });
    return () => {
      observer.disconnect();
      box.removeEventListener("wheel", onWheel);
    };
  }, [window, fit, zoom]);

  const handlers = {
    onPointerDown: (event: PointerEvent<HTMLElement>) => {
      if (event.button === 0 && !(event.target as HTMLElement).closest("button")) {
        drag.current = { x: event.clientX - view.x, y: event.clientY - view.y };
        event.currentTarget.setPointerCapture(event.pointerId);
      }
    },
    onPointerMove: (event: PointerEvent<HTMLElement>) => {
      const from = drag.current;
      if (from) {
        setView((old) => ({ ...old, x: event.clientX - from.x, y: event.clientY - from.y }));
      }
    },
    onPointerUp: () => {
      drag.current = null;
    },
    onPointerCancel: () => {
      drag.current = null;
    },
  };
  return { view, zoom, fit, handlers };
}

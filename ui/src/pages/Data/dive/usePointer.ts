import { type PointerEvent, type RefObject, useEffect, useRef } from "react";
import type { Tool } from "src/pages/Data/dive/PlotTools";
import type { Place } from "src/pages/Data/dive/picking";
import type { Scene } from "src/pages/Data/dive/scene";
import { HOME, move, type View, zoom } from "src/pages/Data/dive/view";

const CLICK_PX = 4;
const WHEEL = 0.0018;

interface Drag {
  kind: Tool;
  /** Pixels of the plot. */
  start: Place;
  last: Place;
  moved: boolean;
}

function placeIn(event: { clientX: number; clientY: number; currentTarget: EventTarget }): Place {
  const { left, top } = (event.currentTarget as HTMLElement).getBoundingClientRect();
  return [event.clientX - left, event.clientY - top];
}

const apart = (a: Place, b: Place): number => Math.hypot(a[0] - b[0], a[1] - b[1]);

interface Props {
  scene: RefObject<Scene | null>;
  tool: Tool;
  changeView: (view: View, settled?: boolean) => void;
  onSelect: (outline: readonly Place[]) => void;
  onOpen: (row: number) => void;
  setHovered: (hovered: { row: number; at: Place } | null) => void;
}

/**
 * What the pointer does in the plot: moves, zooms, selects, hovers, opens. Shift selects a box whatever the tool.
 *
 * @returns handlers for the canvas
 */
export function usePointer({ scene, tool, changeView, onSelect, onOpen, setHovered }: Props) {
  const drag = useRef<Drag | null>(null);
  const canvas = useRef<HTMLCanvasElement | null>(null);
  const latest = useRef(changeView);
  latest.current = changeView;

  useEffect(() => {
    const element = canvas.current;
    // React listens to the wheel passively: the page would scroll, too.
    const onWheel = (event: WheelEvent) => {
      const drawn = scene.current;
      if (!drawn || !element) {
        return;
      }
      event.preventDefault();
      const { left, top } = element.getBoundingClientRect();
      const delta = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? 16 : 1);
      const factor = Math.exp(-delta * WHEEL);
      const [byX, byY] = [event.altKey ? 1 : factor, event.shiftKey ? 1 : factor];
      const at: Place = [(event.clientX - left) / drawn.width, (event.clientY - top) / drawn.height];
      latest.current(zoom(drawn.view, byX, byY, ...at));
    };
    element?.addEventListener("wheel", onWheel, { passive: false });
    return () => element?.removeEventListener("wheel", onWheel);
  }, [scene]);

  const hover = (at: Place) => {
    const drawn = scene.current;
    const row = drawn?.pick(...at) ?? null;
    if (drawn && drawn.hovered !== row) {
      drawn.hovered = row;
      drawn.redrawLabels();
      const place = row === null ? null : drawn.placeOf(row);
      setHovered(row !== null && place ? { row, at: place } : null);
    }
  };

  const extend = (drawn: Scene, current: Drag, at: Place) => {
    if (current.kind === "pan") {
      const [x, y] = [(at[0] - current.last[0]) / drawn.width, (at[1] - current.last[1]) / drawn.height];
      current.last = at;
      latest.current(move(drawn.view, x, y));
    } else {
      drawn.outline = [drawn.toPlace(...current.start), drawn.toPlace(...at)];
      drawn.redrawLabels();
    }
  };

  const finish = (drawn: Scene, current: Drag, at: Place) => {
    if (!current.moved) {
      const row = drawn.pick(...at);
      if (row !== null) {
        onOpen(row);
      }
    } else if (current.kind === "box" && drawn.outline.length > 1) {
      onSelect(drawn.outline);
    }
    drawn.outline = [];
    drawn.redrawLabels();
  };

  return {
    ref: canvas,
    onPointerDown: (event: PointerEvent) => {
      if (event.button !== 0) {
        return;
      }
      const start = placeIn(event);
      drag.current = { kind: event.shiftKey ? "box" : tool, start, last: start, moved: false };
      event.currentTarget.setPointerCapture(event.pointerId);
    },
    onPointerMove: (event: PointerEvent) => {
      const at = placeIn(event);
      const current = drag.current;
      if (!scene.current || !current) {
        hover(at);
        return;
      }
      current.moved ||= apart(current.start, at) > CLICK_PX;
      if (current.moved) {
        setHovered(null);
        extend(scene.current, current, at);
      }
    },
    onPointerUp: (event: PointerEvent) => {
      if (scene.current && drag.current) {
        finish(scene.current, drag.current, placeIn(event));
      }
      drag.current = null;
    },
    onPointerCancel: () => {
      drag.current = null;
      if (scene.current) {
        scene.current.outline = [];
        scene.current.redrawLabels();
      }
    },
    onPointerLeave: () => {
      if (scene.current && !drag.current) {
        scene.current.hovered = null;
        scene.current.redrawLabels();
        setHovered(null);
      }
    },
    onDoubleClick: () => latest.current(HOME, true),
  };
}
